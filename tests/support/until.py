"""Wait in a test for something to hold: `until` for a condition, `until_objects` for objects of an API server.

A test waits for events. It looks again and again only where there are none: files, logs, other processes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kubekit.kube import Client, Informer
from kubekit.kube.tasks import first_of

PATIENCE_SECONDS: Final = 60.0  # half of what a test may take: a computer that is busy with others fails no test
POLL_SECONDS: Final = 0.02


async def until(
    condition: Callable[[], Any | Awaitable[Any]],
    *,
    changed: asyncio.Event | None = None,
    poll: float | None = None,
    task: asyncio.Future[Any] | None = None,
    ignored: type[Exception] | tuple[type[Exception], ...] = (),
    seconds: float | None = PATIENCE_SECONDS,
    what: str = "it",
    seen: Callable[[], object] = lambda: "",
) -> Any:
    """Return the first true value of `condition()`.

    Args:
        changed: set by whatever may make the condition true.
        poll: seconds after which the condition is tried without a change. Default: 20 ms without `changed`, else never.
        task: what makes the condition true. When it ends before, there is nothing to wait for.
        ignored: errors of the condition that mean "not yet".
        seconds: how long to wait; None leaves that to the test's own timeout.
        what: what is waited for, for the failure.
        seen: what there is instead, for the failure.

    Raises AssertionError when the time is over, or when `task` has ended.
    """
    if changed is None and poll is None:
        poll = POLL_SECONDS
    try:
        async with asyncio.timeout(seconds) as limit:
            while True:
                if changed is not None:
                    changed.clear()
                try:
                    value = condition()
                    if inspect.isawaitable(value):
                        value = await value
                    if value:
                        return value
                except ignored:
                    pass
                if task is not None and task.done():
                    raise AssertionError(f"{what} did not come about before the end of {task}; {seen()}")
                waits: list[Awaitable[Any]] = [changed.wait()] if changed is not None else []
                waits += [asyncio.sleep(poll)] if poll is not None else []
                waits += [asyncio.wait([task])] if task is not None else []
                await first_of(*waits)
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(f"{what} did not come about in {seconds:g} s; {seen()}") from None


async def until_objects(
    client: Client,
    kind: type[Any],
    condition: Callable[[list[Any]], Any],
    *,
    namespace: str | None = None,
    labels: str = "",
    fields: str = "",
    seconds: float = PATIENCE_SECONDS,
    describe: Callable[[Any], object] = lambda obj: f"{obj.metadata.name}: {getattr(obj, 'status', '')}",
) -> Any:
    """Return the first true value of `condition(objects)`, which sees all objects of the kind after each change.

    Args:
        describe: one line on an object, for the failure.

    Raises AssertionError when the time is over.
    """
    informer = Informer(client, kind, namespace, labels, fields)
    changed = asyncio.Event()
    informer.add_handler(lambda old, new: changed.set())
    informer.start()

    def seen() -> str:
        return "there is:\n" + "\n".join(str(describe(obj)) for obj in informer.items())

    try:
        async with asyncio.timeout(seconds):
            await informer.synced()
        return await until(lambda: condition(informer.items()), changed=changed, seconds=seconds, seen=seen)
    finally:
        await informer.stop()
