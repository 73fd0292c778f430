"""The composition root: from a resolved configuration to live objects, in one task process."""

from kdist.assembly.task import task_main

__all__ = ["task_main"]
