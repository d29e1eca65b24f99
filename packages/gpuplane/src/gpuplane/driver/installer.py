"""Changing a host's driver: the edge around `gpuplane.driver.decide`.

Installing is stepwise: each step is decided on fresh facts, recorded before it is made (see `gpuplane.host.changes`),
and harmless to repeat. One installer works on a host at a time, held apart by a lock that dies with its holder.

Package managers write to a released driver's root, and a kill may leave it broken. `busy` in the record says that this
may have happened: then the root is deleted and made again. A tool that fails by itself leaves the root usable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re

import msgspec

from gpuplane import names
from gpuplane.driver import steps as stepping
from gpuplane.driver.decide import Action, DriverDecision, DriverFacts, decide
from gpuplane.driver.failures import DriverError, failure
from gpuplane.driver.families import Parameter, Put, Run, Step, Unless
from gpuplane.driver.hook import hook_files
from gpuplane.driver.node_command import command_files
from gpuplane.driver.observing import COMPONENT, compiler_of, module_version, observe
from gpuplane.driver.released import MODULES, RECOMMENDED, Released, WantedDriver
from gpuplane.host import (
    Command,
    Completed,
    Host,
    HostError,
    apply_changes,
    load_state,
    note,
    revert,
    unmark_ready,
)

log = logging.getLogger("gpuplane.driver")

LOCK = "run/gpuplane-driver.lock"
_MAX_STEPS = 16  # stop, unload, clear, mount, install, build, load, start, done: twice as many as there can be
_DAEMON_LOOKS, _LOOK_SECONDS = 50, 0.1  # how long a daemon may take to end
_WRITING = (Action.INSTALL, Action.BUILD)
_AFTER_A_FAILURE = (*_WRITING, Action.LOAD)  # where a try begins whose root is mounted already
_MADE_FOR_IMAGES = (
    *(f"{names.DRIVER_ROOT}/lib/firmware", f"{names.DRIVER_ROOT}/lib"),
    *("run/nvidia-fabricmanager", "run/nvidia-topologyd", "dev/log"),
    *("run/mellanox/drivers/usr/src", "run/mellanox/drivers/usr", "run/mellanox/drivers", "run/mellanox"),
)
SETTLED = (Action.DONE, Action.PRESENT)


async def install(
    host: Host, *, wanted: WantedDriver = RECOMMENDED, may_install: bool = True
) -> tuple[DriverFacts, DriverDecision]:
    """Go on until the driver is loaded; what is there then, and whether it is ours (DONE) or the host's (PRESENT).

    Args:
        wanted: the driver to install where there is none.
        may_install: False only finds a driver that is there, and loads it.

    Raises:
        DriverError: with the reason, when it cannot be done.
        Locked: another installer is at work.
    """
    facts = observe(host, wanted=wanted, may_install=may_install)
    decision = decide(facts)
    if decision.action in SETTLED:
        return facts, decision
    with host.lock(LOCK):
        if facts.mounted and decision.action in _AFTER_A_FAILURE:
            await _run(host, stepping.refresh(facts.file_systems))
        for _ in range(_MAX_STEPS):
            facts = observe(host, wanted=wanted, may_install=may_install, before=facts)
            decision = decide(facts)
            if decision.action in SETTLED:
                return facts, decision
            await _act(host, facts, decision)
    raise DriverError("NoProgress", f"still {decision.action} after {_MAX_STEPS} steps", where=str(host.root))


async def prepare(host: Host, kernel: str, *, wanted: WantedDriver) -> bool:
    """Make modules for a kernel that will be booted later; False when there is nothing to do.

    Raises:
        DriverError: with the reason, when it cannot be done; what is loaded keeps working.
    """
    facts = observe(host, wanted=wanted)
    ready = facts.installed == facts.package.digest and facts.mounted
    if not ready or kernel in facts.built:
        return False
    facts = msgspec.structs.replace(facts, compiler=compiler_of(host, kernel))
    with host.lock(LOCK):
        await _write_root(host, facts, Action.BUILD, kernel)
    return True


async def uninstall(host: Host) -> tuple[str, ...]:
    """Take back what `install` did, byte for byte; the paths that changed. A driver of the host's own stays.

    Raises:
        DriverError: ModuleInUse; no file was changed then.
    """
    with host.lock(LOCK):
        facts = observe(host)
        state = load_state(host, COMPONENT)
        if state is not None and state.notes.get("loaded") == "ours" and module_version(host):
            await _stop_daemons(host, facts)
            await _unload(host)
        if state is not None and state.notes.get("begun"):
            await _run(host, stepping.clear(facts.mounted))
            await _run(host, (stepping.reset_firmware(),))
        if facts.mounted_other and not module_version(host):
            # A driver container that was killed left its root mounted.
            await _run(host, (stepping.unmount(),))
        # Also what a kubelet made for a driver image to mount; directories in use are not empty.
        for path in _MADE_FOR_IMAGES:
            with contextlib.suppress(HostError):  # a foreign mount
                host.remove_dir(path)
        host.remove_dir(names.DRIVER_ROOT)
        _remove_char_links(host)
        changed = revert(host, COMPONENT)
        # Proofs with this driver are void now; no other process is left to remove them.
        for ready in (names.PLUGIN_READY, names.CUDA_READY, names.DRIVER_READY, names.NEW_KERNEL, names.WRONG_GPUS):
            unmark_ready(host, ready)
    for path in changed:
        log.info("driver file restored path=%s", host.shown(path))
    return changed


def _remove_char_links(host: Host) -> None:
    """Take away the links in /dev/char that the validator made to the driver's nodes."""
    for link in (host.read_text(names.CHAR_LINKS) or "").split():
        host.remove(link, durable=False)
    if host.remove(names.CHAR_LINKS, durable=False):
        host.remove_dir("dev/char")


