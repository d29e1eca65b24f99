"""Listening programs, as the kernel's tables list them."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from tinykube.proxy.listening import client_socket, find_client, listening, parse

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 0200007F:1F90 0300007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0 100 0 0 10 0
   3: 0400007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4 1 0 100 0 0 10 0
   4: 0000000000000000FFFF00000500007F:1F90 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 5
   5: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 6
"""


@pytest.mark.skipif(sys.byteorder != "little", reason="the table is one of a little-endian machine")
def test_only_listeners_of_the_port_count() -> None:
    assert parse(TABLE, 8080) == {"127.0.0.1", "0.0.0.0", "127.0.0.5", "::"}
    assert parse(TABLE, 8081) == {"127.0.0.4"}
    assert parse(TABLE, 22) == set()


@pytest.mark.skipif(sys.byteorder != "little", reason="the table is one of a little-endian machine")
def test_the_other_end_of_a_connection_is_found_by_both_addresses() -> None:
    client, server = ("127.0.0.2", 0x1F90), ("127.0.0.3", 0x9999)
    assert find_client(TABLE, client, server, "TCP") == 3
    assert find_client(TABLE, client, ("127.0.0.3", 80), "TCP") == 0
    assert find_client(TABLE, server, client, "TCP") == 0
    # A socket of UDP that is bound to all addresses, and sends to any.
    assert find_client(TABLE, ("127.0.0.9", 0x1F90), server, "UDP") == 2
    assert find_client(TABLE, ("127.0.0.9", 0x1F90), server, "TCP") == 0


def test_a_client_of_this_machine_has_the_inode_of_its_descriptor() -> None:
    with (
        socket.create_server(("127.77.0.9", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        found = client_socket(client.getsockname(), server.getsockname(), "TCP")
        assert os.fstat(client.fileno()).st_ino == found


def test_a_listener_of_this_machine_is_found_until_it_closes() -> None:
    with socket.create_server(("127.77.0.9", 0)) as server:
        port = server.getsockname()[1]
        assert listening(port) == {"127.77.0.9"}
    assert listening(port) == set()
