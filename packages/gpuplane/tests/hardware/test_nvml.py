"""GPUs as the hardware package reads them through NVML, on the simulated driver."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpulab.light.gpus import SimulatedGPUs
from gpuplane.hardware import HealthEventKind, MigMode, Sample, find_library, open_gpus, to_api
from kubekit.errors import Retryable, Terminal
from simgpu import PROFILES

Make = Callable[[str], Any]
MIB = 1 << 20

# Holds memory and keeps the GPU busy; prints a line once both are so.
WORKER = """
import ctypes, sys
from ctypes import byref, c_size_t, c_uint64, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)
context, address, module, function = c_void_p(), c_uint64(), c_void_p(), c_void_p()
call("cuInit", 0); call("cuCtxCreate_v2", byref(context), 0, 0)
call("cuMemAlloc_v2", byref(address), c_size_t(2 << 30))
text = b'''.version 7.0
.target sm_35
.address_size 64
.visible .entry work() { .pragma "simgpu.time_ns 600000000"; ret; }'''
call("cuModuleLoadData", byref(module), text)
call("cuModuleGetFunction", byref(function), module, b"work")
call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
call("cuCtxSynchronize")
print("busy", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_without_library_says_what_the_library_says(make_machine: Make, name: str) -> None:
    machine = make_machine(name)
    through_nvml, without = machine.open(), SimulatedGPUs(machine.profile, machine.root.name)
    assert through_nvml.inventory() == without.inventory()
    assert through_nvml.topology() == without.topology()
    assert through_nvml.driver_version() == without.driver_version()
    assert through_nvml.cuda_version() == without.cuda_version() == (12, 8)
    assert through_nvml.health() == without.health() == {}
    for gpu in without.inventory():
        assert through_nvml.mig(gpu.uuid) == without.mig(gpu.uuid)
        assert through_nvml.processes(gpu.uuid) == without.processes(gpu.uuid) == ()
    for seen, expected in zip(through_nvml.samples(), without.samples(), strict=True):
        differ = {f for f in Sample.__struct_fields__ if getattr(seen, f) != getattr(expected, f)}
        assert differ <= {"energy_millijoules"}
        assert (seen.energy_millijoules is None) == (expected.energy_millijoules is None)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("8x-h100", ("X", *["NV18"] * 7)),
        ("8x-a100", ("X", *["NV12"] * 7)),
        ("4x-a10g", ("X", "PHB", "PHB", "PHB")),
        ("2x-l4", ("X", "SYS")),
        ("1x-k80", ("X",)),
    ],
)
def test_topology_is_that_of_nvidia_smi(make_machine: Make, name: str, row: tuple[str, ...]) -> None:
    topology = make_machine(name).open().topology()
    assert topology.matrix[0] == row
    assert all(topology.matrix[i][j] == topology.matrix[j][i] for i in range(len(row)) for j in range(len(row)))


def test_numa_and_cpus_follow_the_socket(make_machine: Make) -> None:
    topology = make_machine("2x-l4").open().topology()
    assert topology.numa == (0, 1)
    assert topology.cpus == ("0-23,48-71", "24-47,72-95")


def test_the_api_form_of_a_gpu(make_machine: Make) -> None:
    machine = make_machine("1x-t4")
    gpu = to_api(machine.open().inventory()[0])
    assert (gpu.model, gpu.memory_mib, gpu.pci, gpu.compute, gpu.mig, gpu.links) == (
        "Tesla T4", 15360, "0000:00:1e.0", "7.5", "", (),
    )  # fmt: skip


def test_gpus_without_a_device_node_are_not_there(make_machine: Make) -> None:
    machine = make_machine("4x-a10g")
    for minor in (0, 2):
        (machine.dev / f"nvidia{minor}").unlink()
    gpus = machine.open().inventory()
    assert [(gpu.index, gpu.minor) for gpu in gpus] == [(0, 1), (1, 3)]
    assert [[path.gpu for path in gpu.links] for gpu in gpus] == [[1], [0]]


