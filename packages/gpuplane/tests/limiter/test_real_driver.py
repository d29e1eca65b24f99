"""The limiter before NVIDIA's own libraries, as Debian has them: what can be seen without a GPU.

They load behind the limiter, every row of its table is the form that the driver has, and nothing that takes memory or
time is missing in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpuplane.limits.injection import LIMITER
from packages.gpuplane.tests.limiter.test_table import WHERE, hook_rows, hooked
from tests.support.nvidia_libraries import BRANCHES, Libraries, driver, exported

NO_DEVICE: Final = 100
DRIVER_NOT_LOADED: Final = 9  # NVML's
# Functions whose name suggests memory or time of a GPU. Each function that the limiter does not wrap has a reason here.
TAKES: Final = re.compile(
    r"cu(Mem(Alloc|Create)|Array(3D)?Create|MipmappedArrayCreate|Launch|GraphLaunch|GraphInstantiate|Multicast(Create|Bind)"
    r"|Mem(cpy|set)|\w*Ctx(Create|Retain|Attach)|Import|Ipc(Open|Get))"
)
LEFT: Final = {
    "cuMemAllocHost": "memory of the host",
    "cuMemAllocHost_v2": "memory of the host",
    "cuMulticastCreate": "an address for memory that is charged where it is created",
    "cuMulticastBindMem": "memory that is charged where it is created",
    "cuMulticastBindAddr": "memory that is charged where it is created",
    "cuImportExternalMemory": "memory of another API, which is charged to no share",
    "cuImportExternalSemaphore": "no memory",
    "cuIpcGetMemHandle": "memory that is charged where it was allocated",
    "cuIpcOpenMemHandle": "memory that is charged where it was allocated",
    "cuIpcOpenMemHandle_v2": "memory that is charged where it was allocated",
    "cuIpcGetEventHandle": "no memory",
}
# Copies from and to the host, which copy engines run.
OF_HOST: Final = re.compile(r"cuMemcpy(HtoD|DtoH|HtoA|AtoH)(Async)?(_v2)?(_ptds|_ptsz)?")
# NVML functions whose name suggests processes of other containers. Each that the limiter does not wrap has a reason.
PROCESSES: Final = re.compile(r"Process|Accounting(Pids|Stats)|Sessions")
NO_PROCESSES: Final = {
    "nvmlSystemGetProcessName": "reads /proc of the container",
    "nvmlDeviceClearAccountingPids": "needs root on the host",
    **dict.fromkeys(
        (
            "nvmlDeviceGetVgpuProcessUtilization",
            "nvmlDeviceGetVgpuProcessesUtilizationInfo",
            "nvmlVgpuInstanceClearAccountingPids",
            "nvmlVgpuInstanceGetAccountingPids",
            "nvmlVgpuInstanceGetAccountingStats",
            "nvmlVgpuInstanceGetEncoderSessions",
            "nvmlVgpuInstanceGetFBCSessions",
        ),
        "processes of virtual machines, on a host of such",
    ),
}
NEWER: Final = {"nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetAccountingStats_v2"}  # than these branches
# Of every name the forms in each version of CUDA, as the library that is loaded answers.
FORMS: Final = (
    WHERE
    + """
import functools
where = functools.cache(where)
found, status = c_void_p(), c_int()
def form(name, version, flags):
    assert cuda.cuGetProcAddress_v2(name.encode(), byref(found), version, c_uint64(flags), byref(status)) == 0
    return where(found.value) if found.value else [None, status.value]
names, versions = json.loads(sys.stdin.readline())
answer([[form(name, version, flags) for version in versions for flags in (0, 1, 2, 3)] for name in names])
"""
)
VERSIONS: Final = [1000 * major + 10 * minor for major in range(2, 14) for minor in range(9)]


@pytest.fixture(autouse=True)
def same_devices() -> Iterator[None]:
    """Take away the device nodes that NVIDIA's libcuda makes by itself where root calls cuInit."""
    devices = Path("/dev")
    before = set(devices.glob("nvidia*"))
    yield
    for node in set(devices.glob("nvidia*")) - before:
        node.unlink()


@pytest.fixture(params=sorted(BRANCHES))
def real(request: pytest.FixtureRequest, machine: Any) -> Libraries:
    """A branch of NVIDIA's driver, behind the limiter of the machine."""
    libraries = driver(request.param)
    for name, library in {"libcuda.so": libraries.cuda, "libnvidia-ml.so": libraries.nvml}.items():
        link = machine.libraries / f"{name}.gpuplane-real"
        link.unlink()
        link.symlink_to(library)
    return libraries


