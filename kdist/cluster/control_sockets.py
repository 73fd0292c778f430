"""Addresses and listening sockets of the control channel."""

import errno
import ipaddress
import socket

from kdist.cluster.task import Task
from kdist.errors import EnvironmentFault


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port"; brackets of an IPv6 host are taken off."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine only, without asking a name server."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def open_listener(task: Task, address: str, *, is_listening: bool = True) -> socket.socket:
    """Bind the port of a task: on loopback if its host is a loopback name, else everywhere.

    TensorFlow's server can take the port as soon as this socket is closed, also while
    connections accepted on it are still open.

    Args:
        task: Whose port it is, for the message.
        address: Its "host:port".
        is_listening: `False` only holds the port.

    Raises:
        EnvironmentFault: If the port is in use, or may not be bound.
    """
    host, port = split_address(address)
    try:
        return _bind(host, port, is_listening)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "is in use on this machine (is the same task started twice?)"
        else:
            reason = f"cannot be bound: {error.strerror or error}"
        raise EnvironmentFault(
            f"The port of {task} {reason}. Received: {address}. End what holds it "
            f"(`ss -ltnp 'sport = :{port}'` shows it), or give {task} another port."
        ) from error


def _bind(host: str, port: int, is_listening: bool) -> socket.socket:
    if is_loopback(host):
        return _bind_to("127.0.0.1" if host.endswith("localhost") else host, port, is_listening)
    if socket.has_dualstack_ipv6():
        try:
            return _bind_to("::", port, is_listening)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # IPv6 is off.
                raise
    return _bind_to("0.0.0.0", port, is_listening)


def _bind_to(host: str, port: int, is_listening: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        listener.bind((host, port))
        if is_listening:
            listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener
