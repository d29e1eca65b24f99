"""Missing and foreign pages, and the layout of pages as Python writes them."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from gpuplane.limits import page

GIB = 1 << 30

USE = """
code = code_of("cuInit", 0)
answer([code, code or code_of("cuCtxCreate_v2", byref(c_void_p()), 0, 0)])
"""


def outcome(child: subprocess.Popen[str]) -> tuple[str, list[str]]:
    output, errors = child.communicate(timeout=30)
    return output.strip(), [line for line in errors.splitlines() if line.startswith("gpuplane:")]


@pytest.mark.parametrize(("way", "code"), [("", 802), ("closed", 802), ("open", 0)])
def test_without_a_page_there_is_no_gpu_unless_that_is_allowed(machine, tmp_path: Path, way: str, code: int) -> None:
    variables = machine.share("a") | {"GPUPLANE_LIMITS": str(tmp_path / "nowhere"), "GPUPLANE_LIMITS_MISSING": way}
    said, lines = outcome(machine.start(USE, variables))
    assert said == f"[{code}, {code}]"
    assert len(lines) == 1
    assert f"no limits: {tmp_path}/nowhere/limits: No such file" in lines[0]
    assert lines[0].endswith("runs without limits" if way == "open" else "there is no GPU for this process")


def test_nvml_is_closed_in_the_same_way(machine, tmp_path: Path) -> None:
    variables = machine.share("a") | {"GPUPLANE_LIMITS": str(tmp_path)}
    program = """
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        answer([nvml.nvmlInit_v2(), nvml.nvmlInit(), nvml.nvmlInitWithFlags(0)])
    """
    said, lines = outcome(machine.start(program, variables))
    assert (said, len(lines)) == ("[4, 4, 4]", 1)


@pytest.mark.parametrize("file", ["limits", "usage"])
@pytest.mark.parametrize(
    ("offset", "reason"),
    [(0, "not one of gpuplane's pages"), (8, "another version"), (12, "another size"), (-1, "another size")],
)
def test_a_foreign_page_is_refused(machine, file: str, offset: int, reason: str) -> None:
    variables = machine.share("a", memory_bytes=GIB)
    path = Path(variables["GPUPLANE_LIMITS"]) / file
    content = bytearray(path.read_bytes())
    if offset < 0:
        del content[-64:]
    else:
        content[offset] ^= 0x55
    path.write_bytes(content)
    said, lines = outcome(machine.start(USE, variables))
    assert said == "[802, 802]"
    assert len(lines) == 1 and reason in lines[0]


@pytest.mark.parametrize(("field", "value"), [("gpu_count", 17), ("tenant", 0)])
def test_impossible_values_are_refused(machine, field: str, value: int) -> None:
    variables = machine.share("a", memory_bytes=GIB)
    path = Path(variables["GPUPLANE_LIMITS"]) / "limits"
    wrong = page.LimitsPage.from_buffer_copy(path.read_bytes())
    setattr(wrong, field, value)
    path.write_bytes(bytes(wrong))
    said, lines = outcome(machine.start(USE, variables))
    assert said == "[802, 802]"
    assert "impossible values" in lines[0]


def test_an_entry_without_a_uuid_is_refused(machine) -> None:
    variables = machine.share("a", memory_bytes=GIB)
    path = Path(variables["GPUPLANE_LIMITS"]) / "limits"
    wrong = page.LimitsPage.from_buffer_copy(path.read_bytes())
    wrong.gpus[0].uuid = b"GPU-12"
    path.write_bytes(bytes(wrong))
    assert "entry 0 has no UUID" in outcome(machine.start(USE, variables))[1][0]


def test_a_full_usage_page_is_said(machine) -> None:
    variables = machine.share("a", memory_bytes=GIB)
    path = Path(variables["GPUPLANE_LIMITS"]) / "usage"
    full = page.UsagePage.from_buffer_copy(path.read_bytes())
    full.high_water = page.SLOTS
    for slot in full.slots:
        slot.owner = page.owner_word(1, 0x1234, 5)  # of another pid namespace: no process here may judge it
    path.write_bytes(bytes(full))
    said, lines = outcome(machine.start(USE, variables))
    assert said == "[802, 802]"
    assert "all 1024 slots" in lines[0]


def test_slots_of_the_dead_are_taken_again(machine) -> None:
    variables = machine.share("a", memory_bytes=GIB)
    for _ in range(5):
        machine.run("context()", variables)
    path = Path(variables["GPUPLANE_LIMITS"]) / "usage"
    assert page.UsagePage.from_buffer_copy(path.read_bytes()).high_water == 1


def test_python_and_c_lay_the_pages_out_alike(machine) -> None:
    seen = machine.run(
        """
        layout = cuda.gpuplane_page_layout
        layout.restype = c_uint64
        answer([layout(i) for i in range(18)])
        """,
        machine.share("a"),
    )
    kinds = (
        page.LimitsPage,
        page.LimitsGpu,
        page.UsagePage,
        page.UsageSlot,
        page.UsageGpu,
        page.UsageTotal,
    )
    assert seen == [
        *(ctypes.sizeof(kind) for kind in kinds),
        page.VERSION,
        page.LimitsPage.generation.offset,
        page.LimitsPage.name.offset,
        page.LimitsPage.gpus.offset,
        page.LimitsGpu.core.offset,
        page.UsagePage.high_water.offset,
        page.UsagePage.totals.offset,
        page.UsagePage.slots.offset,
        page.UsageSlot.gpus.offset,
        page.UsageGpu.other.offset,
        page.UsageTotal.paid_until.offset,
        0,
    ]