async def _act(host: Host, facts: DriverFacts, decision: DriverDecision) -> None:
    action = decision.action
    if action is Action.FAIL:
        raise DriverError(decision.reason, decision.what, where=decision.where, cure=decision.cure)
    log.info("driver action=%s", action.value)
    if action is Action.UNLOAD:
        await _unload(host)
    elif action is Action.RELEASE:
        await _run(host, stepping.steps(action, facts))
    elif action is Action.STOP:
        await _stop_daemons(host, facts)
    elif action is Action.LOAD and load_state(host, COMPONENT) is None:
        await _load(host)  # the host's own, which needs no root of ours
    else:
        await _act_released(host, facts, facts.package, action)


def _who_loaded(host: Host, facts: DriverFacts) -> str:
    state = load_state(host, COMPONENT)
    ours = not facts.module or (state is not None and state.notes.get("loaded") == "ours")
    return "ours" if ours else "host"


async def _act_released(host: Host, facts: DriverFacts, driver: Released, action: Action) -> None:
    if action is Action.CLEAR:
        await _run(host, stepping.steps(action, facts))
        note(host, COMPONENT, {"begun": "", "digest": "", "built": "", "busy": ""})
    elif action is Action.MOUNT:
        if facts.installed != driver.digest:
            notes = {
                "version": driver.version,
                "begun": driver.digest,
                "digest": "",
                "loaded": _who_loaded(host, facts),
            }
            _write_host_files(host, notes)
        await _mount(host, facts)
    elif action in _WRITING:
        await _write_root(host, facts, action)
    else:
        note(host, COMPONENT, {"loaded": "ours"})
        await _run(host, stepping.steps(action, facts), driver)


def _write_host_files(host: Host, notes: dict[str, str]) -> None:
    """Write what is on the host itself: the hooks, and `nvidia-smi` where that is possible."""
    hooks = hook_files(host)
    command = command_files(host, load_state(host, COMPONENT))
    try:
        apply_changes(host, COMPONENT, (*hooks, *command), notes)
    except HostError as error:
        if not command:
            raise
        log.warning("nvidia-smi of the node left out: %s", error)
        apply_changes(host, COMPONENT, hooks, notes)


async def _mount(host: Host, facts: DriverFacts) -> None:
    """All mounts or none: the first one is what shows that the root is there."""
    try:
        await _run(host, stepping.steps(Action.MOUNT, facts))
    except (DriverError, asyncio.CancelledError):
        await asyncio.shield(host.runner.run(_command(host, stepping.unmount())))
        raise


