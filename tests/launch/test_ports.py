"""Free ports for one launch."""

import errno
import os
import socket

import pytest

from kdist.errors import EnvironmentFault
from kdist.launch.ports import find_free_ports


def test_the_ports_differ_and_are_free():
    ports = find_free_ports("127.0.0.1", 20)
    assert len(set(ports)) == 20
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("host", ["192.0.2.1", "", "a..b", "a\0b"])
def test_a_host_that_is_not_this_machine_is_named(host):
    with pytest.raises(EnvironmentFault) as caught:
        find_free_ports(host, 1)
    assert f"cannot serve on cluster.host. Received: {host!r} (" in str(caught.value)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EADDRINUSE])
def test_too_many_tasks_are_not_a_wrong_host(number, monkeypatch):
    create_server = socket.create_server
    left = [None, None]

    def create(*args, **kwargs):
        if not left:
            raise OSError(number, os.strerror(number))
        left.pop()
        return create_server(*args, **kwargs)

    monkeypatch.setattr(socket, "create_server", create)
    with pytest.raises(EnvironmentFault) as caught:
        find_free_ports("127.0.0.1", 5)
    assert str(caught.value) == (
        "This machine cannot serve so many tasks. Received: 5 tasks (cluster.workers, cluster.ps "
        f"and the chief), ports for 2 of them on 127.0.0.1 ({os.strerror(number)}). Use fewer "
        "workers or parameter servers."
    )
