"""What the kernel's tables say about listening programs."""

from __future__ import annotations

import socket
import sys

import pytest

from tinykube.proxy.listening import listening, parse

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


def test_a_listener_of_this_machine_is_found_until_it_closes() -> None:
    with socket.create_server(("127.77.0.9", 0)) as server:
        port = server.getsockname()[1]
        assert listening(port) == {"127.77.0.9"}
    assert listening(port) == set()
