"""The driver's whole life on each family of distributions: no step is faked in Python, every tool is a process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from gpuplane import names
from gpuplane.driver import Action, DriverError, WantedDriver, install
from gpuplane.driver.installer import LOCK, prepare, uninstall
from gpuplane.driver.node_command import NODE_COMMAND
from gpuplane.host import Command
from packages.gpuplane.tests.driver.machine import ALSO, NEWER, PACKAGED, SYSTEMS, VERSION, WANTED, Machine, tree

BOOT = {"mkdir", "mount", "modprobe", "nvidia-persistenced"}  # the programs that a boot needs
H100, V100 = "0x2330", "0x1db5"


class Way(msgspec.Struct, frozen=True):
    """One way to a driver: `packages` is what of it comes precompiled, "" where all is compiled; `again` is the version
    and kind that is wanted later."""

    system: str
    loaded: str
    packages: str = ""
    kind: str = "auto"
    device: str = H100
    again: str = f"{NEWER} open"

    @property
    def wanted(self) -> WantedDriver:
        version = "570" if self.packages else VERSION
        return msgspec.structs.replace(WANTED, version=version, kind=self.kind, precompiled=bool(self.packages))

    @property
    def other(self) -> WantedDriver:
        version, kind = self.again.split()
        return msgspec.structs.replace(WANTED, version=version, kind=kind)


OPEN, PROPRIETARY = f"{VERSION} open", f"{VERSION} proprietary"
WAYS = [
    *(Way(system, OPEN) for system in SYSTEMS),
    Way("ubuntu", PROPRIETARY, kind="proprietary", again=OPEN),
    Way("ubuntu", PROPRIETARY, device=V100, again=f"{NEWER} proprietary"),
    Way("ubuntu", f"{PACKAGED} open", "linux-modules-nvidia-570-server-open-5.15.0-97-generic"),
    Way("ubuntu", f"{PACKAGED} proprietary", "linux-objects-nvidia-570-server-5.15.0-97-generic", "proprietary"),
    Way("rocky", f"{PACKAGED} proprietary", "kmod-nvidia-570*-5.14.0-427.13.1"),
    Way("sles", f"{PACKAGED} open", "nvidia-open-driver-G06-signed-kmp-default"),
]


def way_name(way: Way) -> str:
    how = "precompiled" if way.packages else "compiled"
    return "-".join((way.system, how, way.loaded.split()[1], *(("older",) if way.device == V100 else ())))


@pytest.mark.parametrize("way", WAYS, ids=way_name)
async def test_the_whole_life(tmp_path: Path, way: Way) -> None:
    machine = Machine(tmp_path, way.system, device=way.device)
    old, new = machine.system.kernels
    bare = tree(machine.root)

    machine.stock("*")
    facts, decision = await install(machine.host, wanted=way.wanted)
    assert decision.action is Action.DONE
    assert (facts.module, machine.loaded) == (way.loaded.split()[0], way.loaded)
    libraries = machine.driver_root / machine.system.libraries
    assert (libraries / "libnvidia-ml.so.1").read_text() == f"nvml {facts.module}\n"
    assert machine.host.read_text("sys/module/firmware_class/parameters/path") == "/run/nvidia/driver/lib/firmware"
    compiler = {"make", "curl", "install"} & {command.split()[0] for command in machine.ran}
    assert not compiler if way.packages else compiler
    assert any(way.packages in command for command in machine.ran)
    # The host's own files did not change by a byte; all new files are in the driver's layer.
    ours = ("var/lib/gpuplane", "run", "proc", "sys", NODE_COMMAND, *filter(None, (machine.system.hooks,)))
    assert machine.host.exists(NODE_COMMAND) and not (machine.driver_root / NODE_COMMAND).exists()
    assert {k: v for k, v in tree(machine.root).items() if not k.startswith(ours)} == {
        k: v for k, v in bare.items() if not k.startswith(ours)
    }

    # Nothing is done when it is as wanted.
    machine.ran.clear()
    assert (await install(machine.host, wanted=way.wanted))[1].action is Action.DONE
    assert machine.ran == []

    # A boot needs neither network nor compiler.
    machine.boot(old)
    machine.stock()
    assert (await install(machine.host, wanted=way.wanted))[1].action is Action.DONE
    assert machine.loaded == way.loaded
    assert {command.split()[0] for command in machine.ran} == BOOT

    # The next kernel is prepared while this one runs, and its first boot is such a boot.
    machine.stock("*")
    assert await prepare(machine.host, new, wanted=way.wanted)
    assert not await prepare(machine.host, new, wanted=way.wanted)
    machine.stock()
    machine.ran.clear()
    machine.boot(new)
    await install(machine.host, wanted=way.wanted)
    assert machine.loaded == way.loaded
    assert {command.split()[0] for command in machine.ran} == BOOT

    # Another version: not while the GPUs are used, then whole.
    machine.stock("*")
    machine.hold(2)
    with pytest.raises(DriverError) as caught:
        await install(machine.host, wanted=way.other)
    assert caught.value.reason == "ModuleInUse"
    with pytest.raises(DriverError) as caught:
        await uninstall(machine.host)
    assert caught.value.reason == "ModuleInUse"
    assert machine.loaded == way.loaded
    machine.hold(0)
    await install(machine.host, wanted=way.other)
    assert machine.loaded == way.again
    assert [path.name for path in libraries.glob("libcuda.so.5*")] == [f"libcuda.so.{way.other.version}"]
    if way.other.version == NEWER:
        options = machine.driver_root / "etc/modprobe.d/nvidia.conf"
        assert options.read_text() == "options nvidia NVreg_CoherentGPUMemoryMode=driver\n"

    # And all of it is taken back, byte for byte.
    await uninstall(machine.host)
    machine.boot(old)
    assert tree(machine.root) == bare
    await uninstall(machine.host)
    assert tree(machine.root) == bare


@pytest.mark.parametrize(
    ("system", "kind"), [("debian", "auto"), ("debian", "proprietary"), ("rocky", "open"), ("sles", "proprietary")]
)
async def test_what_nobody_has_precompiled_is_refused_before_anything_is_done(
    tmp_path: Path, system: str, kind: str
) -> None:
    machine = Machine(tmp_path, system)
    bare = tree(machine.root)
    with pytest.raises(DriverError) as caught:
        await install(machine.host, wanted=msgspec.structs.replace(WANTED, version="570", precompiled=True, kind=kind))
    assert (caught.value.reason, caught.value.cure) == ("NoPrecompiled", "spec.driver.usePrecompiled: false")
    assert machine.ran == []
    assert tree(machine.root) == bare


async def test_machines_with_nvswitches_get_the_fabric_manager_and_older_gpus_the_proprietary_modules(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path, "ubuntu", device="0x1db5", switches=6)
    bare = tree(machine.root)
    await install(machine.host, wanted=msgspec.structs.replace(WANTED, parameters=(("nvidia", "NVreg_X=1"),)))
    assert machine.loaded == f"{VERSION} proprietary"
    assert any("nvidia-fabricmanager-570=570.133.20*" in command for command in machine.ran)
    assert machine.host.exists("run/nvidia-fabricmanager/nv-fabricmanager.pid")
    assert (machine.driver_root / "etc/modprobe.d/nvidia.conf").read_text() == "options nvidia NVreg_X=1\n"
    # A daemon that died is started again, and nothing else is done.
    await machine.run(Command(("kill", "-TERM", "4243"), machine.root))
    machine.ran.clear()
    await install(machine.host, wanted=msgspec.structs.replace(WANTED, parameters=(("nvidia", "NVreg_X=1"),)))
    assert machine.ran == ["nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg"]
    await uninstall(machine.host)
    assert tree(machine.root) == bare


class Trouble(msgspec.Struct, frozen=True):
    """A fault, and the stage's report of it."""

    system: str
    tool: str
    code: int
    text: str
    pattern: str
    reason: str
    message: str


