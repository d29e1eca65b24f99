"""The meter against simulated boards of known load: their power and their work are the truth, not what NVML reports."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpuplane.exporter.render import GPUHolder, entities
from gpuplane.exporter.usage import SharesInUse, node_reading
from gpuplane.hardware import GPUSource, open_gpus
from gpuplane.limits import GpuLimit, Limits, Owner, ShareStore
from gpuplane.limits.page import UsagePage, UsageTotal
from gpuplane.metering import Meter, PodContainer
from gpuplane.names import LIMITS_DIR
from simgpu import NATIVE, PROFILES, create_state
from simgpu.faults import Faults

LIBRARIES = "usr/lib/x86_64-linux-gnu"
PROFILE = PROFILES["8x-h100"]
SECONDS = 0.4  # between readings, so that a busy machine's delay within a reading stays below the bound
READINGS = 5
BUSY_WATTS = 0.96 * PROFILE.model.power_limit
IDLE_WATTS = PROFILE.model.power_idle


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SIMGPU_DEV", str(tmp_path / "dev"))  # this process may have another machine's library
    (tmp_path / "dev").mkdir()
    (tmp_path / LIBRARIES).mkdir(parents=True)
    shutil.copy(NATIVE / "libnvidia-ml.so.1", tmp_path / LIBRARIES)
    create_state(tmp_path / "dev/nvidiactl", PROFILE, "570.133.20", "meter")
    for index in range(PROFILE.count):
        (tmp_path / f"dev/nvidia{index}").touch()
    yield tmp_path


class Metered:
    """Reads the machine as the exporter does; `seconds` are between the first reading and the last."""

    def __init__(self, root: Path, gpus: GPUSource, holders: dict[str, list[GPUHolder]]) -> None:
        self.meter = Meter()
        self._gpus, self._holders, self._shares = gpus, holders, SharesInUse(root)
        self._moments: list[int] = []

    def read(self) -> None:
        now = time.monotonic_ns()
        inventory, samples = self._gpus.inventory(), self._gpus.samples()
        shown = entities(inventory, samples)
        self.meter.read(node_reading(now, shown, samples, self._holders, {}, self._shares.read()))
        self._moments.append(now)

    @property
    def seconds(self) -> float:
        return (self._moments[-1] - self._moments[0]) / 1e9

    def joules(self, uuid: str, pod: str = "") -> float:
        found = [total for (gpu, who), total in self.meter.totals.items() if gpu == uuid and _pod(who) == pod]
        return sum(total.energy_joules or 0.0 for total in found)


def _pod(who: PodContainer | None) -> str:
    return who.pod if who else ""


def use(store: ShareStore, share: str, gpu_ns: int) -> None:
    """Count on a share's page as the interposed library does."""
    offset = UsagePage.totals.offset + UsageTotal.busy_ns.offset
    with (store.directory(share) / "usage").open("r+b") as page:
        os.pwrite(page.fileno(), gpu_ns.to_bytes(8, "little"), offset)


@pytest.mark.deadline(120)
def test_energy_of_whole_gpus_and_shares_adds_up_to_the_boards(root: Path) -> None:
    store = ShareStore(root / LIMITS_DIR)
    with closing(open_gpus(root)) as gpus, closing(Faults(root / "dev/nvidiactl")) as boards:
        whole, parted, free = (gpu.uuid for gpu in gpus.inventory()[:3])
        for name, core in (("a", 30), ("b", 50)):
            limits = Limits(gpus=(GpuLimit(uuid=parted, core=core, memory_bytes=8 << 30),))
            store.write(name, limits, Owner(name=f"ml/{name}:main", namespace="ml", pod=name, container="main"))
        holders = {
            whole: [GPUHolder("ml", "train", "main")],
            parted: [
                GPUHolder("ml", "a", "main", part=True, share_percent=30),
                GPUHolder("ml", "b", "main", part=True, share_percent=50),
            ],
        }
        metered = Metered(root, gpus, holders)
        # An idle time first, since the meter learns the idle power from it.
        metered.read()
        time.sleep(SECONDS)
        metered.read()
        boards.busy(0, 80)
        boards.busy(1, 60)
        began = time.monotonic_ns()
        for _ in range(READINGS):
            time.sleep(SECONDS)
            passed = time.monotonic_ns() - began
            use(store, "a", passed * 45 // 100)
            use(store, "b", passed * 15 // 100)
            metered.read()
        worked = (time.monotonic_ns() - began) / 1e9
    idle = IDLE_WATTS * metered.seconds
    work = (BUSY_WATTS - IDLE_WATTS) * worked
    close = pytest.approx
    assert metered.joules(whole, "train") == close(idle + 0.8 * work, rel=0.01)
    assert metered.joules(whole) == close(0, abs=1)
    assert metered.joules(free) == close(idle, rel=0.01)
    sums = metered.joules(parted, "a") + metered.joules(parted, "b") + metered.joules(parted)
    assert sums == close(idle + 0.6 * work, rel=0.01)
    assert metered.joules(parted, "a") == close(0.3 * idle + 0.45 * work, rel=0.05)
    assert metered.joules(parted, "b") == close(0.5 * idle + 0.15 * work, rel=0.05)
    held = [total.held_seconds for (gpu, _), total in metered.meter.totals.items() if gpu == parted]
    assert sum(held) == close(metered.seconds, rel=1e-6)
