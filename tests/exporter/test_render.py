"""The text that Prometheus reads."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.exporter.fields import DEFAULT_FIELDS, Field, FieldType, parse
from gpuplane.exporter.render import Holder, render
from gpuplane.hardware import GPU, Sample

GPUS = [
    GPU(
        index=i,
        minor=i,
        uuid=f"GPU-{i}",
        name="Tesla T4",
        memory_bytes=1,
        pci=f"0000:{i + 26:02x}:00.0",
        compute=(7, 5),
    )
    for i in range(2)
]
CLOCK = Field("DCGM_FI_DEV_SM_CLOCK", FieldType.GAUGE, "Clock.")
POWER = Field("DCGM_FI_DEV_POWER_USAGE", FieldType.GAUGE, "Power.")


def text(*args: object, **more: object) -> str:
    return render(*args, **{"hostname": "sim-1", "driver_version": "570.1", **more}).decode()  # type: ignore[arg-type]


def test_looks_as_dcgm_exporters() -> None:
    samples = [Sample(uuid="GPU-0", sm_clock_mhz=585, power_watts=26.5), Sample(uuid="GPU-1", sm_clock_mhz=300)]
    holders = {"GPU-0": [Holder("ml", "train", "main")]}
    assert text([CLOCK, POWER], GPUS, samples, holders) == (
        "# HELP DCGM_FI_DEV_SM_CLOCK Clock.\n"
        "# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n"
        'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-0",pci_bus_id="00000000:1A:00.0",device="nvidia0",'
        'modelName="Tesla T4",Hostname="sim-1",container="main",namespace="ml",pod="train"} 585\n'
        'DCGM_FI_DEV_SM_CLOCK{gpu="1",UUID="GPU-1",pci_bus_id="00000000:1B:00.0",device="nvidia1",'
        'modelName="Tesla T4",Hostname="sim-1"} 300\n'
        "# HELP DCGM_FI_DEV_POWER_USAGE Power.\n"
        "# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n"
        'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0",pci_bus_id="00000000:1A:00.0",device="nvidia0",'
        'modelName="Tesla T4",Hostname="sim-1",container="main",namespace="ml",pod="train"} 26.500000\n'
    )


def test_a_field_that_no_gpu_offers_is_left_out_whole() -> None:
    assert "POWER" not in text([CLOCK, POWER], GPUS, [Sample(uuid="GPU-0", sm_clock_mhz=1)], {})


def test_a_lost_gpu_keeps_its_last_xid_only() -> None:
    got = text(DEFAULT_FIELDS, GPUS[:1], [Sample(uuid="GPU-0", lost=True, last_xid=79)], {})
    assert [line for line in got.splitlines() if not line.startswith("#")] == [
        'DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-0",pci_bus_id="00000000:1A:00.0",device="nvidia0",'
        'modelName="Tesla T4",Hostname="sim-1"} 79'
    ]


def test_labels_from_the_list_are_on_every_line() -> None:
    fields = parse("DCGM_FI_DEV_SM_CLOCK, gauge, c\nDCGM_FI_DRIVER_VERSION, label, d\n").fields
    got = text(fields, GPUS[:1], [Sample(uuid="GPU-0", sm_clock_mhz=1)], {})
    assert 'DCGM_FI_DRIVER_VERSION="570.1"} 1\n' in got
    assert "# HELP DCGM_FI_DRIVER_VERSION" not in got


def test_several_holders_have_a_line_each() -> None:
    holders = {"GPU-0": [Holder("b", "p", "c"), Holder("a", "p", "c")]}
    got = text([CLOCK], GPUS[:1], [Sample(uuid="GPU-0", sm_clock_mhz=1)], holders)
    assert re.findall(r'namespace="(\w)"', got) == ["a", "b"]


@settings(deadline=None)
@given(name=st.text(alphabet='a"\\\n{}, =', max_size=12), value=st.integers(0, 10**15))
def test_any_label_value_survives(name: str, value: int) -> None:
    got = text([CLOCK], GPUS[:1], [Sample(uuid="GPU-0", sm_clock_mhz=value)], {}, hostname=name)
    *_, line = got.splitlines()
    found = re.search(r'Hostname="((?:[^"\\]|\\.)*)"', line)
    assert found is not None
    unescaped = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], found[1])
    assert unescaped == name
    assert line.endswith(f"}} {value}")
