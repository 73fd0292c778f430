"""Imported by the process that tasks are forked from, and by nothing else.

Imports what every task needs, once, without the noise of it.
"""

import atexit
import contextlib
import importlib
import os
import sys

sys.stderr.flush()
_kept = os.dup(2)
_nowhere = os.open(os.devnull, os.O_WRONLY)
os.dup2(_nowhere, 2)
try:
    for _name in ("tensorflow", "keras"):
        importlib.import_module(_name)
    with contextlib.suppress(Exception):  # Each task says what is wrong, when it imports it.
        importlib.import_module("kdist.assembly")
finally:
    os.dup2(_kept, 2)
    os.close(_kept)
    os.close(_nowhere)
# The server has nothing to save: taking apart what it imported would take it a second or more.
atexit.register(os._exit, 0)
