"""The text that Prometheus reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.exporter.choice import parse
from gpuplane.exporter.fields import DEFAULT_FIELDS, ExporterField, FieldType
from gpuplane.exporter.render import Extra, GPUHolder, entities, lost_gpus, render
from gpuplane.hardware import GPUFacts, MigDevice, MigMode, MigSample, Sample
from kubekit.kube.exposition import exposition

GPUS = [
    GPUFacts(
        index=i,
        minor=i,
        uuid=f"GPU-{i}",
        model="Tesla T4",
        memory_bytes=1,
        pci=f"0000:{i + 26:02x}:00.0",
        compute=(7, 5),
    )
    for i in range(2)
]
CLOCK = ExporterField("DCGM_FI_DEV_SM_CLOCK", FieldType.GAUGE, "Clock.")
POWER = ExporterField("DCGM_FI_DEV_POWER_USAGE", FieldType.GAUGE, "Power.")


def text(
    fields: Sequence[ExporterField],
    gpus: Sequence[GPUFacts],
    samples: Sequence[Sample],
    holders: Mapping[str, Sequence[GPUHolder]] = {},
    **more: Any,
) -> str:
    extra = Extra(**{"hostname": "sim-1", "driver_version": "570.1", "holders": holders, **more})
    return render(fields, entities(gpus, samples), extra).decode()


def test_looks_as_dcgm_exporters() -> None:
    samples = [Sample(uuid="GPU-0", sm_clock_mhz=585, power_watts=26.5), Sample(uuid="GPU-1", sm_clock_mhz=300)]
    holders = {"GPU-0": [GPUHolder("ml", "train", "main")]}
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


def test_lost_gpus_are_told_also_those_that_nvml_does_not_list() -> None:
    samples = [Sample(uuid="GPU-0", sm_clock_mhz=585), Sample(uuid="GPU-1", lost=True)]
    family = lost_gpus(entities(GPUS, samples), ["0000:1c:00.0"], "sim-1")
    assert exposition([family]).decode().splitlines()[2:] == [
        'gpuplane_gpu_lost{gpu="0",UUID="GPU-0",pci_bus_id="00000000:1A:00.0",Hostname="sim-1"} 0',
        'gpuplane_gpu_lost{gpu="1",UUID="GPU-1",pci_bus_id="00000000:1B:00.0",Hostname="sim-1"} 1',
        'gpuplane_gpu_lost{pci_bus_id="00000000:1C:00.0",Hostname="sim-1"} 1',
    ]


def test_a_field_that_no_gpu_offers_is_left_out_whole() -> None:
    assert "POWER" not in text([CLOCK, POWER], GPUS, [Sample(uuid="GPU-0", sm_clock_mhz=1)], {})


def test_a_lost_gpu_keeps_its_last_xid_only() -> None:
    got = text(DEFAULT_FIELDS, GPUS[:1], [Sample(uuid="GPU-0", lost=True, last_xid=79)], {})
    assert [line for line in got.splitlines() if not line.startswith("#")] == [
        'DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-0",pci_bus_id="00000000:1A:00.0",device="nvidia0",'
        'modelName="Tesla T4",Hostname="sim-1",DCGM_FI_DRIVER_VERSION="570.1",err_code="79",'
        'err_msg="fallen off the bus"} 79'
    ]


def test_an_xid_says_what_it_means() -> None:
    for xid, said in ((0, "none"), (31, "GPU memory page fault of an application"), (777, "unknown")):
        field = ExporterField("DCGM_FI_DEV_XID_ERRORS", FieldType.GAUGE, "Xid.")
        got = text([field], GPUS[:1], [Sample(uuid="GPU-0", last_xid=xid)])
        assert f'err_code="{xid}",err_msg="{said}"}} {xid}\n' in got


def test_labels_from_the_list_are_on_every_line() -> None:
    fields = parse("DCGM_FI_DEV_SM_CLOCK, gauge, c\nDCGM_FI_DRIVER_VERSION, label, d\n").fields
    got = text(fields, GPUS[:1], [Sample(uuid="GPU-0", sm_clock_mhz=1)], {})
    assert 'DCGM_FI_DRIVER_VERSION="570.1"} 1\n' in got
    assert "# HELP DCGM_FI_DRIVER_VERSION" not in got


def test_several_holders_have_a_line_each() -> None:
    holders = {"GPU-0": [GPUHolder("b", "p", "c"), GPUHolder("a", "p", "c")]}
    got = text([CLOCK], GPUS[:1], [Sample(uuid="GPU-0", sm_clock_mhz=1)], holders, each_holder=True)
    assert re.findall(r'namespace="(\w)"', got) == ["a", "b"]


@pytest.mark.parametrize(
    "found",
    [
        [GPUHolder("b", "p", "c"), GPUHolder("a", "p", "c")],
        [GPUHolder("ml", "a", "main", "0")],
        [GPUHolder("ml", "a", "main", part=True)],
    ],
)
def test_a_shared_gpu_is_booked_to_no_pod_unless_it_is_asked_for(found: list[GPUHolder]) -> None:
    sample = [Sample(uuid="GPU-0", sm_clock_mhz=1)]
    assert "pod=" not in text([CLOCK], GPUS[:1], sample, {"GPU-0": found})
    assert text([CLOCK], GPUS[:1], sample, {"GPU-0": found}, each_holder=True).count("pod=") == len(found)


def test_replicas_of_a_shared_gpu_say_which_they_are() -> None:
    holders = {
        "GPU-0": [
            GPUHolder("ml", "a", "main", "0"),
            GPUHolder("ml", "a", "main", "2"),
            GPUHolder("ml", "b", "main", "1"),
        ]
    }
    got = text([CLOCK], GPUS[:1], [Sample(uuid="GPU-0", sm_clock_mhz=1)], holders, each_holder=True)
    assert re.findall(r'pod="(\w)",vgpu="(\d)"', got) == [("a", "0"), ("a", "2"), ("b", "1")]


def test_a_device_may_be_known_by_its_node() -> None:
    held = {"nvidia1": [GPUHolder("ml", "a", "main", "3")]}
    got = text([CLOCK], GPUS, [Sample(uuid="GPU-1", sm_clock_mhz=1)], held, each_holder=True)
    assert 'pod="a",vgpu="3"} 1' in got


def test_jobs_have_a_line_each_and_names_may_have_dashes() -> None:
    got = text([CLOCK], GPUS[:1], [Sample(uuid="GPU-0", sm_clock_mhz=1)], jobs={"0": ["17", "18"]}, dashes=True)
    assert re.findall(r'hpc_job="(\d+)"', got) == ["17", "18"]
    assert 'modelName="Tesla-T4"' in got
    assert "Hostname" not in text([CLOCK], GPUS[:1], [Sample(uuid="GPU-0", sm_clock_mhz=1)], hostname="")


def mig_device(instance: int, compute: int, profile: str) -> MigDevice:
    return MigDevice(
        index=0,
        uuid=f"MIG-{instance}-{compute}",
        profile=profile,
        gpu_instance=instance,
        compute_instance=compute,
        memory_bytes=1,
        slices=1,
    )


def test_a_gpu_in_mig_mode_is_shown_as_its_instances() -> None:
    devices = (mig_device(1, 0, "1c.3g.40gb"), mig_device(1, 1, "1c.3g.40gb"), mig_device(9, 0, "1g.10gb"))
    gpu = msgspec.structs.replace(GPUS[0], mig=MigMode.ENABLED, mig_devices=devices, compute=(9, 0))
    sample = Sample(
        uuid="GPU-0",
        power_watts=200.0,
        gpu_percent=5,
        engine_active=0.5,
        memory_used_bytes=99 << 20,
        instances=(
            MigSample(gpu_instance=1, memory_total_bytes=40 << 30, memory_used_bytes=3 << 20),
            MigSample(gpu_instance=9, memory_total_bytes=10 << 30, memory_used_bytes=0),
        ),
    )
    holders = {
        "MIG-1-1": [GPUHolder("ml", "part", "main")],
        "nvidia0/gi9": [GPUHolder("ml", "gke", "main", "4")],
        "GPU-0": [GPUHolder("ml", "whole", "main")],
    }
    jobs = {"0.9": ["17"], "0": ["16"]}
    names = ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE")
    fields = [POWER, *(field for field in DEFAULT_FIELDS if field.name in names)]
    lines = [
        line
        for line in text(fields, [gpu], [sample], holders, jobs=jobs, each_holder=True).splitlines()
        if line[0] != "#"
    ]
    assert [(line.partition("{")[0], line.rpartition(" ")[2]) for line in lines] == [
        ("DCGM_FI_DEV_POWER_USAGE", "200.000000"),
        ("DCGM_FI_DEV_POWER_USAGE", "200.000000"),
        ("DCGM_FI_DEV_FB_USED", "3"),
        ("DCGM_FI_DEV_FB_USED", "0"),
    ], "what NVML does not tell of an instance is not made up"
    assert (
        'GPU_I_PROFILE="3g.40gb",GPU_I_ID="1",Hostname="sim-1",container="main",namespace="ml",pod="part"' in lines[0]
    )
    assert 'GPU_I_PROFILE="1g.10gb",GPU_I_ID="9"' in lines[1]
    assert 'pod="gke",vgpu="4",hpc_job="17"' in lines[1]


def test_a_gpu_in_mig_mode_without_instances_is_shown_as_a_whole() -> None:
    gpu = msgspec.structs.replace(GPUS[0], mig=MigMode.ENABLED)
    assert "GPU_I_ID" not in text([CLOCK], [gpu], [Sample(uuid="GPU-0", sm_clock_mhz=1)])
    assert "585" in text([CLOCK], [gpu], [Sample(uuid="GPU-0", sm_clock_mhz=585)])


@settings(deadline=None)
@given(name=st.text(alphabet='a"\\\n{}, =', min_size=1, max_size=12), value=st.integers(0, 10**15))
def test_any_label_value_survives(name: str, value: int) -> None:
    got = text([CLOCK], GPUS[:1], [Sample(uuid="GPU-0", sm_clock_mhz=value)], {}, hostname=name)
    *_, line = got.splitlines()
    found = re.search(r'Hostname="((?:[^"\\]|\\.)*)"', line)
    assert found is not None
    unescaped = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], found[1])
    assert unescaped == name
    assert line.endswith(f"}} {value}")