async def _write_root(host: Host, facts: DriverFacts, action: Action, kernel: str = "") -> None:
    """Let package managers and installers write into the driver's root."""
    kernel = kernel or facts.kernel
    note(host, COMPONENT, {"busy": action.value})
    try:
        await _run(host, stepping.steps(action, facts, kernel), facts.package)
    except DriverError as error:
        if error.reason != "DiskFull" and not error.reason.endswith("Killed"):
            note(host, COMPONENT, {"busy": ""})
        raise
    except asyncio.CancelledError:
        # A signal in the middle: nothing half made stays mounted. A loaded driver keeps its root.
        if not module_version(host):
            await asyncio.shield(host.runner.run(_command(host, stepping.unmount())))
        raise
    if action is Action.INSTALL:
        note(host, COMPONENT, {"digest": facts.package.digest, "busy": ""})
    else:
        signed = facts.signing.fingerprint
        # A new key makes the modules of other kernels useless.
        others = facts.built if signed == _signature(host) else ()
        note(host, COMPONENT, {"built": " ".join((*others, kernel)), "signed": signed, "busy": ""})


def _signature(host: Host) -> str:
    """The fingerprint of the key that the modules were signed with; "" for none."""
    state = load_state(host, COMPONENT)
    return state.notes.get("signed", "") if state is not None else ""


async def _run(host: Host, steps: tuple[Step, ...], driver: Released | None = None) -> None:
    """Carry out steps in their order; those of `driver` with its proxies.

    Raises:
        DriverError: for the first that fails.
    """
    root = Host(host.root / names.DRIVER_ROOT, host.runner)
    found = ""
    for step in steps:
        if isinstance(step, Put):
            root.write_atomic(step.path, step.data, mode=step.mode)
            continue
        if isinstance(step, Parameter):
            if (host.read_text(step.path) or "") == step.instead_of:
                with contextlib.suppress(HostError):
                    host.write_in_place(step.path, f"{step.value}\n".encode())
            continue
        if isinstance(step, Unless):
            if not await _all_succeed(host, step.probes, driver):
                await _run(host, step.steps, driver)
            continue
        if step.unless and root.exists(step.unless):
            continue
        done = await host.runner.run(_command(host, step, driver, found))
        if done.code and step.otherwise:
            log.info("command failed, trying another command=%r: %s", " ".join(step.otherwise), done.last_words)
            again = await host.runner.run(_command(host, step, driver, found, step.otherwise))
            done = done if again.code else again  # the plain way tells more
        if done.code and not step.lenient:
            raise failure(done, str(root.root if step.in_root else host.root), driver)
        if step.find:
            found = _found(step, done, str(root.root), driver)


async def _all_succeed(host: Host, probes: tuple[Run, ...], driver: Released | None) -> bool:
    for probe in probes:
        done = await host.runner.run(_command(host, probe, driver))
        if done.code or not re.search(probe.find, done.stdout):
            return False
    return True


def _found(step: Run, done: Completed, root: str, driver: Released | None) -> str:
    match = re.search(step.find, done.stdout)
    if match is None:  # as where the package is missing
        none = msgspec.structs.replace(done, stdout="", stderr="No packages found")
        raise failure(none, root, driver)
    return match.group(1)


def _command(
    host: Host, step: Run, driver: Released | None = None, found: str = "", argv: tuple[str, ...] = ()
) -> Command:
    env = dict(driver.wanted.proxies) if driver is not None and step.in_root else {}
    words = tuple(word.replace("{found}", found) for word in argv or step.argv)
    return Command(words, host.root, step.timeout, env, inside=names.DRIVER_ROOT if step.in_root else "")


async def _stop_daemons(host: Host, facts: DriverFacts) -> None:
    """Ask the driver's daemons to end, and wait for it."""
    if not facts.daemons:
        return
    await _run(host, stepping.stop(facts.daemons))
    for _ in range(_DAEMON_LOOKS):
        if not observe(host, before=facts).daemons:
            return
        await asyncio.sleep(_LOOK_SECONDS)
    running = ", ".join(f"{name} ({pid})" for name, pid in observe(host, before=facts).daemons)
    raise DriverError("DaemonStays", f"{running} does not end", where="/run", cure="kill it, or reboot the node")


async def _unload(host: Host) -> None:
    loaded = observe(host)
    if loaded.users:
        raise DriverError(
            "ModuleInUse",
            f"driver {loaded.module} is in use by {loaded.users} open files or mappings",
            where="/sys/module/nvidia",
            cure="end the processes that use the GPUs first",
        )
    for module in loaded.loaded:
        done = await host.run("rmmod", module)
        if done.code:
            raise failure(done, str(host.root))


async def _load(host: Host) -> None:
    """Load the modules of a host's own driver, which need not have all of them."""
    done = await host.run("modprobe", "-a", *MODULES)
    if done.code and not module_version(host):
        raise failure(done, str(host.root))
