"""The agent's decisions: pure functions from observations to words to write and escapes to report.

- The library counts what a process allocates. Only NVML sees the memory of contexts, modules and the driver;
  the difference is written next to the process's own words, and counts as held from then on.
- A process on a shared GPU without a slot escaped the library or never loaded it: the library takes the slot before the
  program can have a context. It counts as an escape at first sight, or many short ones would not be seen.
- A process in the books that does more than its share may is an escape too (breach.py).
- Slots are cleared by the library itself when another process of the share starts. The agent clears those of processes
  that have ended: another process may never start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from gpuplane.limits.breach import Escape, Worked, breaches, worked
from gpuplane.limits.facts import LimitBackend, Observation, OnGpu, ProcessSlot, Share
from gpuplane.limits.page import without_namespace

LEAST_CONTEXT: Final = 16 << 20


class Correction(msgspec.Struct, frozen=True, order=True):
    """Bytes that a process holds besides its allocations: `gpu` is the position among its limits."""

    share: str
    slot: int
    gpu: int
    bytes: int


class HostPid(msgspec.Struct, frozen=True, order=True):
    """The id of a process on the machine, by which NVML lists it."""

    share: str
    slot: int
    pid: int


class Freed(msgspec.Struct, frozen=True, order=True):
    """A slot whose process has ended."""

    share: str
    slot: int
    owner: int


class EscapeState(msgspec.Struct, frozen=True, kw_only=True):
    """The state between two observations: processes that may be escapes, those that were reported, and the books of
    time.
    """

    suspects: frozenset[tuple[str, int, int, str]] = frozenset()
    reported: frozenset[tuple[str, int, int, str]] = frozenset()
    worked: Worked = MappingProxyType({})


class EnforcementPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a decision: words to write, the lowest cost of a context (by UUID), all escapes, and the new ones
    among them.
    """

    corrections: tuple[Correction, ...] = ()
    contexts: Mapping[str, int] = MappingProxyType({})
    pids: tuple[HostPid, ...] = ()
    freed: tuple[Freed, ...] = ()
    escapes: tuple[Escape, ...] = ()
    fresh: tuple[Escape, ...] = ()


def decide(state: EscapeState, seen: Observation) -> tuple[EscapeState, EnforcementPlan]:
    """One step of the agent."""
    entries = {process: _entry(process, seen.shares) for process in seen.processes}
    measured = _measured(entries)
    outside = [
        Escape(process.uuid, process.pid, process.start, process.memory_bytes or 0, process.name, process.share)
        for process, entry in entries.items()
        if entry is None and process.owner not in seen.left and _may_escape(process, seen.shares)
    ]
    suspects = dict(breaches(seen, entries, state.worked))
    sure = [escape for escape, at_once in suspects.items() if at_once or escape.key in state.suspects]
    escapes = sorted(outside + sure)
    plan = EnforcementPlan(
        corrections=tuple(sorted(_corrections(measured))),
        contexts=_least(measured),
        pids=tuple(
            sorted(
                {
                    HostPid(entry[0].id, entry[1].number, process.pid)
                    for process, entry in entries.items()
                    if entry is not None and entry[1].host_pid != process.pid
                }
            )
        ),
        freed=tuple(
            Freed(share.id, slot.number, slot.owner)
            for share in seen.shares
            for slot in share.slots
            if slot.number in share.deserted
        ),
        escapes=tuple(escapes),
        fresh=tuple(escape for escape in escapes if escape.key not in state.reported),
    )
    after = EscapeState(
        suspects=frozenset(suspect.key for suspect in suspects),
        reported=frozenset(escape.key for escape in escapes),
        worked=worked(seen),
    )
    return after, plan


def _entry(process: OnGpu, shares: tuple[Share, ...]) -> tuple[Share, ProcessSlot] | None:
    """The books' entry of a process. Where several fit, since the word is shortened, its own share's."""
    found = [
        (share, slot)
        for share in shares
        if share.limits.of(process.uuid) is not None
        for slot in share.slots
        if _same(process, slot)
    ]
    own = [entry for entry in found if entry[0].id == process.share]
    return next(iter(own or found), None)


def _same(process: OnGpu, slot: ProcessSlot) -> bool:
    if process.namespace_known:
        return process.owner == slot.owner
    return without_namespace(process.owner) == without_namespace(slot.owner)


def _may_escape(process: OnGpu, shares: tuple[Share, ...]) -> bool:
    """Return whether others hold parts of the process's GPU, and it is not a share's that something else enforces."""
    if any(share.id == process.share and share.owner.backend is not LimitBackend.INTERPOSED for share in shares):
        return False
    return any(
        share.owner.backend is LimitBackend.INTERPOSED and share.limits.of(process.uuid) is not None for share in shares
    )


def _measured(entries: Mapping[OnGpu, tuple[Share, ProcessSlot] | None]) -> list[tuple[str, Share, ProcessSlot, int]]:
    """Return what each process in the books holds besides its allocations, where it can be derived: by UUID."""
    found = []
    for process, entry in entries.items():
        if entry is None or process.memory_bytes is None:
            continue
        share, slot = entry
        if slot.number not in share.unsteady:
            use = slot.gpus[_position(share, process.uuid)]
            found.append((process.uuid, share, slot, max(0, process.memory_bytes - use.held_bytes)))
    return found


def _least(measured: list[tuple[str, Share, ProcessSlot, int]]) -> dict[str, int]:
    """By UUID; only what was seen twice, since a context is not made at once, and no less than any context takes.

    A tenant can write what it holds into its books, and all later containers are charged what is found here.
    """
    found: dict[str, int] = {}
    for uuid, share, slot, other in measured:
        if other >= LEAST_CONTEXT and other == slot.gpus[_position(share, uuid)].other_bytes:
            found[uuid] = min(other, found.get(uuid, other))
    return found


def _corrections(measured: list[tuple[str, Share, ProcessSlot, int]]) -> Iterator[Correction]:
    """The words that differ from what stands there."""
    for uuid, share, slot, other in measured:
        position = _position(share, uuid)
        if other != slot.gpus[position].other_bytes:
            yield Correction(share.id, slot.number, position, other)


def _position(share: Share, uuid: str) -> int:
    return next(position for position, limit in enumerate(share.limits.gpus) if limit.uuid == uuid)
