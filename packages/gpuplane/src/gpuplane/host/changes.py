"""Records an operand's changes on a host, the state before, and the way back: byte for byte.

An operand names the files and links it wants (`ManagedFile`, `ManagedLink`). Before any change, a state file records
the previous content of each. Undoing restores it and removes the directories that were made, then the state file
itself.

Invariants:

- The record is on the disk before the change it is about. Dying between any two steps leaves a host from which both
  `apply_changes` and `revert` reach their end.
- `before` of a path is what the path returns to. It is taken from the file system only when what lies there is not
  ours (`base_of`), so applying twice never takes our own work for the original.
- Running either twice is running it once; only differences are written.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from gpuplane import names
from gpuplane.host.errors import HostError
from gpuplane.host.files import Host
from kubekit.errors import Terminal

log = logging.getLogger("gpuplane.host")


class Before(msgspec.Struct, frozen=True, omit_defaults=True):
    """The previous content of a path: nothing, a file (`data`, permissions, owner) or a link (`target`)."""

    kind: Literal["absent", "file", "link"] = "absent"
    data: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    target: str = ""

    @property
    def fingerprint(self) -> str:
        """Names the content: equal for equal files and links."""
        if self.kind == "file":
            return _fingerprint(self.data)
        return f"{self.kind}:{self.target}"


def _fingerprint(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


_known_fingerprint = functools.lru_cache(maxsize=64)(_fingerprint)
"""For what is installed again and again: programs of megabytes, on thousands of hosts in one process."""


class ManagedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that shall be so.

    `before` is what the path returns to, where the caller knows better than `base_of`. `durable=False` is for files
    below `run/`, which need no flushing, `above` for directories of which a program reads every file (see
    `write_atomic`).
    """

    path: str
    data: bytes
    mode: int = 0o644
    before: Before | None = None
    durable: bool = True
    above: bool = False

    @property
    def fingerprint(self) -> str:
        return _known_fingerprint(self.data)


class ManagedLink(msgspec.Struct, frozen=True, kw_only=True):
    """A symbolic link that shall be so."""

    path: str
    target: str
    before: Before | None = None

    @property
    def fingerprint(self) -> str:
        return Before("link", target=self.target).fingerprint


class ChangeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One changed path: how it was, and the fingerprint of what we made of it.

    `after` has one entry, or, between the record of a change and the change itself, also those of the time before.
    """

    path: str
    before: Before
    after: tuple[str, ...]
    above: bool = False


class ChangesState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state file: the records in the order of the changes, and what the component wants to remember.

    `made` are the directories that were missing, outermost first; not those of the state file, which are ours anyway.
    """

    version: int = 1
    notes: dict[str, str] = {}
    records: tuple[ChangeRecord, ...] = ()
    made: tuple[str, ...] = ()

    def record(self, path: str) -> ChangeRecord | None:
        return next((record for record in self.records if record.path == path), None)


def state_path(component: str) -> str:
    return f"{names.STATE_DIR}/{component}/state.json"


def load_state(host: Host, component: str) -> ChangesState | None:
    """The record of `component`; None when it changed nothing.

    Raises:
        Terminal: the file cannot be read as one of ours.
    """
    path = state_path(component)
    data = host.read(path)
    if data is None:
        return None
    try:
        state = msgspec.json.decode(data, type=ChangesState)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Terminal(
            f"it is not a record of changes: {error}",
            where=host.shown(path),
            cure="restore it from a backup, or move it away to take what is on the host now as the original",
        ) from error
    if state.version != 1:
        raise Terminal(
            f"its version is {state.version}, this gpuplane knows 1",
            where=host.shown(path),
            cure="use the release that wrote it",
        )
    return state


def save_state(host: Host, component: str, state: ChangesState) -> None:
    """Write the record of `component`, for a caller that takes a path over from it."""
    path = state_path(component)
    if not host.write_atomic(path, msgspec.json.encode(state), mode=0o600):
        host.clear_leftover(path)


def observe(host: Host, path: str) -> Before:
    """Read the content of `path`; a link is reported as a link only where nothing but gpuplane's own link belongs (see
    Link).
    """
    target = host.readlink(path)
    if target is not None:
        return Before("link", target=target)
    return observe_file(host, path)


def observe_file(host: Host, path: str) -> Before:
    """The file at `path`, seen through links."""
    found = host.load(path)
    if found is None:
        return Before()
    data, seen = found
    return Before("file", data, stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid)


def base_of(current: Before, record: ChangeRecord | None, strip: Callable[[Before], Before] | None = None) -> Before:
    """Return the content that a path shall return to, given its current content.

    Nothing recorded: the current content. Unchanged since our write: the recorded content. Otherwise another writer
    edited it since, or we died before changing it: `strip` removes gpuplane's part (and must leave a content without it
    alone); without `strip`, the recorded content.
    """
    if record is not None and current.fingerprint in record.after:
        return record.before
    if strip is not None:
        return strip(current)
    return current if record is None else record.before