def test_no_library_is_worth_another_try(tmp_path: Path) -> None:
    assert find_library(tmp_path) is None
    with pytest.raises(Retryable, match=str(tmp_path)):
        open_gpus(tmp_path)


def test_links_of_the_library_mean_the_drivers_root(tmp_path: Path) -> None:
    """As Debian's alternatives are: absolute links, of the host and not of the pod that looks."""
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    (folder / "nvidia").mkdir(parents=True)
    (folder / "nvidia/libnvidia-ml.so.570.1").touch()
    (folder / "nvidia/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.570.1")
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "etc/alternatives/nvml").symlink_to("/usr/lib/x86_64-linux-gnu/nvidia/libnvidia-ml.so.1")
    (folder / "libnvidia-ml.so.1").symlink_to("/etc/alternatives/nvml")
    assert find_library(tmp_path) == folder / "nvidia/libnvidia-ml.so.570.1"
    (tmp_path / "etc/alternatives/nvml").unlink()
    (tmp_path / "etc/alternatives/nvml").symlink_to("/etc/alternatives/nvml")
    assert find_library(tmp_path) is None


def test_a_library_that_is_none_is_not(tmp_path: Path) -> None:
    path = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    path.parent.mkdir(parents=True)
    path.write_text("no library")
    assert find_library(tmp_path) == path
    with pytest.raises(Terminal, match="reinstall"):
        open_gpus(tmp_path)


def test_a_driver_that_is_not_loaded_is_worth_another_try(make_machine: Make) -> None:
    machine = make_machine("1x-t4")
    (machine.dev / "nvidiactl").unlink()
    with pytest.raises(Retryable, match="modprobe nvidia"):
        machine.open()


def test_a_driver_of_another_release_is_not(make_machine: Make) -> None:
    machine = make_machine("1x-t4")
    (machine.dev / "nvidiactl").write_bytes(b"something else")
    with pytest.raises(Terminal, match="mismatch"):
        machine.open()


def test_work_shows_in_utilisation_power_temperature_clocks_and_processes(make_machine: Make) -> None:
    machine = make_machine("1x-t4")
    gpus, model = machine.open(), machine.profile.model
    uuid = gpus.inventory()[0].uuid
    idle = gpus.samples()[0]
    worker = machine.program(WORKER)
    assert worker.stdout.readline() == "busy\n"
    busy, [process] = gpus.samples()[0], gpus.processes(uuid)
    assert busy.gpu_percent > 50
    assert idle.power_watts == model.power_idle < busy.power_watts <= model.power_limit
    assert idle.temperature_celsius < busy.temperature_celsius
    assert (idle.sm_clock_mhz, busy.sm_clock_mhz) == (model.idle_clock, model.sm_clock)
    # Busy for 0.6 s: that much more energy than at rest.
    assert busy.energy_millijoules - idle.energy_millijoules > 0.6 * 50_000
    held = (2048 + model.context_mib) * MIB
    assert busy.memory_used_bytes == held
    assert busy.memory_total_bytes - busy.memory_free_bytes - busy.memory_reserved_bytes == held
    assert (process.pid, process.memory_bytes) == (worker.pid, held)
    assert "python" in process.name
    [sample] = pynvml.nvmlDeviceGetProcessUtilization(pynvml.nvmlDeviceGetHandleByUUID(uuid), 0)
    assert sample.pid == worker.pid
    assert sample.smUtil > 30
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert gpus.processes(uuid) == ()
    assert gpus.samples()[0].memory_used_bytes == 0


def test_work_queued_by_a_killed_process_is_not_waited_for(make_machine: Make) -> None:
    machine = make_machine("1x-t4")
    gpus = machine.open()
    text = WORKER.replace("600000000", "3600000000000").replace('call("cuCtxSynchronize")', "")
    ghost = machine.program(text)
    ghost.stdout.readline()
    ghost.kill()
    ghost.communicate()
    assert gpus.samples()[0].energy_millijoules < 60_000  # an hour's work would be 200,000 J
    worker = machine.program(WORKER.replace("600000000", "1000000"))
    assert worker.stdout.readline() == "busy\n"
    worker.communicate()


