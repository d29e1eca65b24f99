"""Precision of shares of a GPU's time: the work of a program in a share, relative to its work alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tests.gpu.findings import Finding
from tests.gpu.tenants import ALONE, Tenants

LENGTHS: Final = {"20 us": 20e-6, "1 ms": 1e-3, "20 ms": 20e-3, "300 ms": 0.3}  # of a kernel, alone
QUICK: Final = {"1 ms": 1e-3}
ERROR: Final = 2.0  # points, as README promises
GAP_MS: Final = 40.0  # of a neighbour, and a kernel more


class Pace:
    """The run time of programs, and the number of loops for kernels of each length on this GPU."""

    def __init__(self, tenants: Tenants, quick: bool) -> None:
        self.tenants = tenants
        self.quick = quick
        self.seconds = 2.0 if quick else 6.0
        self.lengths = QUICK if quick else LENGTHS
        self._loop = float(tenants.run("calibrate")["loop_seconds"])

    def loops(self, seconds: float) -> int:
        return max(1, round(seconds / self._loop))

    def busy(self, seconds: float, *flags: str) -> tuple[object, ...]:
        """The words of a busy program with kernels of this length."""
        return ("busy", self.loops(seconds), max(self.seconds, 20 * seconds), 1.0, *flags)

    def rate(self, seconds: float, core: int, *flags: str) -> float:
        """Kernels a second in a share of `core` percent; alone for ALONE."""
        return float(self.tenants.run(*self.busy(seconds, *flags), core=core)["rate"])

    def parts(self, seconds: float, cores: Sequence[int], *flags: str) -> list[float]:
        """Percent of what a program does alone, for each of `cores`. Clocks change as a GPU warms up, so alone is the
        mean of before and after.
        """
        before = self.rate(seconds, ALONE, *flags)
        rates = [self.rate(seconds, core, *flags) for core in cores]
        alone = (before + self.rate(seconds, ALONE, *flags)) / 2
        return [100 * rate / alone for rate in rates]


def one_tenant(pace: Pace) -> Iterator[Finding]:
    """Shares of 10 to 90 percent, and what the limiter costs a program that has all."""
    for name, seconds in pace.lengths.items():
        cores = (50,) if pace.quick else (10, 30, 60, 90, 100)
        for core, got in zip(cores, pace.parts(seconds, cores), strict=True):
            most = None if core == 100 else core + ERROR
            least = 99.0 if core == 100 else core - ERROR
            yield Finding("one tenant", f"{core}% of kernels of {name}", got, "%", least, most)


def two_tenants(pace: Pace) -> Iterator[Finding]:
    """30 and 60 percent at once, with kernels of equal and of unlike lengths; the sum of two halves."""
    pairs = [(1e-3, 1e-3)] if pace.quick else [(20e-6, 20e-6), (1e-3, 1e-3), (20e-6, 20e-3), (20e-3, 20e-3)]
    for first, second in pairs:
        alone = pace.rate(first, ALONE), pace.rate(second, ALONE)
        got = pace.tenants.together((pace.busy(first), 30), (pace.busy(second), 60))
        for core, each, rate, seconds in zip((30, 60), got, alone, (first, second), strict=True):
            other = second if core == 30 else first
            name = f"{core}% of {seconds * 1e3:g} ms beside {other * 1e3:g} ms"
            yield Finding("two tenants", name, 100 * each["rate"] / rate, "%", core - 3, core + 3)
    alone_ms = pace.rate(1e-3, ALONE)
    halves = pace.tenants.together((pace.busy(1e-3), 50), (pace.busy(1e-3), 50))
    total = 100 * sum(each["rate"] for each in halves) / alone_ms
    yield Finding("two tenants", "two halves of one unlimited program", total, "%", 98.0)


def shapes(pace: Pace) -> Iterator[Finding]:
    """Programs that got round limits once: an open capture, many contexts."""
    for name, flags in (("an open capture", ("--capture",)), ("20 contexts", ("--contexts=20",))):
        [got] = pace.parts(1e-3, [30], *flags)
        yield Finding("shapes", f"30% with {name}", got, "%", 30 - ERROR, 30 + ERROR)


def neighbours(pace: Pace) -> Iterator[Finding]:
    """Measure the longest wait of a small kernel next to programs that queue as much as a driver takes."""
    long = 20e-3
    for name, words in (("long kernels", pace.busy(long)), ("deep queues", ("deep", pace.loops(long), pace.seconds))):
        _, waited = pace.tenants.together((words, 50), (("waits", pace.loops(1e-3), pace.seconds), 50))
        most = GAP_MS + 1e3 * (long + 1e-3)
        yield Finding("neighbours", f"longest wait beside {name}", 1e3 * waited["longest"], "ms", None, most)


def kills(pace: Pace) -> Iterator[Finding]:
    """A neighbour's longest wait while programs of another share are killed at work."""
    count = 3 if pace.quick else 30
    neighbour = pace.tenants.start("waits", pace.loops(1e-3), 1.0 * count, core=50)
    neighbour.go()
    for _ in range(count):
        victim = pace.tenants.start("hold", 64, core=40, memory_mib=1024)
        victim.go()
        victim.kill()
    waited = neighbour.answer()
    yield Finding("kills", f"longest wait beside {count} SIGKILLs", 1e3 * waited["longest"], "ms", None, 1000.0)
