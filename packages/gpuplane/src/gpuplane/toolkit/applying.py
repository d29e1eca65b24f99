"""Making a host as planned, and taking it back: the order of writing, telling the runtime, and remembering.

Invariants:

- The previous file is on record before it is changed (`gpuplane.host.changes`). The restart of the runtime is on record
  until it is done: dying in between leaves no runtime with an old configuration.
- The runtime is reloaded only when a file that it reads has changed.
- A configuration with which the runtime does not come back is taken back, and not tried again as long as it would be
  the same.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import logging
from collections.abc import Callable, Iterable

import msgspec

from gpuplane import names
from gpuplane.host import (
    Before,
    ChangeRecord,
    ChangesState,
    Host,
    HostError,
    apply_changes,
    base_of,
    forget,
    go_back,
    load_state,
    mark_ready,
    note,
    observe_file,
    pass_through,
    put_back,
    save_state,
    unmark_ready,
)
from gpuplane.toolkit import docker, health, leftovers
from gpuplane.toolkit.facts import ToolkitError, decoded
from gpuplane.toolkit.observing import COMPONENT, place_of
from gpuplane.toolkit.places import RuntimeName, RuntimePaths
from gpuplane.toolkit.planning import ToolkitPlan, strip_record
from gpuplane.toolkit.restart import Sleep, forgets, revive, tell
from kubekit.errors import InvalidInput

log = logging.getLogger("gpuplane.toolkit")

LOCK = "run/gpuplane-toolkit.lock"
_PENDING = "pending"
_NOT_THE_RUNTIMES = (f"{names.CDI_DIR}/", f"{names.TOOLKIT_DIR}/")  # folders that no runtime reads at its start


async def apply(
    host: Host, plan: ToolkitPlan, *, restart: bool = True, sleep: Sleep = asyncio.sleep
) -> tuple[str, ...]:
    """Make the host as planned; the paths that were changed.

    Args:
        restart: also tell the runtime, if it has to know.

    Raises:
        Locked: another process is at it.
        HostError: the file system refuses; the files are as they were.
        ToolkitError: the runtime cannot be restarted, or does not come back; its files are then as they were.
    """
    with host.lock(LOCK):
        state = load_state(host, COMPONENT)
        notes = state.notes if state is not None else {}
        if notes.get("refused") == plan.digest:
            raise ToolkitError(
                "RuntimeDown",
                f"{plan.place.name} did not come back with this configuration, which was taken back",
                where=host.shown(plan.place.config),
                cure=f"see `journalctl -u {plan.place.units[0]}` and `gpuplane toolkit configure --dry-run`",
            )
        if state is not None and place_of(state) not in (None, plan.place):
            # another runtime than before: the configuration of the other one is taken back
            await _unconfigure(host, state, restart, sleep)
            state, notes = None, {}
        due = _due(host, plan) or notes.get("restart") == _PENDING
        place = msgspec.json.encode(plan.place).decode()
        version = ".".join(map(str, plan.version))
        if due and restart and state is not None:
            await _let_go(host, plan.place, state, plan, sleep)
        leftovers.leave(host, COMPONENT, plan.place, {file.path for file in plan.files})
        changed = _write(host, plan, {"place": place, "version": version, "restart": _PENDING if due else ""}, state)
        if due:
            if restart:
                try:
                    await tell(host, plan.place, sleep, plan.runtimes)
                except ToolkitError as error:
                    raise await _take_back(host, plan, error, sleep) from error
            note(host, COMPONENT, {"restart": ""})
        mark_ready(host, names.TOOLKIT_READY)
        return changed


async def unconfigure(host: Host, *, restart: bool = True, sleep: Sleep = asyncio.sleep) -> tuple[str, ...]:
    """Give the host back what was there, byte for byte; the paths that were changed. Nothing recorded, nothing done."""
    with host.lock(LOCK):
        unmark_ready(host, names.TOOLKIT_READY)
        state = load_state(host, COMPONENT)
        if state is None:
            forget(host, COMPONENT)  # remains of a first attempt that died
            leftovers.clear(host, None)
            return ()
        return await _unconfigure(host, state, restart, sleep)


async def _unconfigure(host: Host, state: ChangesState, restart: bool, sleep: Sleep) -> tuple[str, ...]:
    place = place_of(state)
    touched = concern_the_runtime(record.path for record in state.records)
    if touched and not state.notes.get("refused"):
        note(host, COMPONENT, {"restart": _PENDING})
    if restart and touched and place is not None and not state.notes.get("refused"):
        await _let_go(host, place, state, None, sleep)
    leftovers.clear(host, place)
    leftovers.leave(host, COMPONENT, place)
    changed = go_back(host, COMPONENT, _stripper(place))
    if restart and touched and place is not None and not state.notes.get("refused"):
        await tell(host, place, sleep)
    forget(host, COMPONENT)
    return changed


async def _let_go(host: Host, place: RuntimePaths, state: ChangesState, plan: ToolkitPlan | None, sleep: Sleep) -> None:
    """Have a running docker forget the runtimes that its file is not going to name any more (see docker.py)."""
    record = state.record(place.config)
    if place.runtime is not RuntimeName.DOCKER or record is None:
        return
    now, where = observe_file(host, place.config), f"/{place.config}"
    base = base_of(now, record, functools.partial(_stripper(place), record))
    planned = next((file.data for file in plan.files if file.path == place.config), None) if plan is not None else None
    try:
        then = decoded(base.data if planned is None else planned, where)
        text = docker.between(decoded(now.data, where), then, where)
        (had, _), (has, default) = (docker.runtimes(each, where) for each in (decoded(now.data, where), text))
    except InvalidInput:
        return  # an unreadable file does not show docker's state
    if text != then and await health.info(host, place) is not None:
        pass_through(host, COMPONENT, place.config, text.encode(), base)
        await forgets(host, place, had - has, default, sleep)


def configured(host: Host) -> RuntimePaths | None:
    """The runtime that is configured now, as far as the record says."""
    state = load_state(host, COMPONENT)
    return place_of(state) if state is not None else None


def concern_the_runtime(paths: Iterable[str]) -> bool:
    """Return whether the runtime has to read its configuration again when these files change."""
    return any(not path.startswith(_NOT_THE_RUNTIMES) for path in paths)


def diff(host: Host, plan: ToolkitPlan) -> str:
    """Return the changes of `apply` as a unified diff that `patch -p1` takes in the host's root; "" when nothing
    changes.
    """
    parts = []
    for file in plan.files:
        now = host.read(file.path)
        if now != file.data:
            parts.append(_diff(host, file.path, now, file.data))
    return "".join(parts)


def undo_diff(host: Host) -> str:
    """Return the changes of `unconfigure`, in the form of `diff`."""
    state = load_state(host, COMPONENT)
    strip = _stripper(place_of(state) if state is not None else None)
    parts = []
    for record in state.records if state is not None else ():
        now = observe_file(host, record.path)
        then = base_of(now, record, functools.partial(strip, record))
        if now.fingerprint != then.fingerprint:
            parts.append(_diff(host, record.path, _content(now), _content(then)))
    return "".join(parts)


def _content(file: Before) -> bytes | None:
    return None if file.kind == "absent" else file.data


def _stripper(place: RuntimePaths | None) -> Callable[[ChangeRecord, Before], Before]:
    def strip(record: ChangeRecord, now: Before) -> Before:
        return strip_record(place, record, now) if place is not None else record.before

    return strip


def _due(host: Host, plan: ToolkitPlan) -> bool:
    """Return whether a file changes that the runtime reads only on a reload."""
    state = load_state(host, COMPONENT)
    planned = {file.path for file in plan.files}
    gone = [record.path for record in (state.records if state else ()) if record.path not in planned]
    return concern_the_runtime(gone) or any(
        file.path in plan.restart_for and host.read(file.path) != file.data for file in plan.files
    )


def _write(host: Host, plan: ToolkitPlan, notes: dict[str, str], state: ChangesState | None) -> tuple[str, ...]:
    """The files, all or none: a full or read-only file system is seen at any of them."""
    was = {file.path: (observe_file(host, file.path), file.above) for file in plan.files}
    adopted = leftovers.directories_of(host)
    try:
        changed = apply_changes(host, COMPONENT, plan.files, notes, _stripper(plan.place))
        _adopt(host, adopted)
        return changed
    except HostError:
        log.error("file not written, restoring the others")
        if state is None:
            go_back(host, COMPONENT, _stripper(plan.place))
            forget(host, COMPONENT)
        else:
            for path, (before, above) in was.items():
                put_back(host, path, before, above=above)
        raise


def _adopt(host: Host, directories: tuple[str, ...]) -> None:
    """Record directories that an earlier configuration made, and whose removal was left to a program."""
    state = load_state(host, COMPONENT)
    missing = [name for name in directories if state is not None and name not in state.made and host.exists(name)]
    if state is not None and missing:
        made = sorted({*state.made, *missing}, key=lambda path: (path.count("/"), path))
        save_state(host, COMPONENT, msgspec.structs.replace(state, made=tuple(made)))


async def _take_back(host: Host, plan: ToolkitPlan, error: ToolkitError, sleep: Sleep) -> ToolkitError:
    """The configuration of before, for a runtime that did not come back with ours; the error to tell."""
    leftovers.leave(host, COMPONENT, plan.place)
    go_back(host, COMPONENT, _stripper(plan.place))
    note(host, COMPONENT, {"refused": plan.digest, "restart": ""})
    log.error("configuration taken back runtime=%s", plan.place.name)
    lives = await revive(host, plan.place, sleep)
    after = "it answers again with the configuration of before" if lives else "nor with the configuration of before"
    return ToolkitError(error.reason, f"{error.what}; {after}", where=error.where, cure=error.cure)


def _diff(host: Host, path: str, old: bytes | None, new: bytes | None) -> str:
    path = _without_links(host, path)
    shown = "/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}"
    if b"\0" in (old or b"") or b"\0" in (new or b""):
        return f"Binary files {shown[0]} and {shown[1]} differ\n"  # as diff(1) says it; patch(1) passes over it
    before, after = (_lines((data or b"").decode(errors="replace")) for data in (old, new))
    lines = difflib.unified_diff(before, after, *shown, n=3 if old and new else 0)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """As `patch` counts them: only a newline ends one."""
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _without_links(host: Host, path: str) -> str:
    """The path as `patch` needs it, which follows no links."""
    known, rest = path, ""
    while known:
        real = host.real(known)
        if real is not None:
            return f"{real}{rest}".lstrip("/")
        known, _, name = known.rpartition("/")
        rest = f"/{name}{rest}"
    return path