def test_profiling_counters_say_what_happened_between_two_readings(make_machine: Make) -> None:
    machine = make_machine("8x-h100")
    gpus = machine.open()
    assert gpus.samples()[0].engine_active is None
    worker = machine.program(WORKER)
    assert worker.stdout.readline() == "busy\n"
    busy, other = gpus.samples()[:2]
    assert 0.1 < busy.engine_active <= 1
    assert (busy.tensor_active, other.engine_active, other.dram_active) == (0, 0, 0)
    worker.communicate()
    gpus.close()
    older = make_machine("8x-a100").open()
    older.samples()
    assert older.samples()[0].engine_active is None


def test_a_declared_load_shows_and_ends(make_machine: Make) -> None:
    machine = make_machine("2x-l4")
    gpus = machine.open()
    with machine.faults() as faults:
        faults.busy(1, 80, memory_percent=30, encoder_percent=5, memory_bytes=3 << 30, pid=1)
        other, sample = gpus.samples()
        assert (sample.gpu_percent, sample.memory_percent, sample.encoder_percent) == (80, 30, 5)
        assert (sample.memory_used_bytes, other.gpu_percent) == (3 << 30, 0)
        assert [process.pid for process in gpus.processes(sample.uuid)] == [1]
        faults.busy(1, 0)
        assert gpus.samples()[1].gpu_percent == 0
        assert gpus.processes(sample.uuid) == ()


async def test_faults_come_as_events_and_show_in_health_until_they_are_cleared(make_machine: Make) -> None:
    machine = make_machine("2x-l4")
    gpus = machine.open()
    one, two = (gpu.uuid for gpu in gpus.inventory())
    async with aclosing(gpus.events()) as events:
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)  # it listens from its first step on
        with machine.faults() as faults:
            faults.xid(1, 13)
            event = await first
            assert (event.uuid, event.xid, event.critical) == (two, 13, False)
            assert gpus.health() == {}
            faults.ecc(0, uncorrected=2)
            event = await anext(events)
            assert (event.uuid, event.kind, event.critical) == (one, HealthEventKind.ECC_DOUBLE, True)
            assert (await anext(events)).xid == 48
            assert gpus.health() == {one: "2 uncorrected ECC errors"}
            assert gpus.samples()[0].ecc_uncorrected_volatile == 2
            faults.ecc(1, corrected=3)
            assert (await anext(events)).kind is HealthEventKind.ECC_SINGLE
            faults.off_bus(1)
            event = await anext(events)
            assert (event.uuid, event.kind, event.xid) == (two, HealthEventKind.LOST, 79)
            assert list(gpus.health()) == [one, two]
            lost = gpus.samples()[1]
            assert (lost.lost, lost.gpu_percent, lost.last_xid) == (True, None, 79)
            assert len(gpus.inventory()) == 2
            faults.clear(0)
            faults.clear(1)
            assert {(await anext(events)).uuid, (await anext(events)).uuid} == {one, two}
    assert gpus.health() == {}
    assert [sample.lost for sample in gpus.samples()] == [False, False]


def test_row_remapping_shows(make_machine: Make) -> None:
    machine = make_machine("8x-a100")
    gpus = machine.open()
    with machine.faults() as faults:
        faults.remapped_rows(2, correctable=1, uncorrectable=2, failure=True)
    sample = gpus.samples()[2]
    assert (sample.remapped_rows_correctable, sample.remapped_rows_uncorrectable, sample.row_remap_failure) == (
        1,
        2,
        True,
    )
    assert gpus.health() == {sample.uuid: "row remapping failed"}


