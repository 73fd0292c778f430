"""Waits until TensorFlow servers listen: a session would wait for them without end."""

import socket
import time
from collections.abc import Callable, Mapping

from kdist.errors import TaskTimeoutError

_TRY_S = 2.0
_POLL_S = 0.05


def wait_for_servers(
    addresses: Mapping[str, str], timeout_s: float, check: Callable[[], None] = lambda: None
) -> None:
    """Return once something listens at every address.

    Args:
        addresses: "host:port" by the name of the task.
        timeout_s: Seconds for all of them together.
        check: Called again and again; raises when waiting has no sense any more.

    Raises:
        TaskTimeoutError: If one does not answer in time, naming it.
    """
    end_s = time.monotonic() + timeout_s
    for name, address in addresses.items():
        host, _, port = address.rpartition(":")
        while not _listens(host.strip("[]"), int(port)):
            check()
            if time.monotonic() > end_s:
                raise TaskTimeoutError(
                    f"Gave up after {timeout_s:g} s (cluster.start_timeout_s) waiting for the "
                    f"TensorFlow server of {name} at {address}. See its log."
                )
            time.sleep(_POLL_S)


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_TRY_S).close()
    except OSError:
        return False
    return True
