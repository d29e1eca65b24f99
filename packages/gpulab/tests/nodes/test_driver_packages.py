"""The driver installer on simulated machines: their package managers, downloads and kernels, without a network.

Nothing is faked: the production installer starts the machine's own programs. The machine for misbehaving programs is in
gpuplane's tests of the driver.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuplane import names
from gpuplane.driver import Action, DriverError, WantedDriver, install
from gpuplane.driver.installer import uninstall
from gpuplane.host import Command, Completed, Host, SystemRunner
from simgpu import PROGRAMS, STATE_PATH, layout
from simgpu.machines import build_node, machine
from simgpu.machines.mirror import MIRROR

JOURNAL = f"{names.DRIVER_ROOT}/var/lib/dpkg/updates/0000"


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of a container of an ordinary user."""
    monkeypatch.setenv("PATH", f"{PROGRAMS}:{os.environ['PATH']}")


def made(directory: Path, name: str) -> Host:
    build_node(directory, "n", machine(name))
    return Host(directory / "root")


def files(host: Host) -> dict[str, bytes | str | None]:
    """Every file but the hardware's own memory."""
    return {
        str(path.relative_to(host.root)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in host.root.rglob("*")
        if (path.is_symlink() or path.is_file()) and not path.is_relative_to(host.root / STATE_PATH)
    }


def hardware_version(host: Host) -> str:
    head = (host.root / STATE_PATH).read_bytes()[: layout.StateLayout.nvml_version.offset]
    return head[layout.StateLayout.driver_version.offset :].rstrip(b"\0").decode()


@pytest.mark.parametrize(
    ("name", "wanted", "version"),
    [
        ("l4-ubuntu24", WantedDriver(), "580.82.07"),
        ("t4-ubuntu22", WantedDriver(version="535.274.02"), "535.274.02"),
        ("a10g-rocky9", WantedDriver(version="570.133.20"), "570.133.20"),
        ("l4-sles15", WantedDriver(version="550.163.01", kind="open"), "550.163.01"),
        ("k80-board-ubuntu22", WantedDriver(), "470.256.02"),
        ("t4-ubuntu22", WantedDriver(version="570", precompiled=True), "570.133.20"),
        ("a10g-rocky9", WantedDriver(version="570", precompiled=True), "570.133.20"),
        ("l4-sles15", WantedDriver(version="580", precompiled=True), "580.82.07"),
    ],
    ids=lambda value: value if isinstance(value, str) else "packages" if value.precompiled else "compiled",
)
async def test_hardware_runs_with_the_driver_that_is_installed_and_gives_it_back(
    tmp_path: Path, name: str, wanted: WantedDriver, version: str
) -> None:
    host = made(tmp_path, name)
    bare = files(host)
    facts, decision = await install(host, wanted=wanted)
    assert decision.action is Action.DONE
    assert facts.module == hardware_version(host) == version
    library = machine(name).library_dir
    assert host.readlink(f"{names.DRIVER_ROOT}/{library}/libcuda.so.1") == f"libcuda.so.{version}"
    assert not host.exists(f"{library}/libcuda.so.1"), "the driver lies in a root of its own"
    await uninstall(host)
    assert files(host) == bare


async def test_another_version_replaces_a_driver(tmp_path: Path) -> None:
    host = made(tmp_path, "t4-ubuntu22")
    await install(host, wanted=WantedDriver(version="570.133.20"))
    facts, _ = await install(host, wanted=WantedDriver(version="580.95.05"))
    assert facts.module == hardware_version(host) == "580.95.05"
    library = f"{names.DRIVER_ROOT}/{machine('t4-ubuntu22').library_dir}"
    assert [name for name in host.list(library) if name.startswith("libcuda.so.5")] == ["libcuda.so.580.95.05"]


async def test_a_version_that_was_never_released_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(DriverError) as caught:
        await install(made(tmp_path, "t4-ubuntu22"), wanted=WantedDriver(version="579.1.1"))
    assert caught.value.reason == "VersionUnknown"


@pytest.mark.parametrize("name", ["t4-ubuntu22", "a10g-rocky9", "l4-sles15"])
async def test_missing_kernel_headers_are_reported_and_found_when_the_mirror_has_them(
    tmp_path: Path, name: str
) -> None:
    host = made(tmp_path, name)
    packages = host.root / MIRROR / "packages"
    listed = packages.read_text()
    headers = ("linux-headers-", "kernel-devel-", "kernel-*-devel")
    packages.write_text("".join(f"{line}\n" for line in listed.splitlines() if not line.startswith(headers)))
    with pytest.raises(DriverError) as caught:
        await install(host, wanted=WantedDriver(version="570.133.20"))
    assert caught.value.reason == "KernelHeadersMissing"
    packages.write_text(listed)
    assert (await install(host, wanted=WantedDriver(version="570.133.20")))[1].action is Action.DONE


@pytest.mark.parametrize("name", ["h100-ubuntu22", "a100-ubuntu22"])
async def test_programs_for_nvswitches_come_from_the_repository_of_nvidia(tmp_path: Path, name: str) -> None:
    host = made(tmp_path, name)
    bare = files(host)
    await install(host, wanted=WantedDriver(version="570.133.20"))
    listed = host.read_text(f"{names.DRIVER_ROOT}/etc/apt/sources.list.d/cuda.list") or ""
    assert "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/" in listed
    installed = host.read_text(f"{names.DRIVER_ROOT}/var/lib/dpkg/status") or ""
    assert {"nvidia-fabricmanager", "libnvidia-nscq", "nvidia-imex"} <= {
        line.partition("-570=570.133.20")[0] for line in installed.splitlines()
    }
    assert host.exists("run/nvidia-fabricmanager/nv-fabricmanager.pid")
    await uninstall(host)
    assert files(host) == bare


async def test_modules_are_compiled_with_the_compiler_of_the_kernel(tmp_path: Path) -> None:
    """Ubuntu 22.04 with a kernel 6.8: gcc is gcc-11 there, and the kernel was built with gcc-12."""
    host = made(tmp_path, "t4-ubuntu22")
    packages = host.root / MIRROR / "packages"
    listed = packages.read_text()
    packages.write_text(listed.replace("gcc-12\n", ""))
    wanted = WantedDriver(version="570.133.20")
    with pytest.raises(DriverError) as caught:
        await install(host, wanted=wanted)
    assert (caught.value.reason, "gcc-12" in caught.value.what) == ("CompilerMissing", True)
    packages.write_text(listed)
    assert (await install(host, wanted=wanted))[1].action is Action.DONE
    assert host.exists(f"{names.DRIVER_ROOT}/usr/bin/gcc-12")


async def test_modules_of_another_kernel_are_not_loaded(tmp_path: Path) -> None:
    host = made(tmp_path, "t4-ubuntu22")
    wanted = WantedDriver(version="570.133.20")
    await install(host, wanted=wanted)
    for module in ("nvidia_modeset", "nvidia_uvm"):
        await host.run("rmmod", module)
    kernel = machine("t4-ubuntu22").kernel
    folder = host.root / names.DRIVER_ROOT / f"lib/modules/{kernel}/updates/gpuplane"
    (folder / "nvidia-uvm.ko").write_text("version=570.133.20\nvermagic=6.8.0-1-other\n")
    with pytest.raises(DriverError) as caught:
        await install(host, wanted=wanted)
    assert caught.value.reason == "KernelMismatch"


class Killed(BaseException):
    pass


class KilledRunner(SystemRunner):
    """Stops as its process is killed, in the middle of the first command that begins so."""

    def __init__(self, root: Path, program: str) -> None:
        self._root, self._program = root, program

    async def run(self, command: Command) -> Completed:
        done = await super().run(command)
        if self._program in command.argv and "install" in command.argv:
            (self._root / JOURNAL).write_text("")
            raise Killed
        return done


async def test_a_kill_in_the_middle_of_apt_leaves_its_journal_and_the_next_run_heals(tmp_path: Path) -> None:
    host = made(tmp_path, "t4-ubuntu22")
    bare = files(host)
    wanted = WantedDriver(version="570.133.20")
    with pytest.raises(Killed):
        await install(Host(host.root, KilledRunner(host.root, "apt-get")), wanted=wanted)
    done = await SystemRunner().run(Command(("apt-get", "install", "gcc"), host.root, inside=names.DRIVER_ROOT))
    assert (done.code, "dpkg was interrupted" in done.stderr) == (100, True)
    assert (await install(host, wanted=wanted))[1].action is Action.DONE
    await uninstall(host)
    assert files(host) == bare


async def test_what_lies_in_the_drivers_root_is_hidden_while_it_is_mounted(tmp_path: Path) -> None:
    """As below a real mount: a kubelet makes directories there for an image's pod."""
    host = made(tmp_path, "t4-ubuntu22")
    (host.root / names.DRIVER_ROOT / "opt/firmware").mkdir(parents=True)
    wanted = WantedDriver(version="570.133.20")
    assert (await install(host, wanted=wanted))[1].action is Action.DONE
    assert not host.exists(f"{names.DRIVER_ROOT}/opt/firmware")
    await uninstall(host)
    assert host.list(names.DRIVER_ROOT) == ("opt",)


async def test_the_drivers_root_has_the_ldconfig_that_hooks_of_container_runtimes_start(tmp_path: Path) -> None:
    host = made(tmp_path, "t4-ubuntu22")
    (host.root / "usr/sbin/ldconfig").write_text("the machine's")
    bare = files(host)
    await install(host, wanted=WantedDriver(version="570.133.20"))
    assert host.read_text(f"{names.DRIVER_ROOT}/sbin/ldconfig") == "the machine's"
    await uninstall(host)
    assert files(host) == bare