def apply_changes(
    host: Host,
    component: str,
    wanted: Sequence[ManagedFile | ManagedLink],
    notes: Mapping[str, str] | None = None,
    strip: Callable[[ChangeRecord, Before], Before] | None = None,
) -> tuple[str, ...]:
    """Make the host so, and record how to go back; the paths that were changed.

    Paths recorded earlier that are not wanted any more go back to what they were (`strip` as for `revert`). An empty
    `wanted` still records `notes`.
    """
    old = load_state(host, component)
    state = _planned(host, component, old, wanted, dict(notes or {}))
    gone = tuple(r for r in (old.records if old else ()) if all(r.path != w.path for w in wanted))
    # what leaves stays recorded until it has gone back
    save_state(host, component, msgspec.structs.replace(state, records=gone + _with_former(state.records, old)))
    changed = [record.path for record in reversed(gone) if _back(host, record, strip)]
    for want in wanted:
        if isinstance(want, ManagedLink):
            done = host.symlink(want.path, want.target)
        else:
            done = host.write_atomic(want.path, want.data, mode=want.mode, durable=want.durable, above=want.above)
        if done:
            log.info("file written component=%s path=%s", component, host.shown(want.path))
            changed.append(want.path)
        else:
            host.clear_leftover(want.path)
    for directory in reversed(state.made):
        host.remove_dir(directory)  # only an empty one goes
    save_state(host, component, msgspec.structs.replace(state, made=tuple(d for d in state.made if host.exists(d))))
    return tuple(changed)


def revert(
    host: Host,
    component: str,
    strip: Callable[[ChangeRecord, Before], Before] | None = None,
) -> tuple[str, ...]:
    """Undo everything recorded for `component`; the paths that were changed, none when nothing is recorded.

    Args:
        strip: for a file that was edited since: gets the record and the file, returns the file without gpuplane's part.
        Without it such a file stays as it is.
    """
    changed = go_back(host, component, strip)
    forget(host, component)
    return changed


def go_back(
    host: Host,
    component: str,
    strip: Callable[[ChangeRecord, Before], Before] | None = None,
) -> tuple[str, ...]:
    """As `revert`, but the record stays, for a caller who has more to do that a crash must not make it miss."""
    state = load_state(host, component)
    if state is None:
        return ()
    changed, refused = [], []
    for record in reversed(state.records):
        try:
            if _back(host, record, strip):
                changed.append(record.path)
        except HostError:  # the others go back all the same, and may make the room that this one needs
            refused.append(record)
    changed += [record.path for record in refused if _back(host, record, strip)]
    for directory in reversed(state.made):
        host.remove_dir(directory)
    return tuple(changed)


def pass_through(host: Host, component: str, path: str, data: bytes, before: Before) -> None:
    """Make a recorded path `data` for a while, on its way to `before`; it counts as ours from before it is there."""
    state = load_state(host, component)
    if state is None or state.record(path) is None:
        return
    after = _fingerprint(data)
    records = tuple(
        msgspec.structs.replace(record, before=before, after=tuple(dict.fromkeys((*record.after, after))))
        if record.path == path
        else record
        for record in state.records
    )
    save_state(host, component, msgspec.structs.replace(state, records=records))
    host.write_atomic(path, data)


def forget(host: Host, component: str) -> None:
    """Delete the record; what it is about has to be back by then."""
    path = state_path(component)
    host.remove(path)
    host.clear_leftover(path)
    host.remove_dir(path.rpartition("/")[0])
    host.remove_dir(names.STATE_DIR)


def note(host: Host, component: str, notes: Mapping[str, str]) -> None:
    """Add to the notes of a record that exists."""
    state = load_state(host, component)
    if state is not None:
        save_state(host, component, msgspec.structs.replace(state, notes={**state.notes, **notes}))


def _planned(
    host: Host,
    component: str,
    old: ChangesState | None,
    wanted: Sequence[ManagedFile | ManagedLink],
    notes: dict[str, str],
) -> ChangesState:
    records = []
    for want in wanted:
        record = old.record(want.path) if old else None
        now = observe(host, want.path) if isinstance(want, ManagedLink) else observe_file(host, want.path)
        before = want.before if want.before is not None else base_of(now, record)
        above = isinstance(want, ManagedFile) and want.above
        records.append(ChangeRecord(want.path, before, (want.fingerprint,), above))
    parents = {want.path.rpartition("/")[0] for want in wanted}
    missing = {directory for parent in parents for directory in host.missing_dirs(f"{parent}/x")}
    made = sorted(missing.union(old.made if old else ()), key=lambda path: (path.count("/"), path))
    return ChangesState(notes=notes, records=tuple(records), made=tuple(made))


def _with_former(records: tuple[ChangeRecord, ...], old: ChangesState | None) -> tuple[ChangeRecord, ...]:
    """The records, also knowing as ours what we made of the same paths before."""

    def known(record: ChangeRecord) -> tuple[str, ...]:
        former = old.record(record.path) if old else None
        return tuple(dict.fromkeys(record.after + (former.after if former else ())))

    return tuple(msgspec.structs.replace(record, after=known(record)) for record in records)


def _back(host: Host, record: ChangeRecord, strip: Callable[[ChangeRecord, Before], Before] | None) -> bool:
    """Bring one path back; True when something was changed."""
    is_link = record.before.kind == "link" or any(after.startswith("link:") for after in record.after)
    now = observe(host, record.path) if is_link else observe_file(host, record.path)
    target = record.before
    if now.fingerprint not in (*record.after, target.fingerprint):
        target = strip(record, now) if strip is not None else now
        log.info("file was edited, removing gpuplane's part only path=%s", host.shown(record.path))
    changed = now.fingerprint != target.fingerprint
    host.clear_leftover(record.path)
    if changed:
        put_back(host, record.path, target, above=record.above)
    return changed


def put_back(host: Host, path: str, target: Before, *, above: bool = False) -> None:
    """Make the path what it was seen to be; `above` as for `write_atomic`."""
    if target.kind == "absent":
        host.remove(path)
    elif target.kind == "link":
        host.symlink(path, target.target)
    else:
        host.write_atomic(path, target.data, mode=target.mode, above=above)
        host.chmod(path, target.mode, target.uid, target.gid)
