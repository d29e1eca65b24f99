"""The driver operand: makes its node's driver work, says so in the GPUNode, and looks again when the host changes.

A stage is a fact about the node: when this ends, the driver stays. Only `uninstall` takes it back.

With NVIDIA's own driver image the operand runs twice in the pod: as init container, to leave a node with its own driver
alone and to take back a driver that gpuplane installed, and as sidecar, to watch for the driver and report. The mode is
in `DRIVER_SOURCE_ENV`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPU, Machine, Stage, StageName, StageState
from gpuplane.driver.decide import Action, DriverFacts
from gpuplane.driver.failures import DriverError
from gpuplane.driver.hook import BOOT_LINKS, new_kernel
from gpuplane.driver.installer import install, prepare
from gpuplane.driver.installer import uninstall as uninstall_from
from gpuplane.driver.observing import module_version, observe, own_root
from gpuplane.driver.released import WantedDriver, read_wanted
from gpuplane.hardware import to_api
from gpuplane.host import DriverReady, Host, HostError, Locked, gpu_addresses, mark_ready
from gpuplane.operand import OperandContext, StageOutcome, keep_stage, remove_stage, unanswering
from kubekit.errors import KubekitError, Retryable, Terminal

_ANSWER_TRIES = 5  # device nodes come a moment after the module
_WATCHED = (names.DRIVER_READY, names.NEW_KERNEL, "sys/module/nvidia/version", "proc/driver/nvidia/version")
_MOUNTED = (names.DRIVER_MODULES_DIR, names.DRIVER_REPOSITORIES_DIR, names.DRIVER_CERTIFICATES_DIR)
BEFORE_CONTAINER, CONTAINER = "before-container", "container"


async def run(context: OperandContext) -> None:
    """Install the driver or find it, report the stage, repeat when what it consists of changes; until cancelled."""
    host = context.host
    environment = context.variables
    source = environment.get(names.DRIVER_SOURCE_ENV, "")
    may_install = not source and environment.get(names.DRIVER_INSTALL_ENV, "true") != "false"
    wanted = read_wanted(environment, _mounted_files(context.pod_path))
    at = _Setting(context, host, may_install)
    seen: list[bytes | str | None] = []
    if source == BEFORE_CONTAINER and await _makes_room(host):
        return

    async def attempt() -> StageOutcome:
        # A driver that has just been loaded is reported before the modules of another kernel are made.
        ahead = bool(module_version(host))
        outcome = await (_settle_container(context, host) if source == CONTAINER else _settle(at, wanted, ahead))
        seen[:] = _watched(host) if ahead or source or not new_kernel(host) else ()
        return outcome

    async def until_changed() -> None:
        async for _ in host.watch(*_WATCHED, *BOOT_LINKS):
            if _watched(host) != seen:
                return

    await keep_stage(context, StageName.DRIVER, attempt, until_changed, reason_of)


async def uninstall(context: OperandContext) -> None:
    """Take back what was installed on this node, byte for byte; a driver of the host's own stays."""
    host = context.host

    async def undo() -> None:
        await uninstall_from(host)

    await remove_stage(context, StageName.DRIVER, undo, reason_of)


class _Setting(msgspec.Struct, frozen=True):
    """The operand's mode: where it works, and whether it may install."""

    context: OperandContext
    host: Host
    may_install: bool


async def _settle(at: _Setting, wanted: WantedDriver, ahead: bool) -> StageOutcome:
    facts, decision = await install(at.host, wanted=wanted, may_install=at.may_install)
    present = decision.action is Action.PRESENT
    said = await _prepare_next(at.host, facts, wanted) if ahead and not present else ""
    root = own_root(facts.library) if present else f"/{names.DRIVER_ROOT}" if facts.mounted else "/"
    outcome = await _report(at.context, at.host, facts.gpus, present=present, root=root)
    if not present:
        digest = facts.package.digest
        message = "; ".join(filter(None, (outcome.stage.message, said)))
        stage = msgspec.structs.replace(outcome.stage, message=message, digest=digest)
        return msgspec.structs.replace(outcome, stage=stage)
    return outcome


