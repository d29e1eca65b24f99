"""A race of awaitables that leaves nothing behind: no task that still runs, and no unread error.

`asyncio.wait(return_when=FIRST_COMPLETED)` leaves both to its caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

log = logging.getLogger("kubekit.kube")


async def first_of(*awaitables: Awaitable[Any]) -> int:
    """Run all until one ends, and return its position; of several that end at once, the lowest.

    A coroutine belongs to the race: when the race is over, or is cancelled itself, the coroutine is cancelled and
    awaited to its end. A task or another future belongs to the caller: it is only watched.

    Raises:
        Exception: what any of them raised by the time the race is over, a cancelled coroutine in its cleanup too.
            Of several errors the one of the lowest position is raised, and the others are logged.
        CancelledError: the race was cancelled, or another task cancelled the one that ended first.
    """
    tasks = [asyncio.ensure_future(one) for one in awaitables]
    own = [task for task, one in zip(tasks, awaitables, strict=True) if task is not one]
    over = False
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = next(position for position, task in enumerate(tasks) if task.done())
        over = True
    finally:
        for task in own:
            task.cancel()
        # NB: a second cancellation reaches the coroutines, and gather still waits for them.
        await asyncio.gather(*own, return_exceptions=True)
        failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception() is not None]
        for task in failed[1:] if over else failed:
            log.error("an error besides the one that ended the wait", exc_info=task.exception())
    for task in (*failed, tasks[first]):
        task.result()
    return first
