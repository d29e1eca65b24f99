"""The directories of limits below one base: made, read, resized and removed.

    <base>/shares/<id>/limits, usage, owner.json   and the arbiter's socket `turns` (see gpuplane.limits.arbiter)
    <base>/gpus/<uuid>/context                     the least cost of a context, as long as the GPU is shared
    <base>/copies/<id>                             what `limits` was written as (see gpuplane.limits.copies)
    <base>/lib/                                    the interposed libraries (see gpuplane.limits.injection)

Invariants:

- A share's directory appears whole or not at all; then its files change in place, word by word, since processes have
  them mapped. A writer that dies in between leaves at most a directory with a dot before its name, which the next one
  removes.
- Writing and removing shares exclude each other, by a lock that the kernel frees: an agent may sweep at any time.
- Writing the same again changes nothing, so a restarted agent takes nothing back.
- Files that containers may write are read and written through the descriptor and never mapped: one that is made shorter
  under a mapping would kill us.
- With `on_host`, `usage` lies on a file system of its own size where mounts can be made (see gpuplane.limits.bounds).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from ctypes import sizeof
from pathlib import Path
from typing import Final

import msgspec

from gpuplane.limits import page
from gpuplane.limits.bounds import bound, is_bounded, remove_tree
from gpuplane.limits.copies import drop_copy, put_copy, restore
from gpuplane.limits.decide import Correction, Freed, HostPid
from gpuplane.limits.facts import Limits, Owner, Share
from gpuplane.limits.files import drop_attributes, has_size, make_dirs, opened, put, read_page
from kubekit.documents import DocumentError, decode_json
from kubekit.errors import InvalidInput, KubekitError, Terminal

log = logging.getLogger("gpuplane.limits")

_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_WORD: Final = 8
_OWNER: Final = "owner.json"
_SLOTS: Final = page.UsagePage.slots.offset


class ShareStore:
    """All shares below `base`, which is made when the first one is.

    Args:
        on_host: `base` as the container runtime has it, for shares of containers: what they may write is bounded then.
    """

    def __init__(self, base: Path, on_host: Path | None = None) -> None:
        self.base = base
        self._on_host = on_host
        self._unbounded = ""  # the last reason that was logged

    def directory(self, share: str) -> Path:
        """Return the directory of a share's files. Raises InvalidInput for an id that is no plain name."""
        if not _ID.fullmatch(share):
            raise InvalidInput(f"{share!r} is no id of a share", where="limits", cure="letters, digits, '.', '_', '-'")
        return self.base / "shares" / share

    def context_bytes(self, uuid: str) -> int:
        """The least that a context has been seen to cost on a GPU; 0 while none has been measured."""
        try:
            return int((self.base / "gpus" / uuid / "context").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def learn_context(self, uuid: str, size: int) -> None:
        """A process was seen to hold this besides its allocations; shares written from now on begin with the least."""
        known = self.context_bytes(uuid)
        if not known or size < known:
            place = self.base / "gpus" / uuid
            make_dirs(place)
            put(place / "context", str(size).encode(), 0o644)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Alone among those who choose a GPU by what is held, and then write; the kernel frees it when we die."""
        with self._alone("choosing"):
            yield

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        make_dirs(self.base)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(self.base / f".{what}", flags, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    # -- writing ---------------------------------------------------------------------------------------------------

    def write(self, share: str, limits: Limits, owner: Owner) -> Path:
        """Make the directory of a share; existing files stay, with the use that is counted in them.

        For the same owner and GPUs the limits are resized. For another owner everything starts from zero.

        Raises:
            InvalidInput: limits that no page can carry.
        """
        with self._alone("writing"):
            return self._write(share, self._with_contexts(limits), owner)

    def _write(self, share: str, limits: Limits, owner: Owner) -> Path:
        directory = self.directory(share)
        tenant, used = 0, page.to_bytes(page.fresh(page.UsagePage))
        with contextlib.suppress(KubekitError, FileNotFoundError):
            now = self.read(share)
            if _same_life(now.owner, owner) and _uuids(now.limits) == _uuids(limits):
                self._resize(share, limits)
                if now.owner != owner:
                    put(directory / _OWNER, msgspec.json.encode(owner), 0o644)
                if self._on_host is None or is_bounded(directory / "usage", len(used)):
                    return directory
                # After a reboot, or of an earlier release: made again, so that the arbiter opens the file above.
                with opened(directory / "usage", os.O_RDONLY) as handle:
                    used = os.pread(handle, len(used), 0).ljust(len(used), b"\0")
                tenant = now.tenant
        made = page.encode_limits(limits, tenant=tenant or secrets.randbits(63) + 1, name=owner.name)
        fresh = directory.with_name(f".{share}.new")
        remove_tree(fresh)  # of one who died
        make_dirs(fresh)
        try:
            put(fresh / "limits", page.to_bytes(made), 0o644)
            put(fresh / "usage", used, 0o666)
            put(fresh / _OWNER, msgspec.json.encode(owner), 0o644)
            if not self._bound(share, fresh / "usage") and tenant:
                return directory
            self._remove(share)
            put_copy(self.base, share, page.to_bytes(made))
            fresh.rename(directory)
        finally:
            remove_tree(fresh)
        return directory

    def _bound(self, share: str, usage: Path) -> bool:
        """Bound the file that a container may write, before any process has it open. Returns whether it is."""
        if self._on_host is None:
            return False
        stage = self.directory(share).with_name(f".{share}.bound")
        remove_tree(stage)  # of one who died
        reason = bound(usage, sizeof(page.UsagePage), stage, self._on_host / usage.relative_to(self.base))
        if reason and reason != self._unbounded:
            log.warning("usage pages not bounded, a container can fill the disk for a second: %s", reason)
        self._unbounded = reason
        return not reason

    def resize(self, share: str, limits: Limits) -> bool:
        """Give a living share other values; False when it has them. Its GPUs stay the same.

        Raises:
            Terminal: there is no such share, it is of another release, or its GPUs are others.
        """
        with self._alone("writing"):
            return self._resize(share, limits)

    def _resize(self, share: str, limits: Limits) -> bool:
        path = self.directory(share) / "limits"
        limits = self._with_contexts(limits)
        now = self.read(share).limits
        if now == limits:
            return False
        if _uuids(now) != _uuids(limits):
            raise Terminal("a living share keeps its GPUs", where=str(path), cure="restart the container")
        with opened(path, os.O_RDWR) as file, mmap.mmap(file, sizeof(page.LimitsPage)) as mapped:
            words = page.LimitsPage.from_buffer(mapped)
            for place, limit in zip(words.gpus, limits.gpus, strict=False):
                page.put_limit(place, limit)
            words.flags = page.FAIL_OPEN if limits.fail_open else 0
            words.generation += 1
            put_copy(self.base, share, bytes(words))
            del words, place  # a mapping in use cannot be closed
        return True

    def _with_contexts(self, limits: Limits) -> Limits:
        """The limits with what contexts are known to cost, where they do not say it themselves."""
        gpus = [
            limit
            if limit.context_bytes
            else msgspec.structs.replace(limit, context_bytes=self.context_bytes(limit.uuid))
            for limit in limits.gpus
        ]
        return msgspec.structs.replace(limits, gpus=tuple(gpus))

    def correct(self, correction: Correction) -> None:
        """Write what a process holds besides its allocations."""
        offset = _SLOTS + correction.slot * sizeof(page.UsageSlot)
        offset += page.UsageSlot.gpus.offset + correction.gpu * sizeof(page.UsageGpu) + page.UsageGpu.other.offset
        self._poke(correction.share, offset, correction.bytes)

    def put_pid(self, pid: HostPid) -> None:
        """Write the id that a process has on the machine, so that NVML's lists in its container have it."""
        offset = _SLOTS + pid.slot * sizeof(page.UsageSlot) + page.UsageSlot.host_pid.offset
        self._poke(pid.share, offset, pid.pid)

    def free(self, freed: Freed) -> None:
        """Clear a slot, its owner word last, so that no process takes a half cleared slot."""
        offset = _SLOTS + freed.slot * sizeof(page.UsageSlot)
        path = self.directory(freed.share) / "usage"
        with opened(path, os.O_RDWR) as handle:
            if int.from_bytes(os.pread(handle, _WORD, offset), "little") == freed.owner:
                os.pwrite(handle, bytes(sizeof(page.UsageSlot) - _WORD), offset + _WORD)
                os.pwrite(handle, bytes(_WORD), offset)

    def vacate(self, share: str) -> None:
        """Clear all slots of a share whose container is about to start again, so that it has no live process.

        Those that were before had another pid namespace, and the new ones could not judge them.
        """
        with opened(self.directory(share) / "usage", os.O_RDWR) as handle:
            os.ftruncate(handle, sizeof(page.UsagePage))  # blocks behind its end would take the room of the page
        for slot in self.read(share).slots:
            self.free(Freed(share, slot.number, slot.owner))

    def _poke(self, share: str, offset: int, value: int) -> None:
        with opened(self.directory(share) / "usage", os.O_RDWR) as handle:
            os.pwrite(handle, value.to_bytes(_WORD, "little"), offset)

    def remove(self, share: str) -> None:
        """Take a share away; nothing when there is none."""
        with self._alone("writing"):
            self._remove(share)
            self._forget_contexts()

    def _remove(self, share: str) -> None:
        directory = self.directory(share)
        gone = directory.with_name(f".{share}.gone")
        remove_tree(gone)
        with contextlib.suppress(FileNotFoundError):
            directory.rename(gone)
        remove_tree(gone)
        drop_copy(self.base, share)

    def clear(self) -> None:
        """Remove everything below the base, and the base. Raises OSError when something cannot be removed."""
        for place in (*self._places(""), *self._places(".")):
            remove_tree(place)
        shutil.rmtree(self.base)

    def sweep(self, is_gone: Callable[[Share], bool]) -> tuple[str, ...]:
        """Remove the shares that are gone, and what a writer that died has left; the ids of the former."""
        removed = [share.id for share in self.all() if is_gone(share) and self._remove_if(share.id, is_gone)]
        if self._places("."):
            with self._alone("writing"):  # who made these is not at it any more
                for place in self._places("."):
                    remove_tree(place)
        return tuple(removed)

    def _remove_if(self, share: str, is_gone: Callable[[Share], bool]) -> bool:
        """Remove a share that is still gone: another container may have its directory meanwhile."""
        with self._alone("writing"), contextlib.suppress(KubekitError, FileNotFoundError):
            if is_gone(self.read(share)):
                self._remove(share)
                self._forget_contexts()
                return True
        return False

    def _forget_contexts(self) -> None:
        """Forget what a context costs on GPUs without a share: their driver may be another one later."""
        shared = {limit.uuid for share in self.all() for limit in share.limits.gpus}
        for place in (self.base / "gpus").glob("*"):
            if place.name not in shared:
                shutil.rmtree(place, ignore_errors=True)

    def mend(self) -> tuple[tuple[str, str], ...]:
        """Give usage pages that a container has cut, lengthened or relabelled their size and head again.

        So a container can neither hide from the agent nor fill the disk. Blocks behind the end of a page and attributes
        of its file are taken away too: neither is seen in its size. Processes whose slots a container cut off are
        escapes, which the agent reports. A limits page that was changed past this store gets its content again.

        Returns:
            The ids and the names of the shares that were mended.
        """
        mended = []
        head = page.to_bytes(page.fresh(page.UsagePage))[: page.UsageHead.high_water.offset]
        for place in self._places(""):
            with contextlib.suppress(KubekitError, OSError):
                rewritten = self._restore(place)
                limits = read_page(place / "limits", page.LimitsPage)
                assert isinstance(limits, page.LimitsPage)
                page.refuse_foreign(limits, str(place))
                with opened(place / "usage", os.O_RDWR) as handle:
                    right = has_size(handle, sizeof(page.UsagePage)) and not drop_attributes(handle)
                    relabelled = not right or os.pread(handle, len(head), 0) != head
                    if relabelled:
                        # First the size: a file system of the page's size has no room while blocks lie behind its end.
                        os.ftruncate(handle, sizeof(page.UsagePage))
                        os.pwrite(handle, head, 0)
                    if relabelled or rewritten:
                        mended.append((place.name, limits.name.decode(errors="replace")))
        return tuple(mended)

    def _restore(self, place: Path) -> bool:
        copy, page_path = self.base / "copies" / place.name, place / "limits"
        with contextlib.suppress(FileNotFoundError):
            if copy.read_bytes() == page_path.read_bytes():
                return False
        with self._alone("writing"):  # it may just be resized
            return restore(self.base, place.name, page_path)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, share: str) -> Share:
        """A share as it is now.

        Raises:
            FileNotFoundError: there is none.
            Terminal: its files are damaged or of another release.
        """
        directory = self.directory(share)
        limits_page = read_page(directory / "limits", page.LimitsPage)
        assert isinstance(limits_page, page.LimitsPage)
        limits = page.decode_limits(limits_page, str(directory / "limits"))
        try:
            with opened(directory / _OWNER, os.O_RDONLY) as handle:
                owner = decode_json(os.pread(handle, os.fstat(handle).st_size, 0), Owner)
        except DocumentError as error:
            raise Terminal(f"it is damaged: {error}", where=str(directory / _OWNER)) from error
        return self.again(Share(id=share, owner=owner, limits=limits, tenant=limits_page.tenant))

    def again(self, share: Share) -> Share:
        """A share with its use as it is now. Raises as `read` does."""
        path = self.directory(share.id) / "usage"
        with opened(path, os.O_RDONLY) as handle:
            data = os.pread(handle, _SLOTS, 0)
            if len(data) < _SLOTS:
                raise Terminal("it is too short", where=str(path), cure="delete the share; it is made again")
            head = page.UsageHead.from_buffer_copy(data)
            page.refuse_foreign(head, str(path))
            # Slots behind the high water are zero. Tenants can write the page, so it may lie.
            slots = os.pread(handle, min(head.high_water, page.SLOTS) * sizeof(page.UsageSlot), _SLOTS)
        gpus = len(share.limits.gpus)
        return msgspec.structs.replace(
            share, slots=page.decode_slots(slots, gpus), totals=page.decode_totals(head, gpus)
        )

    def all(self) -> tuple[Share, ...]:
        """All shares that can be read; those that are just being removed, or are of another release, are left out."""
        found = []
        for place in self._places(""):
            with contextlib.suppress(KubekitError, FileNotFoundError):
                found.append(self.read(place.name))
        return tuple(found)

    def _places(self, begin: str) -> list[Path]:
        folder = self.base / "shares"
        if not folder.is_dir():
            return []
        hidden = begin == "."
        return sorted(place for place in folder.iterdir() if place.name.startswith(".") is hidden)


def _same_life(one: Owner, other: Owner) -> bool:
    if one.pod_uid or other.pod_uid:
        return (one.pod_uid, one.container) == (other.pod_uid, other.container)
    return (one.name, one.since) == (other.name, other.since)


def _uuids(limits: Limits) -> tuple[str, ...]:
    return tuple(limit.uuid for limit in limits.gpus)
