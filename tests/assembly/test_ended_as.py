"""Status and error of a run whose chief saved all, maybe since the launcher ends it."""

import pytest

from kdist.assembly.result_content import ended_as

DIED = {"type": "TaskDied", "message": "worker-1 was killed.", "task": "worker-1", "time": 7.0}
ERROR = {name: DIED[name] for name in ("type", "message", "task")}
AFTERMATH = {**DIED, "is_consequence": True}


@pytest.mark.parametrize(
    ("stop_reason", "failure", "status", "error"),
    [
        (None, None, "completed", None),
        ("SIGINT", None, "stopped", None),
        ("SIGTERM", DIED, "failed", ERROR),
        ("SIGTERM", AFTERMATH, "failed", ERROR),
        (None, DIED, "failed", ERROR),
        (None, AFTERMATH, "completed", None),
    ],
)
def test_how_a_run_has_ended(stop_reason, failure, status, error):
    assert ended_as(stop_reason, failure) == {"status": status, "error": error}