TROUBLES = [
    Trouble("ubuntu", "", 0, "", "", "KernelHeadersMissing", "no linux-headers-5.15.0-97-generic"),
    Trouble("rocky", "", 0, "", "", "KernelHeadersMissing", "no kernel-devel-5.14.0-427.13.1.el9_4.x86_64"),
    Trouble("sles", "", 0, "", "", "KernelHeadersMissing", "no kernel-default-devel"),
    Trouble("ubuntu", "apt-get", 100, "E: Failed to fetch http://x  404  Not Found", "libc6-dev", "PackageGone", "404"),
    Trouble("debian", "apt-get", 100, "E: Failed to fetch http://x  Could not resolve 'x'", "update",
            "RepositoryUnreachable", "Could not resolve 'x'"),
    Trouble("rocky", "dnf", 1, "Curl error (6): Could not resolve host: x", "makecache", "RepositoryUnreachable", "x"),
    Trouble("ubuntu", "apt-get", 100, "dpkg: error: No space left on device", "libc6-dev", "DiskFull", "No space left"),
    Trouble("rocky", "dnf", 1, "Error: installing package: No space left on device", "install", "DiskFull", "No space"),
    Trouble("sles", "zypper", 8, "Could not write: Read-only file system", "install", "HostFileSystem", "Read-only"),
    Trouble("ubuntu", "curl", 22, "curl: (22) The requested URL returned error: 404", "", "VersionUnknown",
            "NVIDIA-Linux-x86_64-570.133.20.run"),
    Trouble("sles", "curl", 6, "curl: (6) Could not resolve host: mirror.example", "", "DownloadFailed", "mirror"),
    Trouble("ubuntu", "make", 2, "x.c:1: error: implicit declaration of 'f'", "modules", "CompileFailed", "'f'"),
    Trouble("ubuntu", "modprobe", 1, "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
            "nvidia", "SecureBoot", "could not insert 'nvidia'"),
    Trouble("ubuntu", "modprobe", 1, "modprobe: ERROR: could not insert 'nvidia': Unknown symbol in module", "nvidia",
            "KernelMismatch", "Unknown symbol"),
    Trouble("rocky", "nvidia-persistenced", 1, "nvidia-persistenced failed to initialize.", "",
            "NvidiaPersistencedFailed", "failed to initialize"),
]  # fmt: skip


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda t: f"{t.system}-{t.tool}-{t.reason}")
async def test_what_goes_wrong_is_named_with_its_cure_and_got_over(tmp_path: Path, trouble: Trouble) -> None:
    machine = Machine(tmp_path, trouble.system)
    bare = tree(machine.root)
    if trouble.tool:
        machine.trouble(trouble.tool, trouble.code, trouble.text, trouble.pattern)
    else:
        machine.stock(*ALSO)
    with pytest.raises(DriverError) as caught:
        await install(machine.host, wanted=WANTED)
    assert caught.value.reason == trouble.reason
    assert trouble.message in caught.value.what
    assert caught.value.cure
    assert caught.value.where
    # From there both ways are open.
    machine.mend()
    machine.stock("*")
    await install(machine.host, wanted=WANTED)
    assert machine.loaded == f"{VERSION} open"
    await uninstall(machine.host)
    assert tree(machine.root) == bare


