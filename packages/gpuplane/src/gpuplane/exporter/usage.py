"""Turns what the exporter reads of its node into readings of the meter. `SharesInUse` is the edge, the rest is pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpuplane import names
from gpuplane.exporter.render import Entity, GPUHolder
from gpuplane.hardware import Sample
from gpuplane.metering import GPUReading, Hold, HoldKind, NodeReading, PodContainer

if TYPE_CHECKING:
    from gpuplane.limits import Share


class ShareUse(msgspec.Struct, frozen=True):
    """Use of one GPU by a container's share. Another `life` is another counter."""

    used_ns: int
    memory_bytes: int
    life: int


ShareUses = Mapping[tuple[str, str, str, str], ShareUse]
"""By namespace, pod, container and UUID."""


class SharesInUse:
    """The pages of the node's shares, below the root of its file system."""

    def __init__(self, host_root: Path) -> None:
        self._place = host_root / names.LIMITS_DIR

    def read(self) -> ShareUses:
        """Return the use of each share that counts itself; shares under MPS and native limits do not."""
        if not self._place.is_dir():
            return {}
        from gpuplane.limits import ShareStore  # late: 3 MB, and only where containers have shares

        return uses(ShareStore(self._place).all())


def uses(shares: Iterable[Share]) -> ShareUses:
    """As `SharesInUse.read`, of shares that were read."""
    from gpuplane.limits import LimitBackend

    found: dict[tuple[str, str, str, str], ShareUse] = {}
    for share in shares:
        owner = share.owner
        if owner.backend is not LimitBackend.INTERPOSED or not owner.pod:
            continue
        for at, (limit, total) in enumerate(zip(share.limits.gpus, share.totals, strict=False)):
            held = sum(slot.gpus[at].memory_bytes for slot in share.slots)
            use = ShareUse(total.gpu_ns, held, share.tenant)
            found[owner.namespace, owner.pod, owner.container, limit.uuid] = use
    return found


def node_reading(
    at_ns: int,
    shown: Sequence[Entity],
    samples: Iterable[Sample],
    holders: Mapping[str, Sequence[GPUHolder]],
    replicas: Mapping[str, int],
    shares: ShareUses,
) -> NodeReading:
    """Return the reading of the GPUs that answer.

    Args:
        holders: device id without its replica -> containers.
        replicas: device id -> how many replicas the kubelet can allocate of it.
    """
    gpus = tuple(_gpu(sample) for sample in samples if not sample.lost)
    answering = {gpu.uuid for gpu in gpus}
    holds: dict[tuple[PodContainer, str], Hold] = {}
    for entity in shown:
        if entity.gpu.uuid not in answering:
            continue
        for device in entity.ids:
            for holder in dict.fromkeys(holders.get(device, ())):
                hold = _hold(entity, holder, _count(device, holders, replicas), shares)
                key = (hold.who, hold.uuid)
                holds[key] = hold if key not in holds else _both(holds[key], hold)
    return NodeReading(at_ns=at_ns, gpus=gpus, holds=tuple(holds.values()))


def _gpu(sample: Sample) -> GPUReading:
    active = sample.engine_active
    if active is None and sample.gpu_percent is not None:
        active = sample.gpu_percent / 100
    return GPUReading(
        uuid=sample.uuid,
        active=active,
        power_watts=sample.power_watts,
        energy_millijoules=sample.energy_millijoules,
        memory_bytes=sample.memory_used_bytes,
    )


def _count(device: str, holders: Mapping[str, Sequence[GPUHolder]], replicas: Mapping[str, int]) -> int:
    """Return the number of equal parts of a device: containers that hold it by claims, or its replicas, as the kubelet
    reports, at least those that are held.
    """
    if claims := sum(holder.claim for holder in holders.get(device, ())):
        return claims
    held = [int(holder.replica) + 1 for holder in holders.get(device, ()) if holder.replica]
    return max([1, replicas.get(device, 0), *held])


def _hold(entity: Entity, holder: GPUHolder, parts: int, shares: ShareUses) -> Hold:
    uuid, total = entity.gpu.uuid, entity.gpu.memory_bytes
    part, kind, memory = 1.0, HoldKind.WHOLE, None
    if entity.instance:
        kind = HoldKind.MIG
        part = min(1.0, (entity.sample.memory_total_bytes or 0) / total) if total else 1.0
        memory = entity.sample.memory_used_bytes if not holder.replica else None
    if holder.replica:
        kind = HoldKind.REPLICA if kind is HoldKind.WHOLE else kind
        part /= parts
    if holder.claim:
        kind = HoldKind.CLAIM
        part /= parts
    use = None
    if holder.part:
        kind = HoldKind.SHARE
        of_memory = holder.share_bytes / total if total else 0.0
        part = min(1.0, holder.share_percent / 100 or of_memory)
        use = shares.get((holder.namespace, holder.pod, holder.container, uuid))
    return Hold(
        who=PodContainer(holder.namespace, holder.pod, holder.container, kind),
        uuid=uuid,
        part=part,
        used_ns=None if use is None else use.used_ns,
        memory_bytes=memory if use is None else use.memory_bytes,
        life=0 if use is None else use.life,
    )


def _both(one: Hold, other: Hold) -> Hold:
    """Return the hold of a container that has several replicas or instances of one GPU."""
    known = one.memory_bytes is not None and other.memory_bytes is not None
    memory = (one.memory_bytes or 0) + (other.memory_bytes or 0) if known else None
    return msgspec.structs.replace(one, part=min(1.0, one.part + other.part), memory_bytes=memory)
