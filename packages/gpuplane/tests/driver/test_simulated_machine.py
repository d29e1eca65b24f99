"""The whole way on simulated machines as they come from their installer, each in a process of its own: NVML is loaded.

Nothing is faked here: the root's own modprobe, the simulated driver's libraries, NVML's ordinary binding.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from simgpu import PROGRAMS, STATE_PATH

SCRIPT = """
import asyncio, json, os, sys
from pathlib import Path
from gpuplane.discovery import feature_labels, gpu_labels, observe as observe_features
from gpuplane.discovery.gpu import GpuFacts
from gpuplane.driver import WantedDriver, install
from gpuplane.driver.installer import uninstall
from gpuplane.hardware import open_gpus
from gpuplane.host import DriverReady, Host, mark_ready
from gpuplane.names import DRIVER_READY, DRIVER_ROOT
from simgpu.machines.machine import machine
from simgpu.machines.root import build_node
from gpuplane.toolkit import apply, observe, plan
from gpuplane.toolkit.applying import unconfigure
from gpulab.device_files import presenting

os.stat = presenting(os.stat)
directory, name = Path(sys.argv[1]), sys.argv[2]
made = machine(name)
build_node(directory, name, made)
root = directory / "root"
host = Host(root)

def tree():
    return {
        str(p): ("link", str(p.readlink())) if p.is_symlink() else p.read_bytes() if p.is_file() else None
        for p in root.rglob("*")
    }

async def way():
    before = tree()
    facts, decision = await install(host, wanted=WantedDriver(version="580.82.07"))
    if decision.action != "present":
        mark_ready(host, DRIVER_READY, DriverReady(False, f"/{DRIVER_ROOT}", f"/{DRIVER_ROOT}").encode())
    source = open_gpus(root if decision.action == "present" else root / DRIVER_ROOT)
    gpus, version, cuda = source.inventory(), source.driver_version(), source.cuda_version()
    source.close()
    planned = plan(observe(host, gpus=gpus, driver_version=version, runtime=f"{made.runtime}://{made.runtime_version}"))
    changed = await apply(host, planned)
    again = await apply(host, planned)
    labels = feature_labels(observe_features(host))
    labels |= gpu_labels(GpuFacts(driver=version, cuda=cuda, gpus=gpus))
    await unconfigure(host)
    await uninstall(host)
    after = tree()
    print(json.dumps({
        "action": decision.action, "module": facts.module, "version": version, "gpus": len(gpus),
        "changed": changed, "again": again, "labels": labels,
        "left": sorted(p for p in after.keys() | before.keys() if after.get(p) != before.get(p)),
    }))

asyncio.run(way())
"""


@pytest.mark.parametrize(
    ("name", "action", "gpus", "files", "labels"),
    [
        (
            "h100-ubuntu22",
            "done",
            8,
            {"etc/containerd/config.toml", "etc/containerd/conf.d/99-nvidia.toml"},
            {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.family": "hopper"},
        ),
        (
            "t4-ubuntu18",
            "present",
            1,
            {"etc/docker/daemon.json", "usr/local/nvidia/toolkit/nvidia-cdi-hook"},
            {
                "feature.node.kubernetes.io/cpu-cpuid.ADX": "true",
                "feature.node.kubernetes.io/pci-10de.present": "true",
                "feature.node.kubernetes.io/kernel-version.full": "4.15.0-1051-aws",
                "nvidia.com/cuda.driver.major": "535",
                "nvidia.com/cuda.runtime.major": "12",
                "nvidia.com/cuda.runtime.minor": "2",
                "nvidia.com/gpu.product": "Tesla-T4",
                "nvidia.com/gpu.memory": "15360",
            },
        ),
        ("a10g-rhel9", "done", 4, {"etc/crio/crio.conf.d/99-nvidia.toml"}, {"nvidia.com/gpu.count": "4"}),
    ],
)
def test_a_machine_is_prepared_and_given_back(
    tmp_path: Path, name: str, action: str, gpus: int, files: set[str], labels: dict[str, str]
) -> None:
    native = resources.files("simgpu") / "_native"
    if not all((native / part).is_file() for part in ("simhost", "libcuda.so.1", "libnvidia-ml.so.1")):
        pytest.skip("the simulated driver is not built: python native/build.py")
    env = os.environ | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"}  # as the containers of an ordinary user have it
    words = [sys.executable, "-c", SCRIPT, str(tmp_path), name]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["action"] == action
    assert answer["gpus"] == gpus
    assert answer["module"] == answer["version"]
    assert files < set(answer["changed"])
    assert answer["again"] == []
    assert {key: answer["labels"].get(key) for key in labels} == labels
    # The hardware's memory is no file of the machine.
    assert [path for path in answer["left"] if not path.endswith(STATE_PATH)] == []