@pytest.fixture
def alone(real: Libraries, tmp_path: Path) -> dict[str, str]:
    """The variables of a program that loads the driver's libraries without the limiter."""
    folder = tmp_path / "alone"
    folder.mkdir()
    (folder / "libcuda.so.1").symlink_to(real.cuda)
    (folder / "libnvidia-ml.so.1").symlink_to(real.nvml)
    return {"LD_LIBRARY_PATH": str(folder)}


def asked(machine: Any, variables: dict[str, str], program: str, question: object) -> Any:
    child = machine.start(program, variables)
    output, errors = child.communicate(json.dumps(question) + "\n", timeout=60)
    assert child.returncode == 0, errors
    return json.loads(output)


def names_of(library: Path) -> list[str]:
    return sorted(name for name in exported(library) if re.match(r"cu[A-Z]", name))


def test_the_driver_loads_behind_the_limiter_and_says_the_same(machine, real, alone) -> None:
    program = """
        version, found = c_int(), c_void_p()
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        answer([code_of("cuInit", 0), code_of("cuDriverGetVersion", byref(version)), version.value,
                code_of("cuCtxCreate_v2", byref(found), 0, 0), nvml.nvmlInit_v2()])
    """
    said = machine.run(program, machine.share("a"))
    assert said == machine.run(program, alone)
    assert (said[0], said[4]) == (NO_DEVICE, DRIVER_NOT_LOADED)


def test_every_name_comes_out_of_the_limiter_or_falls_through(machine, real) -> None:
    names = names_of(real.cuda)
    assert len(names) > 550
    program = WHERE + "names = json.loads(sys.stdin.readline())\n"
    program += "answer([where(ctypes.cast(getattr(cuda, name), c_void_p).value) for name in names])"
    seen = asked(machine, machine.share("a"), program, names)
    ours = hooked()
    assert dict(zip(names, seen, strict=True)) == {
        name: ["limiter" if name in ours else "driver", name] for name in names
    }


def test_every_name_is_answered_with_the_form_that_the_driver_has(machine, real, alone) -> None:
    bases = sorted({re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name) for name in names_of(real.cuda)})
    question = [bases, VERSIONS]
    seen, own = (asked(machine, variables, FORMS, question) for variables in (machine.share("a"), alone))
    ours = hooked()
    expected = [[["limiter" if form[1] in ours else form[0], form[1]] for form in forms] for forms in own]
    wrong = {name: (got, want) for name, got, want in zip(bases, seen, expected, strict=True) if got != want}
    assert wrong == {}


def test_every_row_of_the_table_is_a_form_of_the_driver(machine, alone) -> None:
    rows = hook_rows()
    seen = asked(machine, alone, FORMS, [sorted({row[0] for row in rows}), VERSIONS])
    forms = dict(zip(sorted({row[0] for row in rows}), seen, strict=True))
    known = {form[1] for answers in forms.values() for form in answers}
    checked = 0
    for name, version, plain, per_thread in rows:
        if plain not in known:
            assert version > 12_000, plain  # of a newer driver
            continue
        at = 4 * VERSIONS.index(version)
        before = forms[name][at - 4][1] if at else None
        assert (forms[name][at][1], before != plain) == (plain, True), name
        late = 4 * VERSIONS.index(max(version, 7000))
        if forms[name][late][1] == plain:
            assert forms[name][late + 2][1] == per_thread, name
        checked += 1
    assert checked > 60


def test_whatever_takes_memory_or_time_is_in_the_table(real) -> None:
    takes = {name for name in names_of(real.cuda) if TAKES.match(name)}
    assert {name for name in takes - hooked() - set(LEFT) if not OF_HOST.fullmatch(name)} == set()


def test_nvml_s_names_come_out_of_the_limiter_or_fall_through(machine, real) -> None:
    names = sorted(name for name in exported(real.nvml) if name.startswith("nvml"))
    ours = exported(LIMITER / "libnvidia-ml.so.1") - {"gpuplane_page_layout"}
    assert len(names) > 300 and ours - NEWER <= set(names)
    assert {name for name in names if "DeviceGetMemoryInfo" in name} <= ours
    assert {name for name in names if PROCESSES.search(name)} - ours - set(NO_PROCESSES) == set()
    program = (
        WHERE
        + """
names = json.loads(sys.stdin.readline())
nvml = ctypes.CDLL("libnvidia-ml.so.1")
answer([where(ctypes.cast(getattr(nvml, name), c_void_p).value) for name in names])
"""
    )
    seen = asked(machine, machine.share("a"), program, names)
    assert dict(zip(names, seen, strict=True)) == {
        name: ["limiter" if name in ours else "driver", name] for name in names
    }
