"""The choice of metrics in a CSV file made for DCGM."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.exporter.choice import load, parse
from gpuplane.exporter.fields import DEFAULT_FIELDS, ExporterField, FieldType
from kubekit.errors import InvalidInput


def test_a_list_made_for_dcgm() -> None:
    choice = parse(
        """
# Format
# If line starts with a '#' it is considered a comment
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Energy, since boot (in mJ).
  # DCGM_FI_DEV_FAN_SPEED, gauge, Fan
DCGM_FI_DEV_DEC_UTIL ,     gauge, "Decoder #1, utilization (in %)."
DCGM_FI_DEV_POWER_VIOLATION, counter, Throttling.
DCGM_EXP_XID_ERRORS_COUNT, gauge, Count.
DCGM_FI_DRIVER_VERSION, label, Driver Version
"""
    )
    assert [(field.name, field.type) for field in choice.fields] == [
        ("DCGM_FI_DEV_SM_CLOCK", FieldType.GAUGE),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", FieldType.COUNTER),
        ("DCGM_FI_DEV_DEC_UTIL", FieldType.GAUGE),
        ("DCGM_FI_DRIVER_VERSION", FieldType.LABEL),
    ]
    assert choice.fields[2].help == "Decoder #1, utilization (in %)."
    assert choice.fields[1].help == "Energy, since boot (in mJ)."
    assert choice.missing == ("DCGM_FI_DEV_POWER_VIOLATION", "DCGM_EXP_XID_ERRORS_COUNT")


def test_every_wrong_line_is_named_with_what_to_write() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(
            """DCGM_FI_DEV_SM_CLOCK, gauge
foo, gauge, x
DCGM_FI_DEV_GPU_UTIL, number, x
DCGM_FI_DEV_GPU_TEMP, gauge, x
DCGM_FI_DEV_GPU_TEMP, gauge, x
DCGM_FI_DEV_GPU_UTILL, gauge, x
DCGM_FI_DEV_MEM_CLOCK, summary, x
""",
            where="/etc/fields.csv",
        )
    assert caught.value.findings == (
        "line 1: write FIELD, type, help",
        "line 2: 'foo' is no field of DCGM",
        "line 3: 'number' is no type; write gauge, counter or label",
        "line 5: DCGM_FI_DEV_GPU_TEMP is there already; keep one of the two lines",
        "line 6: 'DCGM_FI_DEV_GPU_UTILL' is no field of DCGM; did you mean DCGM_FI_DEV_GPU_UTIL",
        "line 7: DCGM_FI_DEV_MEM_CLOCK is no summary; write gauge, counter or label",
    )
    assert (caught.value.where, bool(caught.value.cure)) == ("/etc/fields.csv:1", True)


def test_a_file_without_any_field_is_wrong() -> None:
    for text in ("", "# nothing\n", "DCGM_FI_DEV_POWER_VIOLATION, counter, x\n"):
        with pytest.raises(InvalidInput, match="no field in it"):
            parse(text)


def test_without_a_file_and_with_an_unreadable_one(tmp_path: Path) -> None:
    assert load(None).fields == DEFAULT_FIELDS
    with pytest.raises(InvalidInput, match=r"absent.*dcgm-metrics\.csv"):
        load(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="UTF-8"):
        load(tmp_path / "binary")
    with pytest.raises(InvalidInput, match="directory"):
        load(tmp_path)


@settings(deadline=None)
@given(st.text(alphabet='DCGM_FIEVabcgaule,# \n\t1"', max_size=80))
def test_any_text_gives_a_choice_or_findings(text: str) -> None:
    try:
        parse(text)
    except InvalidInput as error:
        assert error.findings
        assert all(finding.startswith("line ") for finding in error.findings)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(DEFAULT_FIELDS), min_size=1, unique=True),
    st.text(alphabet=st.characters(exclude_categories=["C", "Z"]), min_size=1).filter(lambda s: '"' not in s),
)
def test_what_is_written_is_read(fields: list[ExporterField], text: str) -> None:
    lines = [f'{field.name},{field.type.value},"{text}"' for field in fields]
    assert [(field.name, field.type, field.help) for field in parse("\n".join(lines)).fields] == [
        (field.name, field.type, text) for field in fields
    ]
