"""The plan is what an installation then does, command by command; the rules of which driver fits which host."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cli.main import main
from gpuplane.driver import Action, WantedDriver, install
from gpuplane.driver.by_hand import plan
from gpuplane.driver.failures import failure
from gpuplane.driver.released import DriverTarget, Family, choose, family_of, read_wanted
from gpuplane.host import Command, Completed
from packages.gpuplane.tests.driver.machine import NEWER, SYSTEMS, VERSION, WANTED, Machine, tree

K80 = 0x102D
UBUNTU = {"ID": "ubuntu", "VERSION_ID": "22.04"}
VOLTA, T4, A100, H100, GH200, B200 = 0x1DB5, 0x1EB8, 0x20B0, 0x2330, 0x2342, 0x2901


@pytest.mark.parametrize("system", list(SYSTEMS))
async def test_what_is_planned_is_what_is_done(tmp_path: Path, system: str) -> None:
    machine = Machine(tmp_path, system, switches=2)
    machine.write("proc/1/mounts", "/dev/a / ext4 rw 0 0\n")
    before = tree(machine.root)
    for wanted in (WANTED, msgspec.structs.replace(WANTED, version=NEWER, parameters=(("nvidia", "x=1"),))):
        planned = plan(machine.host, wanted)
        assert planned.end.action is Action.DONE
        commands = [text for action in planned.actions for text in action.commands]
        machine.ran.clear()
        if wanted is WANTED:
            assert tree(machine.root) == before
        await install(machine.host, wanted=wanted)
        ran = [
            text.removeprefix("chroot /run/nvidia/driver ")
            for text in commands
            if not text.startswith(("write /", "if not: "))
        ]
        done = [command for command in machine.ran if "kernel-default-devel=" not in command]
        there = [text for text in ran if "{found}" not in text]
        # Of the plan, only what turned out to be there already was left out.
        rest = iter(there)
        assert all(command in rest for command in done)
        needless = {text for text in there if text not in done}
        tools = ("apt-cache", "zypper", "dnf", "env", "apt-get")
        assert all(text.startswith(tools) for text in needless)
    assert (
        plan(machine.host, msgspec.structs.replace(WANTED, version=NEWER, parameters=(("nvidia", "x=1"),))).actions
        == ()
    )


def test_a_plan_that_cannot_succeed_says_why(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "ubuntu")
    machine.write("proc/modules", "nouveau 1 1 - Live 0x0\n")
    assert plan(machine.host, WANTED).end.reason == "NouveauLoaded"
    assert plan(machine.host, msgspec.structs.replace(WANTED, version="latest")).end.reason == "VersionUnknown"


def test_the_command_prints_each_command_and_does_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path, "ubuntu")
    before = tree(machine.root)
    command = ["driver", "plan", "--host-root", str(machine.root), "--driver-version"]
    assert main([*command, VERSION]) == 0
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if not line.startswith(" ")] == [
        *("mount", "install", "build", "load", "start"),
    ]
    assert "    chroot /run/nvidia/driver modprobe -a nvidia nvidia-uvm nvidia-modeset\n" in said
    assert main([*command, "latest"]) == 1
    assert "VersionUnknown" in capsys.readouterr().out
    assert main([*command, VERSION, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["actions"][0]["action"] == "mount"
    assert tree(machine.root) == before


@pytest.mark.parametrize(
    ("version", "kind", "devices", "open_modules", "problem"),
    [
        ("570.1.2", "auto", (H100,), True, ""),
        ("550.1.2", "auto", (H100,), False, ""),
        ("550.1.2", "open", (H100,), True, ""),
        ("550.1.2", "auto", (GH200,), True, ""),
        ("570.1.2", "auto", (VOLTA,), False, ""),
        ("570.1.2", "proprietary", (T4,), False, ""),
        ("570.1.2", "open", (VOLTA,), True, "ModulesDoNotFit"),
        ("510.1.2", "open", (A100,), True, "ModulesDoNotFit"),
        ("570.1.2", "proprietary", (B200,), False, "ModulesDoNotFit"),
        ("570.1.2", "auto", (VOLTA, B200), False, "GPUsDoNotGoTogether"),
        ("590.1.2", "auto", (VOLTA,), False, "GPUTooOld"),
        ("580.1.2", "auto", (K80,), False, "GPUTooOld"),
        ("580.1.2", "auto", (VOLTA,), False, ""),
        ("570", "auto", (T4,), True, "VersionUnknown"),
    ],
)
def test_which_modules_fit(version: str, kind: str, devices: tuple[int, ...], open_modules: bool, problem: str) -> None:
    chosen = choose(WantedDriver(version=version, kind=kind), DriverTarget(os_release=UBUNTU, devices=devices))
    assert (chosen.open, chosen.problem.reason if chosen.problem else "") == (open_modules, problem)


@pytest.mark.parametrize(
    ("devices", "precompiled", "version"),
    [
        ((T4,), False, "580.82.07"),
        ((VOLTA, T4), True, "580"),
        ((K80,), False, "470.256.02"),
        ((K80, T4), False, "580.82.07"),
    ],
)
def test_a_policy_without_a_version_gets_a_driver_that_knows_the_gpus(
    devices: tuple[int, ...], precompiled: bool, version: str
) -> None:
    target = DriverTarget(os_release=UBUNTU, devices=devices)
    chosen = choose(WantedDriver(precompiled=precompiled), target)
    assert chosen.version == version
    assert (chosen.problem.reason if chosen.problem else "") == ("GPUTooOld" if devices == (K80, T4) else "")


@pytest.mark.parametrize(
    ("os_release", "family"),
    [
        ({"ID": "ubuntu"}, Family.UBUNTU),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, Family.UBUNTU),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, Family.RHEL),
        ({"ID": "ol", "ID_LIKE": "fedora"}, Family.RHEL),
        ({"ID": "opensuse-leap", "ID_LIKE": "suse opensuse"}, Family.SUSE),
        ({"ID": "flatcar", "ID_LIKE": "coreos"}, None),
        ({}, None),
    ],
)
def test_families(os_release: dict[str, str], family: Family | None) -> None:
    assert family_of(os_release) is family
    chosen = choose(WantedDriver(version=VERSION), DriverTarget(os_release=os_release, devices=(H100,)))
    assert (chosen.problem is None) == (family is not None)


@given(
    st.text(), st.sampled_from(["auto", "open", "proprietary", "x"]), st.booleans(), st.lists(st.integers(0, 0xFFFF))
)
def test_whatever_is_wanted_there_is_an_answer(version: str, kind: str, packaged: bool, devices: list[int]) -> None:
    wanted = WantedDriver(version=version, kind=kind, precompiled=packaged)
    chosen = choose(wanted, DriverTarget(os_release=UBUNTU, devices=tuple(devices)))
    if chosen.problem is None:
        assert re.fullmatch(r"\d+[\d.]*", chosen.version)
        assert chosen.digest == choose(wanted, DriverTarget(os_release=UBUNTU, devices=tuple(devices))).digest


def test_what_the_pod_is_told() -> None:
    environment = {
        "DRIVER_VERSION": "570",
        "KERNEL_MODULE_TYPE": "open",
        "GPUPLANE_DRIVER_PRECOMPILED": "true",
        "GPU_DIRECT_RDMA_ENABLED": "true",
        "BASE_URL": "https://m.example/",
        "CUDA_REPOSITORY_URL": "https://c.example/repos",
    }
    modules = {"nvidia.conf": b"NVreg_A=1\nNVreg_B=2\n", "gridd.conf": b"x"}
    files = {"/drivers": modules, "/config/repositories": {"a": b"b"}}
    wanted = read_wanted(environment, files)
    assert wanted == WantedDriver(
        version="570",
        kind="open",
        precompiled=True,
        base_url="https://m.example/",
        parameters=(("nvidia", "NVreg_A=1 NVreg_B=2"),),
        repositories=(("a", b"b"),),
        peermem=True,
        cuda_url="https://c.example/repos",
    )
    assert read_wanted({}, {}) == WantedDriver()


@given(st.lists(st.text(min_size=1), min_size=1), st.integers(-64, 255).filter(bool), st.text(), st.text())
def test_every_failure_has_a_reason_and_a_cure(argv: list[str], code: int, out: str, err: str) -> None:
    error = failure(Completed(Command(tuple(argv)), code, out, err), "/")
    assert error.reason
    assert error.cure
    assert error.where
