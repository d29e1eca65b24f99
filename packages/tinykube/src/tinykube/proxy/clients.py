"""Finds the node of a client, for Services whose traffic stays on a node.

Pods share the network of the machine, so an address does not name a client's node. The kernel lists the socket at the
other end of a connection; the process that has the socket belongs to a container, whose directory is in that of its
node. Invariant: a client that is in no container, such as a program of the machine's user, is on no node.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from tinykube.cluster.processes import container_of, pids
from tinykube.proxy.listening import Place, client_socket
from tinykube.proxy.routes import ListenAddress

#: Returns the name of the node of a client (address, port) at one of the proxy's places; empty for no node.
FindNode = Callable[[Place, ListenAddress], Awaitable[str]]
_PROC: Final = Path("/proc")


async def on_no_node(client: Place, place: ListenAddress) -> str:
    """Return no node: for a registry without a cluster's directory."""
    return ""


class ClientNodes:
    """Finds clients in the containers of a cluster. `nodes` is the directory of its nodes."""

    def __init__(self, nodes: Path) -> None:
        self._nodes = nodes.resolve()

    async def find(self, client: Place, place: ListenAddress) -> str:
        return await asyncio.to_thread(self._find, client, place)

    def _find(self, client: Place, place: ListenAddress) -> str:
        inode = client_socket(client, (place.host, place.port), place.protocol)
        if not inode:
            return ""
        holders = (pid for pid in pids() if _holds(pid, f"socket:[{inode}]"))
        return next((node for pid in holders if (node := self._node_of(pid))), "")

    def _node_of(self, pid: int) -> str:
        home = container_of(pid)
        if home is None:
            return ""
        home = home.resolve()
        if not home.is_relative_to(self._nodes) or home == self._nodes:
            return ""
        return home.relative_to(self._nodes).parts[0]


def _holds(pid: int, link: str) -> bool:
    with contextlib.suppress(OSError):  # gone meanwhile, or another user's
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if str(descriptor.readlink()) == link:
                    return True
    return False
