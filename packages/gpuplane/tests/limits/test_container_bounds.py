"""A tenant that attacks its page from a container: its node has room, its neighbour goes on, the agent reports it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpulab.platform import SIMULATED_HARDWARE
from gpuplane.host.mounting import NODEV, NOSUID, mount, unmount
from gpuplane.limits import Agent, Arbiter, GpuLimit, Limits, Owner, Share, ShareStore, container, find_real, install
from gpuplane.limits.injection import LIBRARIES
from simgpu import NATIVE
from simgpu.machines import build_node
from simgpu.machines import machine as machine_of
from tests.support.limits_examples import GIB
from tests.support.share_attack import ATTACK, INSIDE, last
from tests.support.until import until
from tinykube.kubelet.containers import BindMount, ContainerRecord, ContainerSpec, Isolation, Launcher, Records
from tinykube.kubelet.containers.launcher import find_mode, kill_all
from tinykube.kubelet.containers.records import signal_container

ROOT = Path(__file__).resolve().parents[4]
DISK: Final = 64 << 20
MEMORY: Final = 2 * GIB
# Takes memory up to its limit and gives it back, again and again, and counts.
NEIGHBOUR = """
import ctypes, json
from ctypes import byref, c_size_t, c_uint64, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(byref(c_void_p()), 0, 0) == 0
rounds = 0
while True:
    held = []
    while cuda.cuMemAlloc_v2(byref(block := c_uint64()), c_size_t(128 << 20)) == 0:
        held.append(block)
    for block in held:
        assert cuda.cuMemFree_v2(block) == 0
    rounds += 1
    print(json.dumps([rounds, len(held) << 27]), flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A node's disk of 64 MiB, where no other program writes. Skips the test where none can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mount("disk", place, "tmpfs", NOSUID | NODEV, f"size={DISK}")
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error.strerror}")
    yield place
    unmount(place)  # with all that is mounted on it


@pytest.fixture
def built(native: Path) -> None:
    wanted = [f"limiter/{name}" for name in (*LIBRARIES, "arbiter")]
    subprocess.run([sys.executable, str(ROOT / "native" / "build.py"), *wanted], check=True)


@pytest.mark.namespaces
async def test_a_tenant_takes_no_more_of_its_node_than_its_page_however_it_tries(
    built: None, machine: Any, disk: Path, tmp_path: Path
) -> None:
    mode = find_mode().isolation
    if mode is not Isolation.ROOT:
        pytest.skip("a container whose root is root of its mounts needs root here")
    store = ShareStore(disk / "limits", disk / "limits")
    install(store)
    real = find_real({}, first=(NATIVE,), cache="")
    node = tmp_path / "node"  # what is mounted below it is unmounted with its containers
    build_node(node, "n", machine_of("cpu-ubuntu24"))
    launcher = Launcher(node / "root", Records(node / "containers"), mode, SIMULATED_HARDWARE)
    logs = {name: tmp_path / f"{name}.log" for name in ("thief", "neighbour")}

    async def start(name: str, program: str) -> ContainerRecord:
        limits = Limits((GpuLimit(uuid=machine.gpu.uuid, core=30, memory_bytes=MEMORY),))
        store.write(name, limits, Owner(name=f"ml/{name}:main", pod_uid=name, container="main"))
        what = container(store, name, real)
        mounts = [
            BindMount(str(Path(one.host_path).resolve()), one.container_path, one.read_only) for one in what.mounts
        ]
        record = ContainerRecord(
            id=name, pod_uid=name, namespace="ml", pod=name, name="main", attempt=0, image="x", log=str(logs[name]),
            created="now",
        )  # fmt: skip
        devices = tuple(BindMount(str(machine.dev / one), f"/dev/{one}") for one in ("nvidiactl", "nvidia0"))
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path), **what.envs}
        spec = ContainerSpec(argv=(sys.executable, "-c", program), env=env, mounts=tuple(mounts), devices=devices)
        return await launcher.start(record, spec, "now")

    def printed(name: str) -> str:
        """Return the output of a container, without the times of its log."""
        lines = logs[name].read_text().split("\n")
        return "\n".join(line.split(" ", 3)[-1] for line in lines)

    def neighbours_rounds() -> int:
        lines = [line for line in printed("neighbour").split("\n")[:-1] if line.startswith("[")]
        rounds, held = json.loads(lines[-1]) if lines else (0, MEMORY)
        assert MEMORY - 512 * (1 << 20) <= held <= MEMORY, "its limit holds"
        return int(rounds)

    accused: list[str] = []

    def accuse(share: Share) -> None:
        accused.append(share.id)

    started: list[ContainerRecord] = []
    with Arbiter(store) as arbiter:
        agent = Agent(store, machine.gpus, arbiter=arbiter, on_tamper=accuse)
        try:
            started.append(await start("neighbour", NEIGHBOUR))
            await until(neighbours_rounds, what="a neighbour at work")
            started.append(await start("thief", ATTACK))
            room = os.statvfs(disk)
            free = room.f_bavail * room.f_frsize
            begun = neighbours_rounds()

            def attacked() -> bool:
                agent.step()
                (disk / "written by the node").write_bytes(bytes(1 << 20))
                taken = last(printed("thief"))
                return taken is not None and taken.rounds >= 100 and neighbours_rounds() > begun + 20 and bool(accused)

            await until(lambda: asyncio.to_thread(attacked), seconds=300.0, what="100 rounds of the attack")
            taken = last(printed("thief"))
        finally:
            for record in started:
                signal_container(record, signal.SIGKILL)
            kill_all(node / "containers")
    assert taken is not None
    page = os.statvfs(store.directory("thief") / "usage")
    assert taken.done >= INSIDE, "it has tried"
    assert taken.done.isdisjoint({"directory", "file", "symbolic link", "link", "node", "name", "end", "limits"})
    assert taken.most_blocks <= page.f_blocks * page.f_frsize <= 1_200_000
    assert taken.most_attributes <= 4096
    # The disk has never lost more than the node itself wrote meanwhile.
    assert free - taken.least_free <= 2 << 20
    assert set(accused) == {"thief"}
    store.mend()  # it was killed in the middle
    assert {share.id for share in store.all()} == {"neighbour", "thief"}
