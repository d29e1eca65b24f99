"""NVIDIA's CUDA repository: added to the driver's root where its packages are missing, and nowhere else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec
import pytest

from gpuplane.driver import DriverError, WantedDriver, install
from gpuplane.driver.by_hand import plan
from gpuplane.driver.cuda_repository import CudaRepository, cuda_repository, listed
from gpuplane.driver.installer import uninstall
from gpuplane.driver.released import DriverTarget, choose
from gpuplane.host import Command, SystemRunner
from packages.gpuplane.tests.driver.machine import ALSO, NEWER, PACKAGED, SYSTEMS, VERSION, WANTED, Machine, tree

NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos"
PLAIN = tuple(pattern for pattern in ALSO if "nvidia" not in pattern)
LISTS = {
    "ubuntu": "etc/apt/sources.list.d/cuda.list",
    "debian": "etc/apt/sources.list.d/cuda.list",
    "rocky": "etc/yum.repos.d/cuda-rhel9-x86_64.repo",
    "sles": "etc/zypp/repos.d/cuda-sles15-x86_64.repo",
}
H100 = 0x2330


@pytest.fixture(autouse=True)
def on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def bare_repositories(tmp_path: Path, system: str) -> Machine:
    """A machine with NVSwitches whose repositories have nothing of NVIDIA's, and a network that has NVIDIA's."""
    machine = Machine(tmp_path, system, switches=4)
    machine.stock(*PLAIN, machine.system.headers)
    (machine.state / "cuda").write_text("*nvidia-*\n")
    return machine


@pytest.mark.parametrize(
    ("os_id", "version", "machine", "name", "key"),
    [
        ("ubuntu", "22.04", "x86_64", "ubuntu2204/x86_64", "D42D0685.pub"),
        ("ubuntu", "24.04", "aarch64", "ubuntu2404/sbsa", "D42D0685.pub"),
        ("debian", "12", "x86_64", "debian12/x86_64", "D42D0685.pub"),
        ("rhel", "9.6", "x86_64", "rhel9/x86_64", "D42D0685.pub"),
        ("rocky", "8.10", "aarch64", "rhel8/sbsa", "D42D0685.pub"),
        ("almalinux", "10.0", "x86_64", "rhel10/x86_64", "CDF6BA43.pub"),
        ("ol", "9.5", "x86_64", "rhel9/x86_64", "D42D0685.pub"),
        ("fedora", "42", "x86_64", "fedora42/x86_64", "D42D0685.pub"),
        ("amzn", "2023", "x86_64", "amzn2023/x86_64", "D42D0685.pub"),
        ("sles", "15.6", "x86_64", "sles15/x86_64", "D42D0685.pub"),
        ("opensuse-leap", "15.6", "x86_64", "opensuse15/x86_64", "D42D0685.pub"),
        ("ubuntu", "25.10", "x86_64", None, ""),
        ("linuxmint", "22", "x86_64", None, ""),
        ("ubuntu", "22.04", "riscv64", None, ""),
    ],
)
@pytest.mark.parametrize("base", ["", "https://mirror.example/cuda/"])
def test_which_repository_a_host_gets(
    os_id: str, version: str, machine: str, name: str | None, key: str, base: str
) -> None:
    target = DriverTarget(os_release={"ID": os_id, "VERSION_ID": version}, machine=machine, devices=(H100,))
    found = cuda_repository(choose(WantedDriver(cuda_url=base), target))
    if name is None:
        assert found is None
        return
    url = f"{base.rstrip('/') or NVIDIA}/{name}"
    assert found == CudaRepository(f"cuda-{name.replace('/', '-')}", url, f"{url}/{key}", bool(base))


@pytest.mark.parametrize("system", list(SYSTEMS))
async def test_programs_for_nvswitches_come_from_nvidia_where_the_node_has_none(tmp_path: Path, system: str) -> None:
    machine = bare_repositories(tmp_path, system)
    bare = tree(machine.root)
    await install(machine.host, wanted=WANTED)
    assert machine.host.exists("run/nvidia-fabricmanager/nv-fabricmanager.pid")
    (installed,) = (command for command in machine.ran if "nscq" in command and " install " in command)
    assert all(f"{name}-570" in installed for name in ("libnvidia-nscq", "nvidia-imex"))
    assert installed.count(VERSION) == 3
    listed = (machine.driver_root / LISTS[system]).read_text()
    assert f"{NVIDIA}/" in listed
    # Only in the driver's root.
    assert not (machine.root / LISTS[system]).exists()
    if system in ("rocky", "sles"):
        assert "gpgcheck=1\n" in listed
        assert f"gpgkey={NVIDIA}/" in listed
    if system == "sles":
        assert "zypper --non-interactive --gpg-auto-import-keys refresh" in machine.ran
    # The next version has names without a branch.
    machine.ran.clear()
    await install(machine.host, wanted=msgspec.structs.replace(WANTED, version=NEWER))
    (installed,) = (command for command in machine.ran if "nscq" in command and " install " in command)
    assert "nvidia-fabricmanager" in installed
    assert "-580" not in installed.replace(NEWER, "").replace("--", "")
    await uninstall(machine.host)
    assert tree(machine.root) == bare


@pytest.mark.parametrize("system", list(SYSTEMS))
async def test_nothing_is_added_where_the_repositories_of_the_node_have_the_packages(
    tmp_path: Path, system: str
) -> None:
    machine = Machine(tmp_path, system, switches=4)
    await install(machine.host, wanted=WANTED)
    assert machine.host.exists("run/nvidia-fabricmanager/nv-fabricmanager.pid")
    assert not (machine.driver_root / LISTS[system]).exists()
    assert not any("cuda" in command for command in machine.ran)


async def test_another_version_in_the_archive_is_not_the_one_that_is_wanted(tmp_path: Path) -> None:
    """Ubuntu's archive has the fabric manager of a few versions."""
    machine = Machine(tmp_path, "ubuntu", switches=4)
    (machine.state / "archived").write_text("570.86.15\n")
    (machine.state / "cuda").write_text("*nvidia-*\n")
    await install(machine.host, wanted=WANTED)
    assert (machine.driver_root / LISTS["ubuntu"]).exists()


