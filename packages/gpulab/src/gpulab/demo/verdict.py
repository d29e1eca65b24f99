"""Compares the demo's promises with its measurements. Pure: facts in, one verdict for each promise out.

Invariants:

- Every line of the summary is a `Promise`, so no line claims success without a comparison.
- A promise that was never measured is not met.
"""

from __future__ import annotations

from statistics import median
from typing import Final

import msgspec

from gpulab.demo.shares import LATE, TENANTS, Shared
from gpuplane.cli.terminal import count
from gpuplane.explain.answer import Explanation

# A share's compute time may differ from its part by so many percent of the GPU. With nine processes for two CPUs the
# difference was below one; a share without a limit takes what its neighbours leave, which is far more than five.
TOLERANCE_POINTS: Final = 5.0
PASSED: Final = "Test PASSED"


class VectorAddVerdict(msgspec.Struct, frozen=True, rename="camel"):
    """The CUDA sample's pod: its verdict, its node, and the seconds from manifest to end."""

    verdict: str = ""
    node: str = ""
    seconds: float = 0.0


class Sharing(msgspec.Struct, frozen=True, rename="camel"):
    """The shared GPU's node, and what each pod on it got."""

    node: str = ""
    pods: tuple[Shared, ...] = ()


class Break(msgspec.Struct, frozen=True, rename="camel"):
    """The broken node: its message, the seconds until it was ready again (None: it never was), other nodes touched."""

    node: str = ""
    message: str = ""
    healed_seconds: float | None = None
    disturbed: tuple[str, ...] = ()


class Measured(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All figures of one demo. `healthy` are the machines on which nothing was broken."""

    healthy: tuple[str, ...] = ()
    bare_to_ready_seconds: dict[str, float] = {}
    operand_restarts: int = 0
    vector_add: VectorAddVerdict = VectorAddVerdict()
    shared: Sharing = Sharing()
    waiting: Explanation | None = None
    broken: Break = Break()


class Promise(msgspec.Struct, frozen=True, rename="camel"):
    """One line of the summary: what was promised, of which object, how it came out, and whether it was met."""

    name: str
    which: str
    how: str
    kept: bool


def judge(measured: Measured) -> tuple[Promise, ...]:
    """Compare each promise of the demo with the figures."""
    return (
        _prepared(measured),
        _ran(measured.vector_add),
        _shared(measured.shared),
        _refused(measured.shared),
        _waits(measured.waiting),
        _broke(measured.broken),
        _healed(measured.broken),
    )


def is_held_to_its_part(pod: Shared) -> bool:
    """Return whether the pod got its part of compute time within the tolerance."""
    return abs(pod.core_percent - pod.core_limit) <= TOLERANCE_POINTS


def _prepared(measured: Measured) -> Promise:
    ready = {name: took for name, took in measured.bare_to_ready_seconds.items() if name in measured.healthy}
    missing = [name for name in measured.healthy if name not in ready]
    how = f"bare to ready {median(ready.values()):.1f}s median, " if ready else ""
    how += count(measured.operand_restarts, "operand restart")
    if missing:
        how += f"; not ready: {', '.join(missing)}"
    which = f"{len(ready)} of {len(measured.healthy)} machines"
    return Promise("prepared", which, how, kept=bool(ready) and not missing)


def _ran(run: VectorAddVerdict) -> Promise:
    how = f"{run.verdict} on {run.node}, {run.seconds:.1f}s from manifest to end" if run.verdict else "no verdict"
    return Promise("ran", "cuda-vectoradd", how, kept=run.verdict == PASSED)


def _shared(sharing: Sharing) -> Promise:
    asked = " ".join(str(pod.core_limit) for pod in sharing.pods)
    got = " ".join(f"{pod.core_percent:.1f}" for pod in sharing.pods)
    off = [pod.name for pod in sharing.pods if not is_held_to_its_part(pod)]
    empty = [pod.name for pod in sharing.pods if pod.memory_bytes == 0]
    beyond = [pod.name for pod in sharing.pods if pod.memory_bytes > pod.memory_limit_bytes]
    how = f"asked {asked}%, got {got}%"
    for names, what in (
        (off, f"more than {TOLERANCE_POINTS:.0f} points off"),
        (empty, "no memory at all"),
        (beyond, "more memory than its limit"),
    ):
        if names:
            how += f"; {what}: {', '.join(names)}"
    kept = len(sharing.pods) == len(TENANTS) and not (off or empty or beyond)
    return Promise("shared", f"{len(sharing.pods)} pods on {sharing.node}/0", how, kept)


def _refused(sharing: Sharing) -> Promise:
    greedy = {tenant.name for tenant in TENANTS if tenant.asks}
    refused = {pod.name: pod.refused for pod in sharing.pods}
    limits = {pod.name: pod.memory_limit_bytes >> 30 for pod in sharing.pods}
    told = [f"{name}: beyond its {limits[name]} GiB" for name in refused if refused[name] and name in greedy]
    told += [f"{name} was not refused more than its limit" for name in sorted(greedy) if not refused.get(name)]
    told += [f"{name} was refused memory within its limit" for name in refused if refused[name] and name not in greedy]
    kept = {name for name in refused if refused[name]} == greedy
    return Promise("refused", count(sum(refused.values()), "allocation"), "; ".join(told), kept)


def _waits(found: Explanation | None) -> Promise:
    which = f"{LATE.name}, {LATE.core}%"
    if found is None:
        return Promise("waits", which, "no explanation", kept=False)
    lacks = [f"{gpu.nearest} lacks {gpu.missing}" for gpu in found.gpu_reasons if gpu.nearest]
    cures = [f"cure {number}: {cure.change}" for number, cure in enumerate(found.cures[:2], 1)]
    how = "; ".join((*lacks, *cures)) or "neither a reason nor a cure"
    return Promise("waits", which, how, kept=bool(lacks and cures))


def _broke(broken: Break) -> Promise:
    how = broken.message or "the fault was not noticed"
    return Promise("broke", f"{broken.node}/0", how, kept=bool(broken.message))


def _healed(broken: Break) -> Promise:
    if broken.healed_seconds is None:
        how = "not healed"
    else:
        how = f"{broken.healed_seconds:.1f}s after the repair, {len(broken.disturbed)} other GPUNodes touched"
    if broken.disturbed:
        how += f": {', '.join(broken.disturbed)}"
    return Promise("healed", broken.node, how, kept=broken.healed_seconds is not None and not broken.disturbed)
