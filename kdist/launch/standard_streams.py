"""The three streams that a process expects to have."""

import os
import sys


def open_closed_streams() -> None:
    """Send what this process reads and writes nowhere, where whoever started it closed a stream.

    Python leaves `None` in its place, and the next file or socket would get its descriptor: what
    native code prints would then be written there.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:  # The lowest free descriptor is given away first: this one.
            nowhere = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
            os.set_inheritable(nowhere, True)
        if getattr(sys, name) is None:
            stream = open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
