"""Shares, slots and GPUs for the tests of limits, and what a process of the library would write."""

from __future__ import annotations

import os
from ctypes import sizeof

from gpuplane.hardware import GPUFacts
from gpuplane.limits import page
from gpuplane.limits.facts import GpuLimit, GpuUse, LimitBackend, Limits, OnGpu, Owner, ProcessSlot, Share, Totals
from gpuplane.limits.store import ShareStore

GIB = 1 << 30
A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"


def gpu(index: int, memory_gib: int = 15, uuid: str = "") -> GPUFacts:
    return GPUFacts(
        index=index,
        minor=index,
        uuid=uuid or (A, B)[index],
        model="Tesla T4",
        memory_bytes=memory_gib * GIB,
        pci="0000:00:1e.0",
        compute=(7, 5),
    )


def limits(*uuids: str, core: int = 30, memory: int = 5 * GIB) -> Limits:
    return Limits(tuple(GpuLimit(uuid=uuid, core=core, memory_bytes=memory) for uuid in uuids or (A,)))


def slot(
    pid: int, *, number: int = 0, namespace: int = 7, start: int = 100, held: int = 0, other: int = 0
) -> ProcessSlot:
    owner = page.owner_word(pid, namespace, start)
    uses = (GpuUse(held_bytes=held, context_bytes=1, other_bytes=other),)
    return ProcessSlot(number=number, owner=owner, namespace=namespace, start=start, generation=1, gpus=uses)


def share(
    name: str,
    *slots: ProcessSlot,
    uuid: str = A,
    core: int = 30,
    memory: int = 5 * GIB,
    totals: Totals | None = None,
    backend: LimitBackend = LimitBackend.INTERPOSED,
    unsteady: frozenset[int] = frozenset(),
    deserted: frozenset[int] = frozenset(),
) -> Share:
    return Share(
        id=name,
        owner=Owner(name=name, backend=backend),
        limits=limits(uuid, core=core, memory=memory),
        tenant=1,
        slots=slots,
        totals=(totals or Totals(),),
        unsteady=unsteady,
        deserted=deserted,
    )


def on_gpu(
    pid: int, memory: int | None, *, namespace: int | None = 7, inner: int = 0, uuid: str = A, of: str = ""
) -> OnGpu:
    return OnGpu(
        uuid=uuid,
        pid=pid,
        start=100,
        owner=page.owner_word(inner or pid, namespace or 0, 100),
        namespace_known=namespace is not None,
        memory_bytes=memory,
        name="python",
        share=of,
    )


def write_slot(
    store: ShareStore,
    name: str,
    number: int,
    owner: int,
    held: int,
    namespace: int = 0,
    changes: tuple[int, int] = (0, 0),
) -> None:
    """Write a page as the library does when a process takes a slot and memory of the share's first GPU."""
    slot = page.UsageSlot(owner=owner, start_ticks=owner >> 38, pid_namespace=namespace, generation=1)
    slot.changes_begun, slot.changes_ended = changes
    slot.gpus[0].held, slot.gpus[0].context = held, 100
    handle = os.open(store.directory(name) / "usage", os.O_RDWR)
    try:
        os.pwrite(handle, bytes(slot), page.UsagePage.slots.offset + number * sizeof(page.UsageSlot))
        high = int.from_bytes(os.pread(handle, 8, page.UsagePage.high_water.offset), "little")
        os.pwrite(handle, max(high, number + 1).to_bytes(8, "little"), page.UsagePage.high_water.offset)
    finally:
        os.close(handle)
