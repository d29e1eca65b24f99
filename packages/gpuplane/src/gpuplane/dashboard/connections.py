"""The connections of the dashboard's server: a slow one blocks no other one, and there are never too many.

Any user of the machine can connect before the key is asked for, so their number is bounded here. A connection that
waits for its caller is closed for a new one: it has sent no whole request, or does not read its answer.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS: Final = 200


class BoundedConnection(H11Protocol):
    """A connection that is counted with all others of the process.

    Args:
        open_connections: all of them, the one that has been there for longest first.
    """

    open_connections: dict[BoundedConnection, None] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        connections = self.open_connections
        connections[self] = None
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(connections) > min(MOST_CONNECTIONS, max(files // 2, 1)):
            # Where all others have requests in work, the new one goes.
            slow = next((one for one in connections if one.waits), self)
            del connections[slow]
            slow.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_connections.pop(self, None)
        super().connection_lost(exc)

    @property
    def waits(self) -> bool:
        """Return whether the server waits for the caller: for a request, for the rest of one, or until it reads."""
        cycle: Any = self.cycle
        return cycle is None or cycle.more_body or cycle.response_complete or self.flow.write_paused
