"""Observing and changing a host's driver: the edge around `gpuplane.driver.decide`.

Installing is stepwise: each step is decided on fresh facts, recorded before it is made (see `gpuplane.host.changes`),
and harmless to repeat. One installer works on a host at a time, held apart by a lock that dies with its holder.
"""

from __future__ import annotations

import logging
import re

import msgspec

from gpuplane import names
from gpuplane.driver.decide import Action, Decision, Facts, decide
from gpuplane.driver.package import MODULES, files, find_package
from gpuplane.errors import Terminal
from gpuplane.host import (
    LIBRARY_DIRS,
    Completed,
    Host,
    State,
    apply_changes,
    library_dir,
    load_state,
    note,
    read_os_release,
    revert,
    unmark_ready,
)

log = logging.getLogger("gpuplane.driver")

COMPONENT = "driver"
LOCK = "run/gpuplane-driver.lock"
_UNLOAD_ORDER = ("nvidia_drm", "nvidia_peermem", "nvidia_modeset", "nvidia_uvm", "nvidia")
_NVIDIA, _DISPLAY = "0x10de", ("0x0300", "0x0302")
_MAX_STEPS = 8  # install, unload, load, done: twice as many as there can be


class DriverError(Terminal):
    """The driver cannot be made to work; `reason` is the CamelCase cause that the stage shows."""

    def __init__(self, reason: str, what: str, *, where: str = "", cure: str = "") -> None:
        super().__init__(what, where=where, cure=cure)
        self.reason = reason


def observe(host: Host, *, may_install: bool = True, before: Facts | None = None) -> Facts:
    """The facts that `decide` wants.

    Args:
        may_install: the administrator's word, passed through.
        before: facts of a moment ago, for what no step of ours changes.
    """
    state = load_state(host, COMPONENT)
    complete = state is not None and _complete(host, state)
    loaded = _loaded(host)
    return Facts(
        gpus=_count_gpus(host) if before is None else before.gpus,
        module=_module_version(host),
        users=sum(module.users for module in loaded.values()),
        unloaded=tuple(module for module in MODULES if module.replace("-", "_") not in loaded),
        library=_library(host) if state is None else "",
        installed=None if state is None else state.notes.get("digest", "") if complete else "",
        package=find_package(host) if before is None else before.package,
        may_install=may_install,
        kernel=host.read_text("proc/sys/kernel/osrelease") or "",
        library_dir=library_dir(read_os_release(host)) if before is None else before.library_dir,
    )


async def install(host: Host, *, may_install: bool = True) -> tuple[Facts, Decision]:
    """Go on until the driver is loaded; what is there then, and whether it is ours (DONE) or the host's (PRESENT).

    Args:
        may_install: False only finds a driver that is there, and loads it.

    Raises:
        DriverError: with the reason, when it cannot be done.
        Locked: another installer is at work.
    """
    facts = observe(host, may_install=may_install)
    decision = decide(facts)
    if decision.action in (Action.DONE, Action.PRESENT):
        return facts, decision
    with host.lock(LOCK):
        for _ in range(_MAX_STEPS):
            facts = observe(host, may_install=may_install, before=facts)
            decision = decide(facts)
            if decision.action in (Action.DONE, Action.PRESENT):
                return facts, decision
            await _act(host, facts, decision)
    raise DriverError("NoProgress", f"still {decision.action} after {_MAX_STEPS} steps", where=str(host.root))


async def uninstall(host: Host) -> tuple[str, ...]:
    """Take back what `install` did, byte for byte; the paths that changed. A driver of the host's own stays.

    Raises:
        DriverError: ModuleInUse; nothing was changed then.
    """
    with host.lock(LOCK):
        state = load_state(host, COMPONENT)
        if state is not None and state.notes.get("loaded") == "ours" and _module_version(host):
            await _unload(host)
        changed = revert(host, COMPONENT)
        # What was proved with the driver falls with it; nobody else is left to take it back.
        for ready in (names.PLUGIN_READY, names.CUDA_READY, names.DRIVER_READY):
            unmark_ready(host, ready)
    for path in changed:
        log.info("driver: took back %s", host.shown(path))
    return changed


