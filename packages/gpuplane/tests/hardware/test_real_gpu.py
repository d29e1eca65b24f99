"""The same questions to a real GPU, where there is one: what has to be true of any."""

from __future__ import annotations

import ctypes
from contextlib import closing
from pathlib import Path

import pytest

from gpuplane.hardware import MigMode, open_gpus

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def real_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A character device tells a real driver from the simulated one. A device without a driver's library is no GPU."""
    monkeypatch.delenv("SIMGPU_DEV", raising=False)
    if not Path("/dev/nvidiactl").is_char_device():
        pytest.skip("no real NVIDIA GPU on this machine")
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        pytest.skip(f"no real NVIDIA GPU on this machine: {error}")
    if hasattr(library, "simgpu_layout"):
        pytest.skip("this process has loaded the simulated NVML already; run this file alone")


def test_inventory_topology_samples_and_health_agree() -> None:
    with closing(open_gpus()) as gpus:
        inventory, samples, topology = gpus.inventory(), gpus.samples(), gpus.topology()
        assert inventory
        assert [sample.uuid for sample in samples] == [gpu.uuid for gpu in inventory] == list(topology.uuids)
        for gpu, sample, row in zip(inventory, samples, topology.matrix, strict=True):
            assert gpu.uuid.startswith("GPU-")
            assert Path("/sys/bus/pci/devices", gpu.pci).is_dir()
            assert Path(f"/dev/nvidia{gpu.minor}").exists()
            assert gpu.family != "undefined"
            assert sample.memory_total_bytes == gpu.memory_bytes
            assert row[gpu.index] == "X"
            mig = gpus.mig(gpu.uuid)
            assert (mig.mode is MigMode.UNSUPPORTED) == (mig.profiles == ())
        assert set(gpus.health()) <= {gpu.uuid for gpu in inventory}
        assert gpus.driver_version()[0].isdecimal()
        assert gpus.cuda_version() >= (11, 0)
