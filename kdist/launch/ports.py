"""Free ports of this machine, for the tasks of one launch."""

import contextlib
import os
import socket

from kdist.errors import EnvironmentFault


def find_free_ports(host: str, num_ports: int) -> tuple[int, ...]:
    """Return ports that nobody listens on now, no two the same.

    They are not reserved: the task that gets one says so by name if somebody was faster.

    Raises:
        EnvironmentFault: If nothing can listen on `host`.
    """
    with contextlib.ExitStack() as stack:
        try:
            # All are held at once, so that none is given out twice.
            listeners = [
                stack.enter_context(socket.create_server((host, 0), family=_family(host)))
                for _ in range(num_ports)
            ]
        except OSError as error:
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error
            raise EnvironmentFault(
                f"This machine cannot serve on cluster.host. Received: {host} ({reason}). Use an "
                "address of this machine, as in cluster.host=127.0.0.1."
            ) from error
        return tuple(listener.getsockname()[1] for listener in listeners)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
