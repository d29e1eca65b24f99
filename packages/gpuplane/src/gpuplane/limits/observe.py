"""Reads the current state: the pages of all shares, and the processes that NVML sees on their GPUs. The agent's thin
edge.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.hardware import GPUSource
from gpuplane.limits import processes
from gpuplane.limits.facts import Observation, OnGpu, ProcessSlot, Share
from gpuplane.limits.page import owner_word, without_namespace
from gpuplane.limits.processes import ProcessFacts, ProcessIdentity, facts_of, start_of
from gpuplane.limits.store import ShareStore
from kubekit.errors import KubekitError

_TRIES: Final = 8
"""So often it looks again at processes that allocate all the time: NVML's answer takes longer than an allocation."""


class Observer:
    """Looks at the shares of one store.

    Args:
        gpus: NVML, or None: no processes are seen then.
        only: the id of the one share that is looked at; None for all.
        clock: monotonic nanoseconds, the clock that the pages use.
    """

    def __init__(
        self,
        store: ShareStore,
        gpus: GPUSource | None,
        *,
        only: str | None = None,
        proc: Path = processes.PROC,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._store = store
        self._gpus = gpus
        self._only = only
        self._proc = proc
        self._clock = clock
        # Facts of a process that never change, until another has its id.
        self._known: dict[int, tuple[ProcessFacts, str]] = {}
        # Processes with a slot that NVML does not list, by the slot's owner word.
        self._found: dict[int, ProcessIdentity] = {}

    def observe(self) -> Observation:
        """Everything, read at about one moment. Raises KubekitError when NVML cannot be asked."""
        before = self._shares()
        found = self._processes(before) if self._gpus is not None else ()
        now = {share.id: fresh for share in before if (fresh := self._again(share)) is not None}
        seen = self._clock()
        living = self._living(before)
        ended = self._ended(now.values(), {process.owner for process in found})
        shares = tuple(
            msgspec.structs.replace(
                now[share.id],
                unsteady=unsteady(share, now[share.id]),
                deserted=_deserted(now[share.id], living, ended),
            )
            for share in before
            if share.id in now
        )
        for _ in range(_TRIES):
            if self._gpus is None or not any(share.unsteady for share in shares):
                break
            shares, found = self._look_closer(self._gpus, shares, found)
        left = {slot.owner for share in before for slot in share.slots}
        left -= {slot.owner for share in shares for slot in share.slots}
        return Observation(at_ns=seen, shares=shares, processes=found, left=frozenset(left))

    def _look_closer(
        self, gpus: GPUSource, shares: tuple[Share, ...], found: tuple[OnGpu, ...]
    ) -> tuple[tuple[Share, ...], tuple[OnGpu, ...]]:
        """Read the shares again in which something moved, and what NVML says of their GPUs, as fast as can be."""
        moving = {share.id: share for share in shares if share.unsteady}
        uuids = {limit.uuid for share in moving.values() for limit in share.limits.gpus}
        present = {process.uuid for process in found} & uuids
        before = {name: fresh for name, share in moving.items() if (fresh := self._again(share)) is not None}
        memory = {(uuid, process.pid): process.memory_bytes for uuid in present for process in gpus.processes(uuid)}
        now = {name: fresh for name, share in before.items() if (fresh := self._again(share)) is not None}
        calm = {name: moving[name].unsteady - unsteady(before[name], fresh) for name, fresh in now.items()}
        owners = {slot.owner for name, share in now.items() for slot in share.slots if slot.number in calm[name]}
        without = {without_namespace(owner) for owner in owners}
        return (
            tuple(_calmed(share, now[share.id], calm[share.id]) if share.id in now else share for share in shares),
            tuple(
                msgspec.structs.replace(process, memory_bytes=memory.get((process.uuid, process.pid)))
                if process.uuid in uuids and without_namespace(process.owner) in without
                else process
                for process in found
            ),
        )

    def _shares(self) -> tuple[Share, ...]:
        if self._only is None:
            return self._store.all()
        with contextlib.suppress(FileNotFoundError):
            return (self._store.read(self._only),)
        return ()

    def _again(self, share: Share) -> Share | None:
        with contextlib.suppress(FileNotFoundError, KubekitError):
            return self._store.again(share)
        return None  # it went away meanwhile

    def _processes(self, shares: tuple[Share, ...]) -> tuple[OnGpu, ...]:
        assert self._gpus is not None
        uuids = {limit.uuid for share in shares for limit in share.limits.gpus}
        present = [gpu.uuid for gpu in self._gpus.inventory() if gpu.uuid in uuids]
        places = self._places(shares)
        found: dict[tuple[str, int], OnGpu] = {}
        known: dict[int, tuple[ProcessFacts, str]] = {}
        for uuid in present:
            for process in self._gpus.processes(uuid):
                entry = known.get(process.pid) or self._facts(process.pid, places)
                if entry is None:
                    continue  # it has ended meanwhile
                known[process.pid] = entry
                facts, share = entry
                found[uuid, process.pid] = OnGpu(
                    uuid=uuid,
                    pid=process.pid,
                    start=facts.start,
                    owner=owner_word(facts.inner_pid, facts.namespace or 0, facts.start),
                    namespace_known=facts.namespace is not None,
                    memory_bytes=process.memory_bytes,
                    gpu_percent=process.gpu_percent,
                    video_percent=process.video_percent,
                    draws=process.draws,
                    name=facts.name,
                    share=share,
                )
        self._known = known
        return tuple(found.values())

    def _facts(self, pid: int, places: Mapping[str | tuple[int, int], str]) -> tuple[ProcessFacts, str] | None:
        old = self._known.get(pid)
        if old is not None and start_of(pid, self._proc) == old[0].start:
            return old
        facts = facts_of(pid, (names.LIMITS_ENV,), self._proc)
        return None if facts is None else (facts, self._share_of(facts, places))

    def _places(self, shares: tuple[Share, ...]) -> dict[str | tuple[int, int], str]:
        """Return the marks of each share's processes: its directory, or the file that a container has mounted."""
        found: dict[str | tuple[int, int], str] = {}
        for share in shares:
            directory = self._store.directory(share.id)
            found[str(directory)] = share.id
            try:
                info = (directory / "limits").stat()
            except FileNotFoundError:
                continue
            found[info.st_dev, info.st_ino] = share.id
        return found

    def _share_of(self, facts: ProcessFacts, places: Mapping[str | tuple[int, int], str]) -> str:
        mounted = self._proc / str(facts.pid) / "root" / names.LIMITS_MOUNT.lstrip("/") / "limits"
        try:
            info = mounted.stat()
        except OSError:  # not ours to look into, or nothing mounted
            return places.get(facts.environment.get(names.LIMITS_ENV, ""), "")
        return places.get((info.st_dev, info.st_ino), "")

    def _ended(self, shares: Iterable[Share], on_gpu: Collection[int]) -> frozenset[int]:
        """The owner words of processes that have ended, while others of their pid namespace run.

        Only slots of which NVML lists no process are looked up, and only until their process has been found.
        """
        self._found = {owner: one for owner, one in self._found.items() if processes.is_running(one, self._proc)}
        doubtful = {
            slot.owner: slot.namespace
            for share in shares
            for slot in share.slots
            if slot.namespace and slot.owner not in on_gpu and slot.owner not in self._found
        }
        if not doubtful:
            return frozenset()
        seen = processes.visible(set(doubtful.values()), self._proc)
        words = {
            owner_word(inner, namespace, start): ProcessIdentity(pid, start)
            for namespace, there in seen.namespaces.items()
            for (inner, start), pid in there.items()
        }
        self._found |= {owner: words[owner] for owner in doubtful if owner in words}
        blind = {owner_word(pid, 0, start) for pid, start in seen.blind}
        return frozenset(
            owner
            for owner, namespace in doubtful.items()
            if namespace in seen.namespaces and owner not in words and without_namespace(owner) not in blind
        )

    def _living(self, shares: tuple[Share, ...]) -> frozenset[int] | None:
        """The pid namespaces that live, looked up only when some slot is of another than ours."""
        own = facts_of(os.getpid())
        if all(own is not None and slot.namespace in (0, own.namespace) for share in shares for slot in share.slots):
            return None
        return processes.living_namespaces(self._proc)


def _calmed(share: Share, now: Share, calm: frozenset[int]) -> Share:
    """The share with the slots as they were when nothing moved in them."""
    fresh = {slot.number: slot for slot in now.slots if slot.number in calm}
    slots = tuple(fresh.get(slot.number, slot) for slot in share.slots)
    return msgspec.structs.replace(share, slots=slots, unsteady=share.unsteady - calm)


def unsteady(before: Share, now: Share) -> frozenset[int]:
    """The slots in which memory was taken or given back between two readings, or is just being taken or given back."""
    old = {slot.number: _held(slot) for slot in before.slots}
    moving = {slot.number for slot in now.slots if slot.changes[0] != slot.changes[1]}
    moving |= {slot.number for slot in now.slots if any(use.asking_bytes for use in slot.gpus)}
    return frozenset({slot.number for slot in now.slots if old.get(slot.number) != _held(slot)} | moving)


def _held(slot: ProcessSlot) -> tuple[int, ...]:
    return slot.owner, *slot.changes, *(use.held_bytes for use in slot.gpus)


def _deserted(share: Share, living: frozenset[int] | None, ended: frozenset[int]) -> frozenset[int]:
    return frozenset(
        slot.number
        for slot in share.slots
        if slot.owner in ended or (living is not None and slot.namespace and slot.namespace not in living)
    )
