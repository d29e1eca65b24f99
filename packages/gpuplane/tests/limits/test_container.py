"""A container's files for its limits, tried in containers: with mount namespaces, and without them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpulab.platform import SIMULATED_HARDWARE
from gpuplane.limits import Agent, GpuLimit, Limits, Observer, Owner, container, find_real, install
from gpuplane.limits.injection import LIBRARIES
from simgpu import NATIVE
from simgpu.machines import build_node
from simgpu.machines import machine as machine_of
from tests.support.limits_examples import GIB
from tinykube.kubelet.containers import BindMount, ContainerRecord, ContainerSpec, Isolation, Launcher, Records
from tinykube.kubelet.containers.launcher import find_mode, kill_all
from tinykube.kubelet.containers.records import signal_container

ROOT = Path(__file__).resolve().parents[4]
HOW = find_mode().isolation
LIMITS = 5 * GIB

PROGRAM = """
import ctypes, json, os, signal, pynvml
from ctypes import byref, c_size_t, c_uint64, c_void_p
def try_library(name):
    cuda = ctypes.CDLL(name)
    assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(byref(c_void_p()), 0, 0) == 0
    free, total, held = c_size_t(), c_size_t(), 0
    while cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(256 << 20)) == 0:
        held += 256 << 20
    cuda.cuMemGetInfo_v2(byref(free), byref(total))
    return held, total.value
pynvml.nvmlInit()
nvml = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total
with open(os.environ["ANSWER"], "w") as answer:
    # By the name without a version too, as numba asks first: the driver's file lies there.
    json.dump([*try_library("libcuda.so"), *try_library("libcuda.so.1"), nvml], answer)
signal.pause()
"""


@pytest.fixture
def built(native: Path) -> None:
    wanted = [f"limiter/{name}" for name in LIBRARIES]
    subprocess.run([sys.executable, str(ROOT / "native" / "build.py"), *wanted], check=True)


@pytest.mark.parametrize(
    "isolation",
    [
        pytest.param(
            HOW,
            id="namespaces",
            marks=[
                pytest.mark.namespaces,
                pytest.mark.skipif(HOW is Isolation.NONE, reason="the kernel refuses mount namespaces here"),
            ],
        ),
        pytest.param(Isolation.NONE, id="plain"),
    ],
)
async def test_a_container_is_held_to_its_share(
    built: None, machine: Any, tmp_path: Path, isolation: Isolation
) -> None:
    store, gpu = machine.store, machine.gpu
    real = find_real({}, first=(NATIVE,), cache="")
    install(store)
    limits = Limits((GpuLimit(uuid=gpu.uuid, core=30, memory_bytes=LIMITS),))
    what = container(store, "ids-1", real)
    store.write("ids-1", limits, Owner(name="ml/tune-7:main", pod_uid="u", container="main"))

    build_node(tmp_path, "n", machine_of("cpu-ubuntu24"))
    record = ContainerRecord(
        id="c",
        pod_uid="u",
        namespace="ml",
        pod="tune-7",
        name="main",
        attempt=0,
        image="x",
        log=str(tmp_path / "log"),
        created="now",
    )
    answer = tmp_path / "gate/answer"
    answer.parent.mkdir()
    os.mkfifo(answer)
    # As a runtime gives a container its driver and devices, and what the device plugin adds.
    driver = {"libcuda.so.1": real.cuda, "libnvidia-ml.so.1": real.nvml}
    mounts = [BindMount(str(answer.parent), "/gate")]
    for name, path in driver.items():
        mounts += [
            BindMount(str(path), f"/usr/lib/x86_64-linux-gnu/{n}", True) for n in (name, name.removesuffix(".1"))
        ]
    mounts += [
        BindMount(str(Path(mount.host_path).resolve()), mount.container_path, mount.read_only) for mount in what.mounts
    ]
    spec = ContainerSpec(
        argv=(sys.executable, "-c", PROGRAM),
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path), "ANSWER": "/gate/answer", **what.envs},
        mounts=tuple(mounts),
        devices=tuple(BindMount(str(machine.dev / name), f"/dev/{name}") for name in ("nvidiactl", "nvidia0")),
    )
    launcher = Launcher(tmp_path / "root", Records(tmp_path / "containers"), isolation, SIMULATED_HARDWARE)
    try:
        started = await launcher.start(record, spec, "now")
        held, cuda, nothing, again, nvml = json.loads(await asyncio.to_thread(answer.read_text))
        assert cuda == again == nvml == LIMITS and 4.5 * GIB < held <= LIMITS and nothing == 0

        agent = Agent(store, machine.gpus)
        agent.step()
        [share] = store.all()
        [use] = [slot.gpus[0] for slot in share.slots]
        assert use.held_bytes == held and use.other_bytes > 0, "its context is measured"
        [process] = Observer(store, machine.gpus).observe().processes
        assert process.share == "ids-1", "known by what it has mounted, or by its environment"
        assert agent.step().escapes == ()
        assert share.totals[0].refused == 2
    finally:
        signal_container(started, signal.SIGKILL)
        kill_all(tmp_path / "containers")
