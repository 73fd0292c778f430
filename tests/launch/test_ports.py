"""Free ports for one launch."""

import socket

import pytest

from kdist.errors import EnvironmentFault
from kdist.launch.ports import find_free_ports


def test_the_ports_differ_and_are_free():
    ports = find_free_ports("127.0.0.1", 20)
    assert len(set(ports)) == 20
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_host_that_is_not_this_machine_is_named():
    with pytest.raises(EnvironmentFault, match=r"cluster\.host.*192\.0\.2\.1"):
        find_free_ports("192.0.2.1", 1)
