"""The vectorAdd on the simulated driver: the very program and library that pods get."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.validator.driver_api import LIBRARY
from gpuplane.validator.process import PROGRAM, VectorAddProcess
from kubekit.errors import Terminal
from simgpu import NATIVE, PROFILES, Faults, create_state
from simgpu.profile import gpu_uuid
from tests.support.compiler import compiler

PROFILE = PROFILES["2x-l4"]
UUIDS = [gpu_uuid(PROFILE, "sim-1", index) for index in range(PROFILE.count)]
VERSION, COMPILER = "570.133.20", "libnvidia-ptxjitcompiler.so.1"
EXPECTED = """\
[Vector addition of 50000 elements]
Copy input data from the host memory to the CUDA device
CUDA kernel launch with 196 blocks of 256 threads
Copy output data from the CUDA device to the host memory
Test PASSED
Done
"""


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """The device nodes of a machine with two L4."""
    folder = tmp_path / "dev"
    folder.mkdir()
    create_state(folder / "nvidiactl", PROFILE, "570.133.20", "sim-1")
    for index in range(PROFILE.count):
        (folder / f"nvidia{index}").touch()
    return folder


@pytest.fixture
def faults(dev: Path) -> Iterator[Faults]:
    with Faults(dev / "nvidiactl") as faults:
        yield faults


@pytest.fixture
def vector_add(dev: Path, monkeypatch: pytest.MonkeyPatch) -> VectorAddProcess:
    monkeypatch.setenv("SIMGPU_DEV", str(dev))
    return VectorAddProcess(NATIVE / LIBRARY)


def started(dev: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {"LD_LIBRARY_PATH": str(NATIVE), "SIMGPU_DEV": str(dev)}
    return subprocess.run(
        [sys.executable, "-m", PROGRAM, *arguments], env=env, capture_output=True, text=True, check=False
    )


async def test_every_gpu_passes_with_the_output_that_people_know(vector_add: VectorAddProcess) -> None:
    for uuid in UUIDS:
        assert await vector_add(uuid) == EXPECTED


async def test_a_gpu_that_computes_wrongly_is_caught_and_the_other_is_not_touched(
    vector_add: VectorAddProcess, faults: Faults
) -> None:
    faults.wrong_results(1)
    with pytest.raises(Terminal, match=r"element \d+ of 50000 is .* and should be") as caught:
        await vector_add(UUIDS[1])
    assert UUIDS[1] in caught.value.where
    assert "take the GPU out of use" in caught.value.cure
    assert await vector_add(UUIDS[0]) == EXPECTED
    faults.clear(1)
    assert await vector_add(UUIDS[1]) == EXPECTED


async def test_a_gpu_off_the_bus_is_an_error_with_cudas_name(vector_add: VectorAddProcess, faults: Faults) -> None:
    faults.off_bus(1)
    with pytest.raises(Terminal):
        await vector_add(UUIDS[1])
    assert await vector_add(UUIDS[0]) == EXPECTED


@pytest.fixture
def host_folder(tmp_path: Path) -> Path:
    """A host's library folder: the driver of one version, a compiler that it opens by name, and another glibc."""
    folder = tmp_path / "host/usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    shutil.copy(NATIVE / LIBRARY, folder / f"libcuda.so.{VERSION}")
    source = tmp_path / "compiler.c"
    source.write_text("int answers(void) { return 42; }\n")
    jit = folder / f"libnvidia-ptxjitcompiler.so.{VERSION}"
    subprocess.run(
        [*compiler(), "-shared", "-o", str(jit), f"-Wl,-soname,{COMPILER}", str(source)],
        check=True,
        capture_output=True,
    )
    (folder / f"libnvidia-nvvm.so.{VERSION}").write_text("not for this processor")
    for name in ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"):
        (folder / name).write_text("of another distribution")
    return folder


async def test_the_hosts_glibc_never_comes_into_the_process(host_folder: Path, dev: Path) -> None:
    # The driver finds the device nodes of the host that it lies on.
    dev.rename(host_folder.parents[2] / "dev")
    assert await VectorAddProcess(host_folder / f"libcuda.so.{VERSION}")(UUIDS[0]) == EXPECTED


def test_what_the_driver_opens_by_name_is_the_file_beside_it(host_folder: Path, dev: Path) -> None:
    code = (
        "import ctypes, sys; from gpuplane.validator.driver_api import CudaDriver\n"
        "driver = CudaDriver(sys.argv[1])\n"
        f"print(ctypes.CDLL({COMPILER!r}).answers())\n"
        "print(open('/proc/self/maps').read())"
    )
    library = host_folder / f"libcuda.so.{VERSION}"
    done = subprocess.run(
        [sys.executable, "-c", code, str(library)], env={"SIMGPU_DEV": str(dev)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    answer, _, maps = done.stdout.partition("\n")
    assert answer == "42", done.stderr
    mapped = {line.rpartition("/")[2] for line in maps.splitlines() if f" {host_folder}" in line}
    assert mapped == {library.name, f"libnvidia-ptxjitcompiler.so.{VERSION}"}


def test_exit_codes_and_what_is_said(dev: Path, faults: Any) -> None:
    assert started(dev).returncode == 0
    assert started(dev, "--gpu", "1").stdout == EXPECTED
    unknown = started(dev, "--gpu", "GPU-none")
    assert (unknown.returncode, unknown.stdout.splitlines()[-1]) == (1, "Test FAILED")
    assert unknown.stderr.splitlines() == [
        "what   no GPU GPU-none is visible here",
        f"cure   choose one of: {UUIDS[0]}, {UUIDS[1]}",
    ]
    for index in range(PROFILE.count):
        (dev / f"nvidia{index}").unlink()
    none = started(dev)
    assert none.returncode == 1
    assert "CUDA_ERROR_NO_DEVICE (100)" in none.stderr
    assert "nvidia.com/gpu" in none.stderr