@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="the machine has no apt")
async def test_the_question_to_a_real_apt() -> None:
    """By a package that each of its machines has: there with its version, not with another, and no package at all."""
    driver = choose(WANTED, DriverTarget(os_release={"ID": "debian", "VERSION_ID": "12"}, devices=(H100,)))
    installed = await SystemRunner().run(Command(("dpkg-query", "-W", "-f=${Version}", "apt")))
    version = installed.stdout.partition(".")[0]
    for name, wanted, there in (("apt", version, True), ("apt", "99999.9", False), ("no-such-package", version, False)):
        probe = listed(driver, name, wanted)
        done = await SystemRunner().run(Command(probe.argv))
        assert (done.code == 0 and re.search(probe.find, done.stdout) is not None) is there


@pytest.mark.parametrize("system", ["ubuntu", "rocky"])
async def test_a_repository_of_the_policy_is_enough(tmp_path: Path, system: str) -> None:
    """The way of clusters without the internet: a mirror by spec.driver.repoConfig."""
    machine = bare_repositories(tmp_path, system)
    name = "mirror.list" if system == "ubuntu" else "mirror.repo"
    mirror = msgspec.structs.replace(WANTED, repositories=((name, b"https://mirror.example/cuda"),))
    await install(machine.host, wanted=mirror)
    assert machine.host.exists("run/nvidia-fabricmanager/nv-fabricmanager.pid")
    assert not any("keyring" in command or NVIDIA in command for command in machine.ran)
    assert not (machine.driver_root / LISTS[system]).exists()


@pytest.mark.parametrize("system", list(SYSTEMS))
async def test_a_copy_of_the_repository_takes_the_place_of_nvidias(tmp_path: Path, system: str) -> None:
    machine = bare_repositories(tmp_path, system)
    await install(machine.host, wanted=msgspec.structs.replace(WANTED, cuda_url="https://mirror.example/cuda/repos"))
    lists = list(machine.driver_root.glob("etc/*/*.d/cuda-*")) + list(machine.driver_root.glob("etc/*.d/cuda-*"))
    (text,) = (path.read_text() for path in lists)
    assert "https://mirror.example/cuda/repos/" in text
    assert NVIDIA not in text
    assert not any(NVIDIA in command for command in machine.ran)


@pytest.mark.parametrize(
    ("system", "loaded"), [("rocky", f"{PACKAGED} proprietary"), ("sles", f"{PACKAGED} open"), ("ubuntu", None)]
)
async def test_precompiled_modules_come_from_nvidia_on_rhel_and_suse(
    tmp_path: Path, system: str, loaded: str | None
) -> None:
    machine = bare_repositories(tmp_path, system)
    wanted = msgspec.structs.replace(WANTED, precompiled=True, version="570")
    if loaded is None:  # Canonical's own packages
        with pytest.raises(DriverError) as caught:
            await install(machine.host, wanted=wanted)
        assert caught.value.reason == "NoPrecompiled"
        return
    await install(machine.host, wanted=wanted)
    assert machine.loaded == loaded
    assert (machine.driver_root / LISTS[system]).exists()


async def test_a_machine_without_nvswitches_asks_nobody(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "rocky")
    machine.stock(*PLAIN, machine.system.headers)
    await install(machine.host, wanted=WANTED)
    assert not any("nvidia-fabric" in command or "cuda" in command for command in machine.ran)


def test_a_plan_shows_what_may_turn_out_to_be_needless(tmp_path: Path) -> None:
    machine = bare_repositories(tmp_path, "ubuntu")
    lines = [line for action in plan(machine.host, WANTED).actions for line in action.commands]
    conditional = [line for line in lines if line.startswith("if not: ")]
    asked = "chroot /run/nvidia/driver apt-cache show 'nvidia-fabricmanager-570=570.133.20*'"
    assert lines.index(asked) < lines.index(conditional[0])
    assert any(line.endswith(f"{NVIDIA}/ubuntu2204/x86_64/cuda-keyring_1.1-1_all.deb") for line in conditional)
