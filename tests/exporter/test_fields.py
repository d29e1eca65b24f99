"""Which metrics there are, and the choice of them in a CSV file made for DCGM."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.errors import InvalidInput
from gpuplane.exporter.fields import DEFAULT_FIELDS, FieldType, load, parse, read
from gpuplane.hardware import GPU, Sample

H100 = GPU(index=0, minor=0, uuid="GPU-0", name="H100", memory_bytes=1, pci="", compute=(9, 0))
K80 = GPU(index=0, minor=0, uuid="GPU-0", name="K80", memory_bytes=1, pci="", compute=(3, 7))


def test_every_default_field_can_be_read_and_is_left_out_where_it_is_not_offered() -> None:
    for field in DEFAULT_FIELDS:
        assert read(field, H100, Sample(uuid="GPU-0")) is None


def test_units_are_those_of_dcgm() -> None:
    sample = Sample(
        uuid="GPU-0",
        power_watts=70.25,
        memory_used_bytes=3 << 20,
        nvlink_bytes=4096,
        row_remap_failure=True,
        gpu_percent=50,
        energy_millijoules=7,
        tensor_active=0.25,
        dram_active=0.125,
    )
    got = {field.name: read(field, H100, sample) for field in DEFAULT_FIELDS}
    assert got["DCGM_FI_DEV_POWER_USAGE"] == 70.25
    assert got["DCGM_FI_DEV_FB_USED"] == 3
    assert got["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"] == 4
    assert got["DCGM_FI_DEV_ROW_REMAP_FAILURE"] == 1
    assert got["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == 7
    assert got["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] == 0.5
    assert got["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] == 0.25
    assert got["DCGM_FI_PROF_DRAM_ACTIVE"] == 0.125
    profiling = next(field for field in DEFAULT_FIELDS if field.name == "DCGM_FI_PROF_GR_ENGINE_ACTIVE")
    assert read(profiling, K80, sample) is None, "DCGM has no profiling fields before Volta"


def test_a_list_made_for_dcgm() -> None:
    choice = parse(
        """
# Format
# If line starts with a '#' it is considered a comment
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Energy, since boot (in mJ).
# DCGM_FI_DEV_FAN_SPEED, gauge, Fan
DCGM_FI_PROF_SM_ACTIVE, gauge, SMs.
DCGM_EXP_XID_ERRORS_COUNT, gauge, Count.
DCGM_FI_DRIVER_VERSION, label, Driver Version
"""
    )
    assert [(field.name, field.type) for field in choice.fields] == [
        ("DCGM_FI_DEV_SM_CLOCK", FieldType.GAUGE),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", FieldType.COUNTER),
        ("DCGM_FI_DRIVER_VERSION", FieldType.LABEL),
    ]
    assert choice.fields[1].help == "Energy, since boot (in mJ)."
    assert choice.missing == ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_EXP_XID_ERRORS_COUNT")


def test_every_wrong_line_is_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(
            "DCGM_FI_DEV_SM_CLOCK, gauge\nfoo, gauge, x\nDCGM_FI_DEV_GPU_UTIL, summary, x\n"
            "DCGM_FI_DEV_GPU_TEMP, gauge, x\nDCGM_FI_DEV_GPU_TEMP, gauge, x\n",
            where="fields.csv",
        )
    assert [finding.split(":")[0] for finding in caught.value.findings] == ["line 1", "line 2", "line 3", "line 5"]
    assert "fields.csv" in str(caught.value)


def test_without_a_file_and_with_an_unreadable_one(tmp_path: Path) -> None:
    assert load(None).fields == DEFAULT_FIELDS
    with pytest.raises(InvalidInput, match="absent"):
        load(tmp_path / "absent")


@settings(deadline=None)
@given(st.text(alphabet='DCGM_FIEVabcgaule,# \n\t1"', max_size=80))
def test_any_text_gives_a_choice_or_findings(text: str) -> None:
    try:
        parse(text)
    except InvalidInput as error:
        assert error.findings