async def test_headers_of_an_older_minor_release_are_found_in_its_own_list(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "rocky")
    machine.stock("gcc", "make", "elfutils*", "kmod", "cpio", "*curl", "ca-certificates", "9.4:kernel-devel-*")
    await install(machine.host, wanted=WANTED)
    assert any("--releasever=9.4 install kernel-devel-5.14.0-427.13.1.el9_4.x86_64" in c for c in machine.ran)


async def test_an_idle_nouveau_gives_the_gpus_up_and_one_in_use_keeps_them(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "debian")
    machine.write("proc/modules", "nouveau 2367488 2 - Live 0x0\nvideo 65536 1 nouveau, Live 0x0\n")
    with pytest.raises(DriverError) as caught:
        await install(machine.host, wanted=WANTED)
    assert (caught.value.reason, machine.ran) == ("NouveauLoaded", [])
    machine.write("proc/modules", "nouveau 2367488 0 - Live 0x0\nvideo 65536 1 nouveau, Live 0x0\n")
    await install(machine.host, wanted=WANTED)
    assert machine.ran[0] == "modprobe -r nouveau"
    assert machine.loaded == f"{VERSION} open"


async def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "ubuntu")
    (machine.root / "usr/bin/apt-get").unlink()
    with pytest.raises(DriverError) as caught:
        await install(machine.host, wanted=WANTED)
    assert caught.value.reason == "AptGetMissing"


async def test_repositories_and_certificates_are_used(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "debian")
    wanted = msgspec.structs.replace(
        WANTED, repositories=(("mirror.list", b"deb http://m /\n"),), certificates=(("ca.crt", b"PEM"),)
    )
    with pytest.raises(DriverError) as caught:
        await install(machine.host, wanted=wanted)
    assert caught.value.reason == "UpdateCaCertificatesMissing"
    machine.write("usr/bin/update-ca-certificates", "#!/bin/sh\nexit 0\n")
    (machine.root / "usr/bin/update-ca-certificates").chmod(0o755)
    await uninstall(machine.host)
    await install(machine.host, wanted=wanted)
    assert (machine.driver_root / "etc/apt/sources.list.d/mirror.list").read_text() == "deb http://m /\n"
    assert not (machine.root / "etc/apt").exists()


