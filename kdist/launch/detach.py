"""Imported first by the process that tasks are forked from, and by nothing else.

Leaves the terminal's process group, so that Ctrl-C, or a scheduler's SIGTERM to the whole group,
reaches the launcher only, which forwards it to every task.
"""

import contextlib
import os

with contextlib.suppress(OSError):
    os.setsid()