async def _settle_container(context: OperandContext, host: Host) -> StageOutcome:
    """Wait until the driver's container reports that its driver works; until then its pod shows the progress."""
    async for _ in host.watch(names.DRIVER_CONTAINER_READY, "sys/module/nvidia/version"):
        if host.exists(names.DRIVER_CONTAINER_READY) and module_version(host):
            break
    return await _report(context, host, observe(host).gpus, present=False, root=f"/{names.DRIVER_ROOT}")


async def _makes_room(host: Host) -> bool:
    """Return whether NVIDIA's image may install: not where the host has a driver, and only after ours is gone."""
    facts = observe(host)
    if facts.library:
        return False
    if facts.installed is not None:
        await uninstall_from(host)
    return True


async def _report(context: OperandContext, host: Host, gpus_there: int, *, present: bool, root: str) -> StageOutcome:
    version, cuda, gpus = await _ask_gpus(context)
    silent = [address for address in gpu_addresses(host) if address not in {gpu.pci for gpu in gpus}]
    nodes = root if host.exists(f"{root}/dev/nvidiactl".lstrip("/")) else "/"
    ready = DriverReady(host_driver=present, root=root, dev_root=nodes)
    mark_ready(host, names.DRIVER_READY, ready.encode())
    return StageOutcome(
        Stage(
            state=StageState.PRESENT if present else StageState.DONE,
            since=context.now(),
            message=f"{len(gpus)} of {gpus_there} GPUs answer" if len(gpus) < gpus_there else "",
            where=f"PCI {', '.join(silent)}" if silent else "",
            digest=version,
        ),
        Machine(driver=version, cuda=f"{cuda[0]}.{cuda[1]}"),
        gpus + tuple(unanswering(address) for address in silent),
    )


async def _prepare_next(host: Host, facts: DriverFacts, wanted: WantedDriver) -> str:
    """Make modules for a kernel that was installed; what there is to say if that fails, long before its boot."""
    kernel = new_kernel(host)
    if kernel in ("", facts.kernel):
        return ""
    try:
        await prepare(host, kernel, wanted=wanted)
    except DriverError as error:
        return f"not ready for the installed kernel {kernel}: {error.what}"
    return ""


def _mounted_files(pod_path: Callable[[str], Path]) -> dict[str, dict[str, bytes]]:
    """The files of the ConfigMaps that are mounted into our pod."""
    return {
        directory: {path.name: path.read_bytes() for path in sorted(place.glob("[!.]*")) if path.is_file()}
        for directory in _MOUNTED
        if (place := pod_path(directory)).is_dir()
    }


async def _ask_gpus(context: OperandContext) -> tuple[str, tuple[int, int], tuple[GPU, ...]]:
    """Driver version, CUDA version and GPUs as NVML gives them.

    Raises:
        DriverError: GPUsDoNotAnswer, when there is no answer after some tries; DriverUnusable, when trying again is no
            use: libraries and module do not fit, for one.
    """
    for attempt in range(_ANSWER_TRIES):
        try:
            source = context.open_gpus()
            try:
                gpus = tuple(to_api(gpu) for gpu in source.inventory())
                if gpus:
                    return source.driver_version(), source.cuda_version(), gpus
            finally:
                source.close()
            what, where, cure = "NVML answers, but lists no GPU", "nvmlDeviceGetCount", "see `dmesg` on the node"
        except Retryable as error:
            what, where, cure = error.what, error.where, error.cure
        except Terminal as error:
            raise DriverError("DriverUnusable", error.what, where=error.where, cure=error.cure) from error
        if attempt + 1 < _ANSWER_TRIES:
            await context.sleep(0.1 * 2**attempt)
    raise DriverError("GPUsDoNotAnswer", what, where=where, cure=cure)


def _watched(host: Host) -> list[bytes | str | None]:
    """Return the paths that show whether the driver is still there, and which kernel comes next."""
    return [*(host.read(path) for path in _WATCHED), new_kernel(host)]


def reason_of(error: KubekitError) -> str:
    """The stable CamelCase cause that a failed stage shows for an error."""
    if isinstance(error, DriverError):
        return error.reason
    if isinstance(error, Locked):
        return "InstallerBusy"
    if isinstance(error, HostError):
        return "HostFileSystem"
    return type(error).__name__
