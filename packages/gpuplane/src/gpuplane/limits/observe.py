"""Reads the current state: the pages of all shares, and the processes that NVML sees on their GPUs. The agent's thin
edge.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from gpuplane import names
from gpuplane.hardware import GPUSource
from gpuplane.limits import processes
from gpuplane.limits.facts import Observation, OnGpu, ProcessSlot, Share
from gpuplane.limits.page import owner_word, without_namespace
from gpuplane.limits.processes import ProcessFacts, ProcessIdentity, facts_of, start_of
from gpuplane.limits.store import ShareStore
from kubekit.errors import KubekitError


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
        # What of a process never changes, until another has its id.
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
        return Observation(at_ns=seen, shares=shares, processes=found)

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


def unsteady(before: Share, now: Share) -> frozenset[int]:
    """The slots in which memory was taken or given back between two readings, or is just being taken."""
    old = {slot.number: _held(slot) for slot in before.slots}
    asking = {slot.number for slot in now.slots if any(use.asking_bytes for use in slot.gpus)}
    return frozenset({slot.number for slot in now.slots if old.get(slot.number) != _held(slot)} | asking)


def _held(slot: ProcessSlot) -> tuple[int, ...]:
    return slot.owner, *(use.held_bytes for use in slot.gpus)


def _deserted(share: Share, living: frozenset[int] | None, ended: frozenset[int]) -> frozenset[int]:
    return frozenset(
        slot.number
        for slot in share.slots
        if slot.owner in ended or (living is not None and slot.namespace and slot.namespace not in living)
    )
