"""Shares as people and metrics see them: pure, from what was read at two moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpuplane.hardware import GPUFacts, Sample
from gpuplane.limits.breach import Escape
from gpuplane.limits.facts import GpuLimit, LimitBackend, Observation, Share, Totals


class ShareView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One share on one GPU. Limits are 0 for none.

    `core_percent` and `held_back_percent` are of the time between the two moments, None with only one: how long its
    work ran on the GPU, and how long it had work but had to wait for the limit.
    """

    id: str
    name: str
    uuid: str
    namespace: str = ""
    pod: str = ""
    container: str = ""
    backend: LimitBackend = LimitBackend.INTERPOSED
    core_limit: int
    memory_limit_bytes: int
    memory_bytes: int
    core_percent: float | None = None
    held_back_percent: float | None = None
    refused: int = 0
    gpu_seconds: float = 0.0
    held_back_seconds: float = 0.0
    processes: int = 0


class OutsideView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A process outside the limits; `name` is the share that it belongs to, "" for none."""

    pid: int
    command: str
    name: str
    memory_bytes: int


class GpuView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One GPU with its shares. `held_percent` is what is promised, `busy_percent` what NVML measured."""

    index: int
    uuid: str
    model: str
    memory_total_bytes: int
    held_percent: int
    busy_percent: int | None = None
    memory_used_bytes: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    lost: bool = False
    shares: tuple[ShareView, ...] = ()
    outside: tuple[OutsideView, ...] = ()


def views(
    gpus: Sequence[GPUFacts],
    samples: Mapping[str, Sample],
    before: Observation | None,
    seen: Observation,
    escapes: Sequence[Escape] = (),
) -> tuple[GpuView, ...]:
    """All GPUs in their order, their shares by name."""
    names = {share.id: share.owner.name for share in seen.shares}
    found = []
    for gpu in gpus:
        sample = samples.get(gpu.uuid, Sample(uuid=gpu.uuid))
        shares = [(share, limit) for share in seen.shares if (limit := share.limits.of(gpu.uuid)) is not None]
        rows = [_share(share, limit, before, seen) for share, limit in shares]
        found.append(
            GpuView(
                index=gpu.index,
                uuid=gpu.uuid,
                model=gpu.model,
                memory_total_bytes=gpu.memory_bytes,
                held_percent=sum(limit.core for _, limit in shares),
                busy_percent=sample.gpu_percent,
                memory_used_bytes=sample.memory_used_bytes,
                temperature_celsius=sample.temperature_celsius,
                power_watts=sample.power_watts,
                power_limit_watts=sample.power_limit_watts,
                lost=sample.lost,
                shares=tuple(sorted(rows, key=lambda row: (row.name, row.id))),
                outside=tuple(
                    OutsideView(
                        pid=escape.pid,
                        command=escape.name,
                        name=names.get(escape.share, ""),
                        memory_bytes=escape.memory_bytes,
                    )
                    for escape in escapes
                    if escape.uuid == gpu.uuid
                ),
            )
        )
    return tuple(found)


def _share(share: Share, limit: GpuLimit, before: Observation | None, seen: Observation) -> ShareView:
    position = share.limits.gpus.index(limit)
    totals = share.totals[position]
    old = _totals_before(before, share, position)
    core = held_back = None
    if before is not None and old is not None and seen.at_ns > before.at_ns:
        passed = seen.at_ns - before.at_ns
        core = 100 * (totals.gpu_ns - old.gpu_ns) / passed
        # Several launches wait at the same time; more than all of the time is not meant.
        held_back = min(100.0, 100 * (totals.held_back_ns - old.held_back_ns) / passed)
    owner = share.owner
    return ShareView(
        id=share.id,
        name=owner.name,
        uuid=limit.uuid,
        namespace=owner.namespace,
        pod=owner.pod,
        container=owner.container,
        backend=owner.backend,
        core_limit=limit.core,
        memory_limit_bytes=limit.memory_bytes,
        memory_bytes=sum(slot.gpus[position].memory_bytes for slot in share.slots),
        core_percent=core,
        held_back_percent=held_back,
        refused=totals.refused,
        gpu_seconds=totals.gpu_ns / 1e9,
        held_back_seconds=totals.held_back_ns / 1e9,
        processes=len(share.slots),
    )


def _totals_before(before: Observation | None, share: Share, position: int) -> Totals | None:
    """Return the totals of the same share at the earlier moment; None when it did not exist, or is another by now."""
    for old in before.shares if before is not None else ():
        if old.id == share.id and old.tenant == share.tenant:
            return old.totals[position]
    return None
