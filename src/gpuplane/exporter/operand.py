"""The exporter of one node: `/metrics` and `/health` on port 9400.

Invariants:

- Everything is read when it is asked for; nothing runs between scrapes. Scrapes that come together share one reading.
- Never an old value: while the driver is away the answer is 503 with the reason.
- Nothing is written to the API server: that the exporter works is seen at its pod's readiness.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, TypeVar

from gpuplane.errors import GpuplaneError, Retryable
from gpuplane.exporter.fields import Choice, load
from gpuplane.exporter.pods import PodResources
from gpuplane.exporter.render import CONTENT_TYPE, render
from gpuplane.hardware import GPU, GPUSource, Sample
from gpuplane.operand import OperandContext
from gpuplane.operand.http import Answer, serving

log = logging.getLogger("gpuplane.exporter")

T = TypeVar("T")

PORT: Final = 9400
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0


async def run(context: OperandContext) -> None:
    """Runs until cancelled.

    Raises:
        InvalidInput: the list of fields.
        Terminal: the driver's library cannot be used by this process; a new one may.
    """
    choice = load(context.config)
    if choice.missing:
        log.warning("left out, not offered by gpuplane: %s", ", ".join(choice.missing))
    exporter = Exporter(context, choice)
    try:
        if context.in_process:
            # A light node has no network of its own; there is nobody who could ask.
            await asyncio.Event().wait()
        await _serve(context, exporter)
    finally:
        exporter.close()


async def _serve(context: OperandContext, exporter: Exporter) -> None:
    # At once, not with the first scrape: a GPU that is lost later keeps its place only in a source that knew it before.
    first = await exporter.health()
    if first.status is not HTTPStatus.OK:
        log.warning("%s", first.body.decode().strip())
    paths = {"/metrics": exporter.metrics, "/health": exporter.health}
    port = PORT if context.port is None else context.port
    pause, said = FIRST_PAUSE_SECONDS, ""
    while True:
        try:
            async with serving(paths, context.address, port) as bound:
                log.info("serving /metrics on %s:%d", context.address or "*", bound)
                await exporter.broken
        except Retryable as error:
            if said != str(error):
                log.error("%s; trying again", error)
                said = str(error)
            await context.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class Exporter:
    """Answers the two paths. `broken` gets the error after which only a new process can help."""

    def __init__(self, context: OperandContext, choice: Choice) -> None:
        self._context = context
        self._choice = choice
        self._pods = PodResources(context.kubelet_dir, context.sleep)
        self._source: GPUSource | None = None
        self._driver_version = ""
        self._reading: asyncio.Task[bytes] | None = None
        self._one_at_a_time = asyncio.Lock()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def metrics(self) -> Answer:
        """All metrics of now."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        try:
            return Answer(await asyncio.shield(self._reading), content_type=CONTENT_TYPE)
        except GpuplaneError as error:
            return self._failed(error)

    async def health(self) -> Answer:
        """200 when the driver answers."""
        try:
            await self._ask(self._open)
        except GpuplaneError as error:
            return self._failed(error)
        return Answer(b"OK\n")

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    async def _read(self) -> bytes:
        holders, (inventory, samples) = await asyncio.gather(self._pods.holders(), self._ask(self._measure))
        return render(
            self._choice.fields,
            inventory,
            samples,
            holders,
            hostname=self._context.node_name,
            driver_version=self._driver_version,
        )

    def _measure(self) -> tuple[tuple[GPU, ...], tuple[Sample, ...]]:
        source = self._open()
        return source.inventory(), source.samples()

    def _open(self) -> GPUSource:
        if self._source is None:
            source = self._context.open_gpus()
            self._driver_version = source.driver_version()
            self._source = source
        return self._source

    async def _ask(self, question: Callable[[], T]) -> T:
        """Ask the driver, in a thread and one at a time; after a failure it is opened anew the next time."""
        async with self._one_at_a_time:
            try:
                return await asyncio.to_thread(question)
            except GpuplaneError:
                self.close()
                raise

    def _failed(self, error: GpuplaneError) -> Answer:
        if not isinstance(error, Retryable) and not self.broken.done():
            self.broken.set_exception(error)
        return Answer(f"{error}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)