async def _act(host: Host, facts: Facts, decision: Decision) -> None:
    if decision.action is Action.FAIL:
        raise DriverError(decision.reason, decision.what, where=decision.where, cure=decision.cure)
    log.info("driver: %s", decision.action.value)
    if decision.action is Action.INSTALL:
        assert facts.package is not None, "decided only with a package"
        state = load_state(host, COMPONENT)
        ours = not facts.module or (state is not None and state.notes.get("loaded") == "ours")
        notes = {"version": facts.package.version, "digest": "", "loaded": "ours" if ours else "host"}
        wanted = files(facts.package, facts.library_dir, facts.kernel)
        apply_changes(host, COMPONENT, wanted, notes)
        # The digest comes last: with it the installation counts as whole, and the next start looks no further.
        note(host, COMPONENT, {"digest": facts.package.digest})
    elif decision.action is Action.LOAD:
        await _load(host)
    elif decision.action is Action.UNLOAD:
        await _unload(host)


async def _unload(host: Host) -> None:
    loaded = _loaded(host)
    for module in _UNLOAD_ORDER:
        if module in loaded:
            _check(host, await host.run("rmmod", module))


async def _load(host: Host) -> None:
    """Load all modules by one command. A host's own driver need not have all of them, ours has."""
    done = await host.run("modprobe", "-a", *MODULES)
    if load_state(host, COMPONENT) is not None or not _module_version(host):
        _check(host, done)


def _check(host: Host, done: Completed) -> None:
    """Raise DriverError for a host tool that failed, with what it said."""
    if done.code == 0:
        return
    tool = done.command.argv[0]
    where = f"{done.command}, in {host.root}"
    if done.code in (126, 127):
        raise DriverError(
            f"{tool.capitalize()}Missing",
            f"the host has no {tool}",
            where=where,
            cure="install the package kmod on the node",
        )
    if "in use" in done.last_words:
        raise DriverError("ModuleInUse", done.last_words, where=where, cure="stop what uses the GPUs first")
    raise DriverError(
        f"{tool.capitalize()}Failed", done.last_words, where=where, cure="see `dmesg | grep -i nvrm` on the node"
    )


def _count_gpus(host: Host) -> int:
    base = "sys/bus/pci/devices"
    devices = (host.read_files(f"{base}/{address}", ("vendor", "class")) for address in host.list(base))
    return sum(1 for d in devices if d.get("vendor") == _NVIDIA and d.get("class", "")[:6] in _DISPLAY)


def _library(host: Host) -> str:
    """The directory in which the host has NVML, "" for none."""
    return next((path for path in LIBRARY_DIRS if host.exists(f"{path}/libnvidia-ml.so.1")), "")


def _complete(host: Host, state: State) -> bool:
    """Whether all that was installed is still there."""
    wanted: dict[str, set[str]] = {}
    for record in state.records:
        directory, _, name = record.path.rpartition("/")
        wanted.setdefault(directory, set()).add(name)
    return all(names_in <= set(host.list(directory)) for directory, names_in in wanted.items())


class Module(msgspec.Struct, frozen=True):
    """A loaded kernel module; `users` are those that are no modules themselves: open files, mappings."""

    users: int


def _loaded(host: Host) -> dict[str, Module]:
    """The driver's loaded modules, by the names that /proc/modules has for them (format: proc(5))."""
    found = {}
    for line in (host.read_text("proc/modules") or "").splitlines():
        name, _, references, dependents, *_ = [*line.split(), "", "", "", ""]
        if name in _UNLOAD_ORDER:
            modules = 0 if dependents in ("", "-") else dependents.strip(",").count(",") + 1
            found[name] = Module(max(0, int(references) - modules) if references.isdigit() else 0)
    return found


def _module_version(host: Host) -> str:
    """The version of the loaded kernel module, "" when it is not loaded."""
    version = host.read_text("sys/module/nvidia/version")
    if version:
        return version
    said = re.search(r"Kernel Module\s+(\d+\.\d[\d.]*)", host.read_text("proc/driver/nvidia/version") or "")
    return said.group(1) if said else ""
