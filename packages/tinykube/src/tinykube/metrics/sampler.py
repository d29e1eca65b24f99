"""Scrapes kubelets when their metrics are read, and at no other time.

metrics-server scrapes every node each 15 seconds, whether anyone reads or not. Here a reader causes the scrapes, and
gets what it would get there:

- A reader that comes back within 15 seconds gets the same values again, as there.
- A reader that comes each 15 seconds, or up to a minute later (an autoscaler, `watch kubectl top`), gets the use since
  its last visit: its scrape is the end of one window and the start of the next. So an autoscaler is all that makes the
  nodes of its pods be scraped each 15 seconds, and they are scraped no more when it is deleted.
- The first one waits two seconds, between two scrapes: the kernel counts CPU in hundredths of a second, so that the
  use of a node is then exact to half a percent of a core. Its window is two seconds, which the answer says.

There is no timer and no task. A thousand nodes that no one reads cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.hooks import Object
from tinykube.metrics.points import FIRST_WINDOW_S, NextScrape, NodeScrape, next_scrape, parse_scrape

Read = Callable[[Object], Awaitable[str]]
_TIMEOUT_S: Final = 10.0
_AT_ONCE: Final = 50
_log = logging.getLogger("tinykube.metrics")


class NodeScrapes(msgspec.Struct):
    """The last scrape of a node and the one before it; `lock` lets readers of the same node share them."""

    lock: asyncio.Lock
    last: NodeScrape | None = None
    earlier: NodeScrape | None = None


class NodeSampler:
    """The scrapes of all nodes that were read.

    Args:
        read: returns the text of a node's /metrics/resource; raises ApiFailure, LookupError, OSError or ValueError.
        clock: seconds since the epoch.
    """

    def __init__(
        self, read: Read, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._read = read
        self._clock = clock
        self._sleep = sleep
        self._nodes: dict[str, NodeScrapes] = {}
        self._limit = asyncio.Semaphore(_AT_ONCE)

    async def sample(self, nodes: Iterable[Object]) -> dict[str, tuple[NodeScrape, NodeScrape]]:
        """Return the last two scrapes of each node, by name, without those that cannot be scraped."""
        listed = distinct(nodes)
        found = await asyncio.gather(*(self._sample(node) for node in listed))
        return {
            node["metadata"]["name"]: scrapes
            for node, scrapes in zip(listed, found, strict=True)
            if scrapes is not None
        }

    def forget(self, name: str) -> None:
        """Drop what is known of a node that is gone."""
        self._nodes.pop(name, None)

    async def _sample(self, node: Object) -> tuple[NodeScrape, NodeScrape] | None:
        known = self._nodes.setdefault(node["metadata"]["name"], NodeScrapes(asyncio.Lock()))
        async with known.lock:
            try:
                await self._advance(node, known)
            except (ApiFailure, ArithmeticError, LookupError, OSError, TimeoutError, ValueError) as error:
                # NB: whatever one kubelet answers, an amount of +Inf too, the others' use is listed.
                _log.info("node %s not scraped: %s", node["metadata"]["name"], error or "timed out")
                known.last = known.earlier = None
            if known.last is None or known.earlier is None:
                return None
            return known.last, known.earlier

    async def _advance(self, node: Object, known: NodeScrapes) -> None:
        """Scrape a node as often as it takes."""
        wanted = next_scrape(self._clock(), known.last, known.earlier)
        if wanted is NextScrape.NONE:
            return
        if wanted is NextScrape.TWO:
            known.last, known.earlier = await self._scrape(node), None
        if known.earlier is None and wanted is not NextScrape.ONE:
            await self._sleep(FIRST_WINDOW_S)
        known.last, known.earlier = await self._scrape(node), known.last

    async def _scrape(self, node: Object) -> NodeScrape:
        async with self._limit, asyncio.timeout(_TIMEOUT_S):
            text = await self._read(node)
        return parse_scrape(text, self._clock())


def distinct(nodes: Iterable[Object]) -> list[Object]:
    """Return the nodes whose kubelet has an address of its own.

    One kubelet that is several nodes, such as that of light nodes, cannot say which of them is meant. It runs no
    containers that could be measured.
    """
    by_address: dict[tuple[str, int], list[Object]] = {}
    for node in nodes:
        status = node.get("status") or {}
        host = next((one["address"] for one in status.get("addresses") or () if one["type"] == "InternalIP"), "")
        port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port", 0)
        if host and port:
            by_address.setdefault((host, port), []).append(node)
    return [found[0] for found in by_address.values() if len(found) == 1]
