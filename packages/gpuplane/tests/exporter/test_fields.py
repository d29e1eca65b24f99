"""The exporter's metrics, and the readings that they are made from."""

from __future__ import annotations

from gpuplane.exporter.choice import OWN_OF_DCGM_EXPORTER, _dcgm_names
from gpuplane.exporter.fields import (
    DEFAULT_FIELDS,
    OFFERED_LABELS,
    OFFERED_METRICS,
    ExporterField,
    FieldType,
    bus_id,
    read,
    read_label,
)
from gpuplane.hardware import GPUFacts, Sample

H100 = GPUFacts(index=0, minor=0, uuid="GPU-0", model="H100", memory_bytes=1, pci="", compute=(9, 0))
METRICS = [field for field in DEFAULT_FIELDS if field.type is not FieldType.LABEL]
K80 = GPUFacts(index=0, minor=0, uuid="GPU-0", model="K80", memory_bytes=1, pci="", compute=(3, 7))


def test_every_default_field_can_be_read_and_is_left_out_where_it_is_not_offered() -> None:
    for name in OFFERED_METRICS:
        assert read(ExporterField(name, FieldType.GAUGE, ""), H100, Sample(uuid="GPU-0")) is None
    for field in DEFAULT_FIELDS:
        assert field.name in (OFFERED_LABELS if field.type is FieldType.LABEL else OFFERED_METRICS)


def test_the_default_list_has_names_and_types_of_the_dcgm_exporters() -> None:
    gauges = """SM_CLOCK MEM_CLOCK MEMORY_TEMP GPU_TEMP POWER_USAGE GPU_UTIL MEM_COPY_UTIL ENC_UTIL DEC_UTIL XID_ERRORS
        FB_FREE FB_USED FB_RESERVED VGPU_LICENSE_STATUS ROW_REMAP_FAILURE"""
    counters = """TOTAL_ENERGY_CONSUMPTION PCIE_REPLAY_COUNTER NVLINK_BANDWIDTH_TOTAL UNCORRECTABLE_REMAPPED_ROWS
        CORRECTABLE_REMAPPED_ROWS"""
    profiling = "GR_ENGINE_ACTIVE PIPE_TENSOR_ACTIVE DRAM_ACTIVE PCIE_TX_BYTES PCIE_RX_BYTES"
    found = {field.name: field.type for field in METRICS}
    wanted = {f"DCGM_FI_DEV_{name}": FieldType.GAUGE for name in gauges.split()}
    wanted |= {f"DCGM_FI_DEV_{name}": FieldType.COUNTER for name in counters.split()}
    wanted |= {f"DCGM_FI_PROF_{name}": FieldType.GAUGE for name in profiling.split()}
    assert {name: found.get(name) for name in wanted} == wanted


def test_every_name_is_one_of_dcgm() -> None:
    assert {*OFFERED_METRICS, *OFFERED_LABELS} <= _dcgm_names() - OWN_OF_DCGM_EXPORTER


def test_labels_are_of_the_gpu_and_its_driver() -> None:
    gpu = GPUFacts(
        index=1, minor=2, uuid="GPU-1", model="T4", memory_bytes=1, pci="0000:1a:00.0", compute=(7, 5), serial="9"
    )
    got = {name: read_label(ExporterField(name, FieldType.LABEL, ""), gpu, "570.1") for name in OFFERED_LABELS}
    assert got == {
        "DCGM_FI_DRIVER_VERSION": "570.1",
        "DCGM_FI_DEV_NAME": "T4",
        "DCGM_FI_DEV_SERIAL": "9",
        "DCGM_FI_DEV_UUID": "GPU-1",
        "DCGM_FI_DEV_NVML_INDEX": "1",
        "DCGM_FI_DEV_MINOR_NUMBER": "2",
        "DCGM_FI_DEV_PCI_BUSID": "00000000:1A:00.0",
    }
    assert bus_id("") == ""


def test_used_memory_is_a_part_of_what_programs_can_have() -> None:
    field = ExporterField("DCGM_FI_DEV_FB_USED_PERCENT", FieldType.GAUGE, "")
    sample = Sample(uuid="", memory_total_bytes=100, memory_reserved_bytes=20, memory_used_bytes=40)
    assert read(field, H100, sample) == 0.5


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
    got = {field.name: read(field, H100, sample) for field in METRICS}
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
