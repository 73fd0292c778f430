"""Free ports of this machine, for the tasks of one launch."""

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Iterable

from kdist.errors import EnvironmentFault

_MAX_TRIES = 100
# What fails for the number of ports, not for the host.
_USED_UP = (errno.EADDRINUSE, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def find_free_ports(host: str, num_ports: int) -> tuple[int, ...]:
    """Return ports that nobody listens on now, no two the same.

    They are not reserved: the task that gets one says so by name if somebody was faster.

    Raises:
        EnvironmentFault: If nothing can listen on `host`, or not so many tasks can.
    """
    with contextlib.ExitStack() as stack:
        listeners: list[socket.socket] = []
        try:
            # All are held at once, so that none is given out twice.
            for _ in range(num_ports):
                if not host:
                    raise ValueError("it is empty")  # A socket would take it for every address.
                listener = socket.create_server((host, 0), family=_family(host))
                listeners.append(stack.enter_context(listener))
        except (OSError, TypeError, ValueError) as error:  # The latter for what no host can be.
            number = getattr(error, "errno", None) or 0
            reason = os.strerror(number) if number > 0 else error
            if number in _USED_UP:
                raise EnvironmentFault(
                    f"This machine cannot serve so many tasks. Received: {num_ports} tasks "
                    f"(cluster.workers, cluster.ps and the chief), ports for {len(listeners)} of "
                    f"them on {host} ({reason}). Use fewer workers or parameter servers."
                ) from error
            raise EnvironmentFault(
                f"This machine cannot serve on cluster.host. Received: {host!r} ({reason}). Use an "
                "address of this machine, as in cluster.host=127.0.0.1."
            ) from error
        return tuple(listener.getsockname()[1] for listener in listeners)


class PortLeases:
    """Free ports for runs side by side: none is given to two of them."""

    def __init__(self) -> None:
        """Nothing is given out yet."""
        self._given: set[int] = set()
        self._lock = threading.Lock()

    def find(self, host: str, num_ports: int) -> tuple[int, ...]:
        """Return ports as `find_free_ports` does, without those given out and not given back.

        Raises:
            EnvironmentFault: If nothing can listen on `host`, or there are no more ports.
        """
        for _ in range(_MAX_TRIES):
            found = find_free_ports(host, num_ports)
            with self._lock:
                if not self._given & set(found):
                    self._given |= set(found)
                    return found
        raise EnvironmentFault(
            f"This machine has too few free ports. Received: {num_ports} wanted on {host}, "
            f"{len(self._given)} given to other runs."
        )

    def give_back(self, ports: Iterable[int]) -> None:
        """Let others have these ports; those that were not given out are no error."""
        with self._lock:
            self._given -= set(ports)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
