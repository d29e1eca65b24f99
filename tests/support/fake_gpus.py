"""GPUs without a driver, for tests of what reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gpuplane.hardware import GPUFacts, HealthEvent, Sample


class FakeGPUs:
    """A source of these GPUs, as far as operands use a `GPUSource`.

    `says` is what the GPUs answer about their health; `closed` counts the calls of `close`. The clock in a sample
    counts the readings; `error` is raised in place of samples.
    """

    def __init__(self, gpus: tuple[GPUFacts, ...], driver: str = "535.161.08", cuda: tuple[int, int] = (12, 2)) -> None:
        self.gpus, self.driver, self.cuda = gpus, driver, cuda
        self.says: dict[str, str] = {}
        self.error: Exception | None = None
        self.readings = 0
        self.closed = 0
        self._events: asyncio.Queue[HealthEvent | Exception] = asyncio.Queue()

    def tell(self, event: HealthEvent | Exception) -> None:
        """Report a health event, or end the events with an error."""
        self._events.put_nowait(event)

    def driver_version(self) -> str:
        return self.driver

    def cuda_version(self) -> tuple[int, int]:
        return self.cuda

    def inventory(self) -> tuple[GPUFacts, ...]:
        return self.gpus

    def samples(self) -> tuple[Sample, ...]:
        if self.error is not None:
            raise self.error
        self.readings += 1
        return tuple(Sample(uuid=gpu.uuid, sm_clock_mhz=self.readings) for gpu in self.gpus)

    def health(self) -> dict[str, str]:
        return dict(self.says)

    async def events(self) -> AsyncIterator[HealthEvent]:
        while True:
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            yield event

    def close(self) -> None:
        self.closed += 1
