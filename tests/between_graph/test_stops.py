"""Clients end an evaluation where the chief does."""

from tests.ps.test_stops import test_an_evaluation_that_is_ended  # noqa: F401