# -- kill -9 -----------------------------------------------------------------------------------------------------------


def killed(work: Callable[[Machine], Awaitable[None]], machine: Machine) -> bool:
    """Do `work` on a machine in a process of its own; whether it was killed on the way."""
    child = os.fork()
    if not child:
        code = 1
        try:
            asyncio.run(_on(work, machine))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


async def _on(work: Callable[[Machine], Awaitable[None]], machine: Machine) -> None:
    await work(machine)


async def begin(machine: Machine) -> None:
    await install(machine.host, wanted=WANTED)


async def undo(machine: Machine) -> None:
    await uninstall(machine.host)


PARTS = 2


@pytest.mark.parametrize(
    ("system", "part"), [*(("ubuntu", part) for part in range(PARTS)), ("rocky", None), ("sles", None)]
)
def test_killed_before_a_command_it_goes_on_and_goes_back(
    tmp_path_factory: pytest.TempPathFactory, system: str, part: int | None
) -> None:
    """Before each command on Ubuntu; elsewhere before those that are that family's own. A copy is what is left; the
    next test kills processes."""
    model = Machine(tmp_path_factory.mktemp(system), system)
    bare = tree(model.root)
    left: list[tuple[int, Machine]] = []

    def keep(command: str) -> None:
        step = len(model.ran)
        if step % PARTS == part or (part is None and command.startswith(model.system.programs)):
            left.append((step, model.copy(tmp_path_factory.mktemp("left") / system)))

    model.before = keep
    asyncio.run(begin(model))
    model.before = lambda _: None
    commands = list(model.ran)
    assert len(commands) > 20
    assert left
    asyncio.run(undo(model))
    assert tree(model.root) == bare
    undoing = len(model.ran) - len(commands)
    for step, machine in left:
        if step % 4 < 2:
            asyncio.run(finish(machine))
        die_at(machine, 1 + step % undoing)
        killed(undo, machine)
        machine.before = lambda _: None
        asyncio.run(undo(machine))
        assert tree(machine.root) == bare, commands[step - 1]


async def finish(machine: Machine) -> None:
    await install(machine.host, wanted=WANTED)
    assert machine.loaded == f"{VERSION} open"


def die_at(machine: Machine, step: int) -> None:
    left = step

    def die(_: str) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), 9)

    machine.before = die


@pytest.mark.parametrize(
    ("system", "tool"),
    [
        *(("ubuntu", tool) for tool in ("apt-get", "curl", "nvidia-installer", "run", "make", "modprobe", "mount")),
        *(("ubuntu", tool) for tool in ("nvidia-persistenced", "depmod", "mkdir", "install")),
        ("rocky", "dnf"),
        ("sles", "zypper"),
    ],
)
def test_killed_in_the_middle_of_a_tool_it_goes_on(tmp_path: Path, system: str, tool: str) -> None:
    machine = Machine(tmp_path, system)
    bare = tree(machine.root)
    (machine.state / "kill" / tool).touch()
    assert killed(begin, machine)
    asyncio.run(finish(machine))
    asyncio.run(undo(machine))
    assert tree(machine.root) == bare


@pytest.mark.parametrize("system", ["ubuntu", "rocky", "sles"])
def test_killed_in_the_middle_of_a_tool_it_goes_on_with_the_way_back(tmp_path: Path, system: str) -> None:
    machine = Machine(tmp_path, system)
    bare = tree(machine.root)
    asyncio.run(begin(machine))
    for undoing in ("kill", "rmmod", "umount", "rm"):
        (machine.state / "kill" / undoing).touch()
        assert killed(undo, machine), undoing
    asyncio.run(undo(machine))
    assert tree(machine.root) == bare


async def test_a_signal_in_the_middle_leaves_nothing_mounted(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "ubuntu")
    bare = tree(machine.root)
    task = asyncio.create_task(install(machine.host, wanted=WANTED))

    def cancel(command: str) -> None:
        if "nvidia-installer" in command:
            task.cancel()

    machine.before = cancel
    with pytest.raises(asyncio.CancelledError):
        await task
    machine.before = lambda _: None
    assert names.DRIVER_ROOT not in machine.mounts()
    assert not machine.host.exists(LOCK)
    await install(machine.host, wanted=WANTED)
    assert machine.loaded == f"{VERSION} open"
    await uninstall(machine.host)
    assert tree(machine.root) == bare
