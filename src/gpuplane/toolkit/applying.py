"""Making a host as planned, and taking it back: the order of writing, telling the runtime, and remembering.

Invariants:

- What was there is on record before it is changed (`gpuplane.host.changes`), and that the runtime still has to be told
  is on record until it was: dying in between leaves no runtime with an old configuration.
- The runtime is told only when a file that it reads has changed.
- A configuration with which the runtime does not come back is taken back, and not tried again as long as it would be
  the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import functools
import logging

from gpuplane import names
from gpuplane.host import (
    Before,
    Host,
    apply_changes,
    base_of,
    forget,
    go_back,
    load_state,
    mark_ready,
    note,
    observe_file,
    unmark_ready,
)
from gpuplane.toolkit.facts import RuntimeName, ToolkitError
from gpuplane.toolkit.observing import COMPONENT
from gpuplane.toolkit.planning import CONFIGS, Plan, strip_record
from gpuplane.toolkit.restart import Sleep, tell

log = logging.getLogger("gpuplane.toolkit")

LOCK = "run/gpuplane-toolkit.lock"
_PENDING = "pending"
_RUNTIME_FILES = ("etc/containerd/", "etc/docker/", "etc/crio/")


async def apply(host: Host, plan: Plan, *, restart: bool = True, sleep: Sleep = asyncio.sleep) -> tuple[str, ...]:
    """Make the host as planned; the paths that were changed.

    Args:
        restart: also tell the runtime, if it has to know.

    Raises:
        Locked: another process is at it.
        ToolkitError: the runtime cannot be told, or does not come back; its files are then as they were.
    """
    with host.lock(LOCK):
        state = load_state(host, COMPONENT)
        notes = state.notes if state is not None else {}
        if notes.get("refused") == plan.digest:
            raise ToolkitError(
                "RuntimeDown",
                f"{plan.runtime.value} did not come back with this configuration, which was taken back",
                where=host.shown(CONFIGS[plan.runtime]),
                cure=f"see `journalctl -u {plan.runtime.value}` and `gpuplane toolkit configure --dry-run`",
            )
        due = _due(host, plan) or notes.get("restart") == _PENDING
        kept = {"runtime": plan.runtime.value, "restart": _PENDING if due else ""}
        changed = apply_changes(host, COMPONENT, plan.files, kept, strip_record)
        if due:
            if restart:
                try:
                    await tell(host, plan.runtime, sleep)
                except ToolkitError:
                    await _take_back(host, plan, sleep)
                    raise
            note(host, COMPONENT, {"restart": ""})
        mark_ready(host, names.TOOLKIT_READY)
        return changed


async def unconfigure(host: Host, *, restart: bool = True, sleep: Sleep = asyncio.sleep) -> tuple[str, ...]:
    """Give the host back what was there, byte for byte; the paths that were changed. Nothing recorded, nothing done."""
    with host.lock(LOCK):
        unmark_ready(host, names.TOOLKIT_READY)
        state = load_state(host, COMPONENT)
        if state is None:
            forget(host, COMPONENT)  # what a first attempt that died has left beside
            return ()
        note(host, COMPONENT, {"restart": _PENDING})
        changed = go_back(host, COMPONENT, strip_record)
        touched = any(record.path.startswith(_RUNTIME_FILES) for record in state.records)
        if restart and touched and (runtime := state.notes.get("runtime", "")) in list(RuntimeName):
            await tell(host, RuntimeName(runtime), sleep)
        forget(host, COMPONENT)
        return changed


def diff(host: Host, plan: Plan) -> str:
    """What `apply` would change, as a unified diff that `patch -p1` takes in the host's root; "" when nothing."""
    parts = []
    for file in plan.files:
        now = host.read(file.path)
        if now != file.data:
            parts.append(_diff(file.path, now, file.data))
    return "".join(parts)


def undo_diff(host: Host) -> str:
    """What `unconfigure` would change, as `diff` shows it."""
    state = load_state(host, COMPONENT)
    parts = []
    for record in state.records if state is not None else ():
        now = observe_file(host, record.path)
        then = base_of(now, record, functools.partial(strip_record, record))
        if now.fingerprint != then.fingerprint:
            parts.append(_diff(record.path, _content(now), _content(then)))
    return "".join(parts)


def _content(file: Before) -> bytes | None:
    return None if file.kind == "absent" else file.data


def _due(host: Host, plan: Plan) -> bool:
    """Whether a file changes that the runtime reads only when it is told."""
    state = load_state(host, COMPONENT)
    planned = {file.path for file in plan.files}
    gone = any(
        record.path.startswith(_RUNTIME_FILES) and record.path not in planned
        for record in (state.records if state is not None else ())
    )
    return gone or any(file.path in plan.restart_for and host.read(file.path) != file.data for file in plan.files)


async def _take_back(host: Host, plan: Plan, sleep: Sleep) -> None:
    """The configuration of before, for a runtime that did not come back with ours."""
    go_back(host, COMPONENT, strip_record)
    note(host, COMPONENT, {"refused": plan.digest, "restart": ""})
    log.error("%s: its configuration was taken back", plan.runtime.value)
    with contextlib.suppress(ToolkitError):  # the first error is the one to tell
        await tell(host, plan.runtime, sleep)


def _diff(path: str, old: bytes | None, new: bytes | None) -> str:
    before, after = ((data or b"").decode(errors="replace").splitlines(keepends=True) for data in (old, new))
    lines = difflib.unified_diff(
        before,
        after,
        "/dev/null" if old is None else f"a/{path}",
        "/dev/null" if new is None else f"b/{path}",
        n=3 if old and new else 0,
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