def test_counters_that_only_grow(make_machine: Make) -> None:
    machine = make_machine("8x-h100")
    gpus = machine.open()
    with machine.faults() as faults:
        faults.count(0, pcie_replays=3, nvlink_bytes=10 * MIB)
    sample = gpus.samples()[0]
    assert (sample.pcie_replays, sample.nvlink_bytes) == (3, 10 * MIB)


def test_a_source_names_the_gpus_it_has(make_machine: Make) -> None:
    gpus = make_machine("1x-t4").open()
    with pytest.raises(Terminal, match="no GPU GPU-0"):
        gpus.mig("GPU-0")
    gpus.close()
    gpus.close()


def test_mig_devices_are_made_used_and_removed(make_machine: Make) -> None:
    machine = make_machine("8x-h100")
    gpus = machine.open()
    uuid = gpus.inventory()[0].uuid
    assert {profile.name: profile.capacity for profile in gpus.mig(uuid).profiles} == {
        "1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1, "1g.10gb+me": 1, "1g.20gb": 4,
    }  # fmt: skip
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    pynvml.nvmlDeviceSetMigMode(handle, 1)
    instances = [pynvml.nvmlDeviceCreateGpuInstance(handle, 9), pynvml.nvmlDeviceCreateGpuInstance(handle, 14)]
    for instance, profile in zip(instances, (2, 1), strict=True):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile)
        old, new = (
            pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, 0, version) for version in (1, 2)
        )
        assert (old.id, old.sliceCount) == (new.id, new.sliceCount) == (profile, profile + 1)
    mig = gpus.mig(uuid)
    assert mig.mode is MigMode.ENABLED
    assert [(device.profile, device.slices, device.memory_bytes >> 20) for device in mig.devices] == [
        ("3g.40gb", 3, 40448),
        ("2g.20gb", 2, 20096),
    ]
    assert {profile.name: profile.free for profile in mig.profiles if profile.free} == {
        "1g.10gb": 2, "1g.10gb+me": 1, "1g.20gb": 1, "2g.20gb": 1,
    }  # fmt: skip
    assert gpus.inventory()[0].mig_devices == mig.devices
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlDeviceCreateGpuInstance(handle, 5)

    worker = machine.program(WORKER)
    assert worker.stdout.readline() == "busy\n"
    [process] = gpus.processes(uuid)
    assert process.gpu_instance == mig.devices[0].gpu_instance
    used, idle = gpus.samples()[0].instances
    assert (used.gpu_instance, used.memory_total_bytes) == (process.gpu_instance, mig.devices[0].memory_bytes)
    assert (used.memory_used_bytes or 0) > 2 << 30
    assert idle.memory_used_bytes == 0
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlComputeInstanceDestroy(instances[0])
    worker.communicate()
    for instance in instances:
        pynvml.nvmlComputeInstanceDestroy(instance)
        pynvml.nvmlGpuInstanceDestroy(instance)
    pynvml.nvmlDeviceSetMigMode(handle, 0)
    assert gpus.mig(uuid).devices == gpus.inventory()[0].mig_devices == ()


def test_a_gpu_without_mig_says_so(make_machine: Make) -> None:
    gpus = make_machine("1x-t4").open()
    mig = gpus.mig(gpus.inventory()[0].uuid)
    assert (mig.mode, mig.profiles, mig.devices) == (MigMode.UNSUPPORTED, (), ())


def test_every_name_that_the_binding_knows_answers(make_machine: Make, native: Path) -> None:
    """nvidia-ml-py looks functions up by name; none of those it knows may be missing for a plain GPU query."""
    make_machine("1x-t4").open()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    queries = [name for name in dir(pynvml) if name.startswith("nvmlDeviceGet")]
    missing, answered = [], 0
    for name in queries:
        try:
            getattr(pynvml, name)(handle)
            answered += 1
        except TypeError:
            continue  # wants more than a GPU
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                missing.append(name)
    assert missing == []
    assert answered > 50
