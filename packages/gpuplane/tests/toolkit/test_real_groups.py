"""Device nodes with a group, under real containerds: a process without root opens them, as with nvidia-ctk's CDI."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuplane.toolkit import apply, observe, plan, shipped
from gpuplane.toolkit.cdi_spec import MANAGEMENT_SPEC, SPEC
from packages.gpuplane.tests.toolkit.cri import CRI
from packages.gpuplane.tests.toolkit.machine import GPUS, VERSION
from packages.gpuplane.tests.toolkit.real_machine import (
    BUSYBOX,
    RELEASES,
    RealMachine,
    containerd_machine,
    started,
)
from tests.support.until import until

pytestmark = [
    pytest.mark.deadline(600),  # a machine is made, and its runtime started, in the test itself
    pytest.mark.usefixtures("nvidias_programs"),
]

VIDEO = 44
USER = 1000


def close(machine: RealMachine, name: str) -> None:
    """Let only root and the group video open a device node, as some drivers and udev do."""
    os.chown(machine.root / "dev" / name, 0, VIDEO)
    (machine.root / "dev" / name).chmod(0o660)


SEEN = "stat -c '%a %g' /dev/nvidia1; grep ^Groups: /proc/self/status; cat /dev/nvidia1 /dev/nvidiactl; echo done"


async def answers_of(cri: CRI, name: str, handler: str, visible: str, cdi: tuple[str, ...]) -> list[str]:
    """Lines of a container's first process, of user 1000: mode and group of /dev/nvidia1, its own groups, its errors.

    No driver serves the nodes, so a process that may open them reads ENXIO. NB: processes of `exec` are not asked. With
    RuntimeClass they have the groups of containerd's own record, which NVIDIA's runtime does not change.
    """
    pod = await cri.run_pod(name, handler)
    env = {"NVIDIA_VISIBLE_DEVICES": visible} if visible else {}
    command = ("/bin/busybox", "sh", "-c", f"{{ {SEEN}; }} >/dev/shm/{name} 2>&1; exec sleep 1000")
    container = await cri.run_container(pod, BUSYBOX, command, env, cdi, USER)

    async def seen() -> list[str]:
        found = (await cri.execute(container, "/bin/busybox", "cat", f"/dev/shm/{name}")).text.splitlines()
        return found if found[-1:] == ["done"] else []

    lines: list[str] = await until(seen, what="the container's answers")
    await cri.remove_pod(pod)
    return lines


@pytest.mark.parametrize("release", RELEASES)
async def test_a_process_without_root_opens_the_nodes_of_a_group(tmp_path: Path, release: str) -> None:
    machine = containerd_machine(tmp_path / "machine", release)
    machine.with_driver(VERSION)
    close(machine, "nvidia1")
    async with started(machine, tmp_path) as cri:
        runtime = f"containerd://{await cri.version()}"
        facts = observe(machine.host, gpus=GPUS, driver_version=VERSION, runtime=runtime)
        await apply(machine.host, plan(facts, set_as_default=False))
        reads = facts.version >= (1, 7, 17)
        spec = json.loads((machine.root / SPEC).read_text())
        assert spec["cdiVersion"] == ("0.7.0" if reads else "0.5.0")
        ways = {"class": ("nvidia", "GPU-0", ())}
        if reads:
            ways["cdi"] = ("", "", ("nvidia.com/gpu=GPU-0",))
        for name, way in ways.items():
            node, groups, *errors = await answers_of(cri, name, *way)
            assert [error for error in errors if "such device" not in error] == ["done"], (name, node, groups)
            if reads:
                assert node == f"660 {VIDEO}"
                assert str(VIDEO) in groups.split()


def accesses(edits: list[dict[str, Any]]) -> tuple[dict[str, tuple[int | None, int | None]], set[int]]:
    """Mode and group of each device node, and the groups of processes."""
    nodes = {n["path"]: (n.get("fileMode"), n.get("gid")) for each in edits for n in each.get("deviceNodes", ())}
    return nodes, {gid for each in edits for gid in each.get("additionalGids", ())}


async def test_nodes_and_groups_are_those_of_nvidia_ctk(tmp_path: Path) -> None:
    machine = containerd_machine(tmp_path / "machine", "trixie")
    machine.with_driver(VERSION)
    close(machine, "nvidia1")
    (machine.root / "dev/nvidiactl").chmod(0o664)
    shutil.copy(shipped.IMAGE / "nvidia-ctk", machine.root / "usr/bin/nvidia-ctk-1.20.1")
    async with started(machine, tmp_path):
        done = machine.run("nvidia-ctk-1.20.1", "cdi", "generate", "--mode=management", "--format=json")
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    facts = observe(machine.host, gpus=GPUS, driver_version=VERSION, runtime="containerd://2.1.9")
    await apply(machine.host, plan(facts, set_as_default=False), restart=False)
    ours = json.loads((machine.root / MANAGEMENT_SPEC).read_text())
    both = [
        accesses([made["containerEdits"], *(d["containerEdits"] for d in made["devices"])]) for made in (ours, theirs)
    ]
    assert both[0] == both[1]
    assert both[0][0]["/dev/nvidia1"] == (0o660, VIDEO)
    assert both[0][1] == {VIDEO}
