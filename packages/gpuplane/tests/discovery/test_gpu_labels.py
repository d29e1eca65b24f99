"""GPU labels: what GPU feature discovery gives for the same hardware."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from gpuplane.api.pluginconfig import parse
from gpuplane.discovery import GpuFacts, gpu_labels
from gpuplane.discovery.gpu import is_gpu_label
from gpuplane.discovery.gpu_config import GpuConfig, gpu_config, load
from gpuplane.discovery.vgpu import VirtualGPU, read_vgpu
from gpuplane.hardware import GPUFacts, MigDevice, MigMode
from gpuplane.operand.configs import NodeConfiguration
from kubekit.errors import InvalidInput


def gpu(index: int = 0, **changes: object) -> GPUFacts:
    base = GPUFacts(
        index=index,
        minor=index,
        uuid=f"GPU-{index}",
        model="Tesla T4",
        memory_bytes=15360 << 20,
        pci=f"0000:00:{0x1E - index:02x}.0",
        compute=(7, 5),
    )
    return msgspec.structs.replace(base, **changes)


def facts(*gpus: GPUFacts, **changes: object) -> GpuFacts:
    base = GpuFacts(
        driver="535.161.08",
        cuda=(12, 2),
        gpus=gpus,
        machine="g4dn.xlarge",
        classes={g.pci: "0x030200" for g in gpus},
    )
    return msgspec.structs.replace(base, **changes)


def short(labels: dict[str, str]) -> dict[str, str]:
    return {name.removeprefix("nvidia.com/"): value for name, value in labels.items()}


def test_one_t4_as_documented() -> None:
    assert short(gpu_labels(facts(gpu()))) == {
        "alpha.kubernetes.io/nvidia-gpu-name": "Tesla-T4",  # no label of GPU feature discovery
        "cuda.driver-version.full": "535.161.08",
        "cuda.driver-version.major": "535",
        "cuda.driver-version.minor": "161",
        "cuda.driver-version.revision": "08",
        "cuda.driver.major": "535",
        "cuda.driver.minor": "161",
        "cuda.driver.rev": "08",
        "cuda.runtime-version.full": "12.2",
        "cuda.runtime-version.major": "12",
        "cuda.runtime-version.minor": "2",
        "cuda.runtime.major": "12",
        "cuda.runtime.minor": "2",
        "gpu.compute.major": "7",
        "gpu.compute.minor": "5",
        "gpu.count": "1",
        "gpu.family": "turing",
        "gpu.machine": "g4dn.xlarge",
        "gpu.memory": "15360",
        "gpu.mode": "compute",
        "gpu.product": "Tesla-T4",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "mig.capable": "false",
        "mps.capable": "false",
        "vgpu.present": "false",
    }


def test_no_gpu_no_label() -> None:
    assert gpu_labels(facts()) == {}


@pytest.mark.parametrize(
    ("of", "label", "value"),
    [
        (facts(gpu(model="NVIDIA H100 80GB HBM3", mig=MigMode.DISABLED)), "gpu.product", "NVIDIA-H100-80GB-HBM3"),
        (facts(gpu(mig=MigMode.DISABLED)), "mig.capable", "true"),
        (facts(gpu(mig=MigMode.ENABLED)), "gpu.replicas", "0"),
        (facts(gpu(0, mig=MigMode.ENABLED), gpu(1)), "gpu.replicas", "1"),
        (facts(gpu(0, mig=MigMode.ENABLED), gpu(1)), "gpu.count", "2"),
        (facts(gpu(), driver="550.54"), "cuda.driver.rev", ""),
        (facts(gpu(), machine="Standard PC (i440FX + PIIX, 1996)"), "gpu.machine", "Standard-PC-i440FX-PIIX-1996"),
        (facts(gpu(), machine=""), "gpu.machine", "unknown"),
        (facts(gpu(), classes={"0000:00:1e.0": "0x030000"}), "gpu.mode", "graphics"),
        (facts(gpu(), classes={}), "gpu.mode", "unknown"),
        (
            facts(gpu(0), gpu(1), classes={"0000:00:1e.0": "0x030000", "0000:00:1d.0": "0x030200"}),
            "gpu.mode",
            "unknown",
        ),
        (facts(gpu(0), gpu(1, model="NVIDIA L4"), gpu(2, model="NVIDIA L4")), "gpu.product", "NVIDIA-L4"),
        (facts(gpu(0), gpu(1, model="NVIDIA L4")), "gpu.product", "Tesla-T4"),
        (facts(gpu(), vgpus=(VirtualGPU("460.16", "r460_00"),)), "vgpu.host-driver-version", "460.16"),
        (facts(gpu(compute=(9, 0))), "gpu.family", "hopper"),
    ],
)
def test_single_labels(of: GpuFacts, label: str, value: str) -> None:
    assert short(gpu_labels(of))[label] == value


# -- sharing and MIG, as the documentation of GPU feature discovery has them ------------------------------------------


def config(strategy: str = "none", **sharing: Any) -> GpuConfig:
    return gpu_config(parse({"version": "v1", "flags": {"migStrategy": strategy}, "sharing": sharing}))


def shared(name: str = "nvidia.com/gpu", replicas: int = 4, **more: Any) -> dict[str, Any]:
    return {"resources": [{"name": name, "replicas": replicas, **more}]}


def a100(index: int = 0, *profiles: str) -> GPUFacts:
    """An A100 of 40 GB, split into these profiles; their attributes are those that the documentation shows."""
    sizes = {"1g.5gb": (4864, 1, 14, 1), "2g.10gb": (9856, 2, 28, 2), "3g.20gb": (19968, 3, 42, 3)}
    devices = []
    for place, profile in enumerate(profiles):
        memory, slices, processors, copy = sizes[profile.removesuffix("+me")]
        devices.append(
            MigDevice(
                index=place,
                uuid=f"MIG-{index}-{place}",
                profile=profile,
                gpu_instance=place,
                compute_instance=0,
                memory_bytes=memory << 20,
                slices=slices,
                memory_mib=memory,
                gpu_slices=slices,
                multiprocessors=processors,
                copy_engines=copy,
                decoders=slices - 1,
            )
        )
    return gpu(
        index,
        model="A100-SXM4-40GB",
        memory_bytes=40537 << 20,
        compute=(8, 0),
        mig=MigMode.ENABLED if profiles else MigMode.DISABLED,
        mig_devices=tuple(devices),
    )


def labels_of(configured: GpuConfig, *gpus: GPUFacts) -> dict[str, str]:
    labels = gpu_labels(facts(*gpus), configured)
    assert all(is_gpu_label(name) for name in labels)
    return short(labels)


@pytest.mark.parametrize(
    ("configured", "product", "replicas", "strategy", "mps"),
    [
        (config(), "Tesla-T4", "1", "none", "false"),
        (config(timeSlicing=shared()), "Tesla-T4-SHARED", "4", "time-slicing", "false"),
        (config(timeSlicing=shared("gpu")), "Tesla-T4-SHARED", "4", "time-slicing", "false"),
        (config(timeSlicing=shared(rename="nvidia.com/gpu.shared")), "Tesla-T4", "4", "time-slicing", "false"),
        (config(timeSlicing={"renameByDefault": True, **shared()}), "Tesla-T4", "4", "time-slicing", "false"),
        (config(mps=shared(replicas=10)), "Tesla-T4-SHARED", "10", "mps", "true"),
        (config(timeSlicing=shared("nvidia.com/mig-1g.5gb")), "Tesla-T4", "1", "none", "false"),
    ],
)
def test_sharing(configured: GpuConfig, product: str, replicas: str, strategy: str, mps: str) -> None:
    labels = labels_of(configured, gpu())
    assert labels["gpu.product"] == product
    assert labels["gpu.replicas"] == replicas
    assert labels["gpu.sharing-strategy"] == strategy
    assert labels["mps.capable"] == mps
    assert labels["gpu.count"] == "1"


def test_strategy_single_as_documented() -> None:
    labels = labels_of(config("single"), *(a100(index, *["1g.5gb"] * 7) for index in range(8)))
    assert labels["mig.strategy"] == "single"
    assert labels["gpu.product"] == "A100-SXM4-40GB-MIG-1g.5gb"
    assert labels["gpu.count"] == "56"
    assert labels["gpu.replicas"] == "1"
    assert labels["gpu.memory"] == "4864"
    assert labels["gpu.multiprocessors"] == "14"
    assert labels["gpu.slices.gi"] == labels["gpu.slices.ci"] == "1"
    assert labels["gpu.engines.copy"] == "1"
    assert [labels[f"gpu.engines.{engine}"] for engine in ("decoder", "encoder", "jpeg", "ofa")] == ["0"] * 4
    assert labels["gpu.family"] == "ampere"


def test_strategy_single_without_mig_is_the_whole_gpus() -> None:
    labels = labels_of(config("single"), a100())
    assert labels == labels_of(config(), a100()) | {"mig.strategy": "single"}


@pytest.mark.parametrize(
    "gpus",
    [
        (a100(0, "1g.5gb"), a100(1)),  # one is not split
        (a100(0, "1g.5gb", "2g.10gb"),),  # two kinds
        (a100(0, "1g.5gb"), msgspec.structs.replace(a100(1), mig=MigMode.ENABLED)),  # one is empty
        (msgspec.structs.replace(a100(0), mig=MigMode.ENABLED),),
    ],
)
def test_strategy_single_is_invalid_unless_all_are_alike(gpus: tuple[GPUFacts, ...]) -> None:
    labels = labels_of(config("single"), *gpus)
    assert labels["gpu.product"] == "A100-SXM4-40GB-MIG-INVALID"
    assert (labels["gpu.count"], labels["gpu.replicas"], labels["gpu.memory"]) == ("0", "0", "0")
    assert labels["gpu.sharing-strategy"] == ""
    assert labels["mig.strategy"] == "single"


def test_strategy_mixed_as_documented() -> None:
    labels = labels_of(config("mixed"), a100(0, "3g.20gb", "2g.10gb", "2g.10gb"), a100(1))
    assert labels["mig.strategy"] == "mixed"
    assert labels["gpu.product"] == "A100-SXM4-40GB"
    assert (labels["gpu.count"], labels["gpu.replicas"], labels["gpu.memory"]) == ("2", "1", "40537")
    kind = {name.removeprefix("mig-2g.10gb."): value for name, value in labels.items() if "mig-2g" in name}
    assert kind == {
        "product": "A100-SXM4-40GB-MIG-2g.10gb",
        "count": "2",
        "replicas": "1",
        "sharing-strategy": "none",
        "memory": "9856",
        "multiprocessors": "28",
        "slices.gi": "2",
        "slices.ci": "2",
        "engines.copy": "2",
        "engines.decoder": "1",
        "engines.encoder": "0",
        "engines.jpeg": "0",
        "engines.ofa": "0",
    }
    assert labels["mig-3g.20gb.count"] == "1"


# Labels that each strategy adds to those of whole GPUs, as GPU feature discovery's own tests expect them.
OF_MIG = {
    *("multiprocessors", "slices.gi", "slices.ci"),
    *(f"engines.{engine}" for engine in ("copy", "decoder", "encoder", "jpeg", "ofa")),
}
OF_KIND = OF_MIG | {"product", "count", "replicas", "sharing-strategy", "memory"}


@pytest.mark.parametrize(
    ("strategy", "profiles", "added"),
    [
        ("none", (), set()),
        ("none", ("1g.5gb",) * 7, set()),
        ("single", (), {"mig.strategy"}),
        ("single", ("1g.5gb",) * 7, {"mig.strategy", *(f"gpu.{name}" for name in OF_MIG)}),
        ("mixed", (), {"mig.strategy"}),
        (
            "mixed",
            ("3g.20gb", "2g.10gb", "2g.10gb"),
            {"mig.strategy", *(f"mig-{kind}.{name}" for kind in ("3g.20gb", "2g.10gb") for name in OF_KIND)},
        ),
    ],
)
def test_no_label_is_missing_and_none_is_invented(strategy: str, profiles: tuple[str, ...], added: set[str]) -> None:
    whole = set(labels_of(config(), gpu()))
    assert set(labels_of(config(strategy), a100(0, *profiles))) - whole == added
    assert whole <= set(labels_of(config(strategy), a100(0, *profiles)))
    # Sharing changes values and makes no label.
    name = "nvidia.com/gpu" if strategy != "mixed" or not profiles else "nvidia.com/mig-2g.10gb"
    shared_out = labels_of(config(strategy, timeSlicing=shared(name)), a100(0, *profiles))
    assert set(shared_out) == whole | added


def test_shared_mig_devices_and_profiles_with_a_plus() -> None:
    labels = labels_of(config("mixed", timeSlicing=shared("nvidia.com/mig-1g.5gb.me", 2)), a100(0, "1g.5gb+me"))
    assert labels["mig-1g.5gb.me.product"] == "A100-SXM4-40GB-MIG-1g.5gb.me-SHARED"
    assert labels["mig-1g.5gb.me.replicas"] == "2"
    assert labels["mig-1g.5gb.me.sharing-strategy"] == "time-slicing"
    assert labels["gpu.replicas"] == "0"  # nothing is offered whole
    single = labels_of(config("single", timeSlicing=shared(replicas=2)), a100(0, "1g.5gb"))
    assert single["gpu.product"] == "A100-SXM4-40GB-MIG-1g.5gb-SHARED"
    assert single["gpu.replicas"] == "2"


def test_gpus_of_one_fabric_name_it() -> None:
    fabric = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"
    assert labels_of(config(), gpu(0, fabric=fabric), gpu(1, fabric=fabric))["gpu.clique"] == fabric
    assert "gpu.clique" not in labels_of(config(), gpu(0, fabric=fabric), gpu(1, fabric="other.2"))


def test_labels_of_others_are_not_ours() -> None:
    for name in ("gpu.present", "gpu.deploy.driver", "mig.config", "mig.config.state", "gpu-driver-upgrade-state"):
        assert not is_gpu_label(f"nvidia.com/{name}")


# -- the configuration -------------------------------------------------------------------------------------------------


def test_the_environment_has_priority_over_the_file() -> None:
    text = (
        b"version: v1\nflags:\n  migStrategy: mixed\n  plugin: {passDeviceSpecs: true}\n"
        b"  gfd: {noTimestamp: true, sleepInterval: 1m30s, machineTypeFile: /etc/machine}\n"
    )
    found = load(NodeConfiguration(text), {})
    assert (found.mig_strategy, found.timestamp, found.interval) == ("mixed", False, 90.0)
    assert found.machine_file == "/etc/machine"
    over = load(
        NodeConfiguration(text), {"MIG_STRATEGY": "single", "GFD_NO_TIMESTAMP": "false", "GFD_SLEEP_INTERVAL": "10s"}
    )
    assert (over.mig_strategy, over.timestamp, over.interval) == ("single", True, 10.0)
    assert load(NodeConfiguration(), {}) == GpuConfig()


def test_a_configuration_that_the_plugin_refuses_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidInput) as error:
        load(NodeConfiguration(b"version: v1\nflags: [\n", "/config/a"), {})
    assert error.value.where == "/config/a:3:1"
    with pytest.raises(InvalidInput, match="double") as error:
        load(NodeConfiguration(b"flags: {migStrategy: double}", "/config/a"), {})
    assert error.value.where == "/config/a" and error.value.cure


def config_space(capability: bytes, at: int = 0x68, status: int = 0x10) -> bytes:
    """A device's configuration space with a message capability and then `capability`."""
    config = bytearray(256)
    config[6] = status
    config[0x34] = 0x40
    config[0x40:0x43] = bytes((0x05, at, 0x08))
    config[at : at + len(capability)] = capability
    return bytes(config)


RECORDS = b"VF" + bytes((7, 3, 0)) + struct.pack("BB10s10s", 0, 22, b"460.16", b"r460_00")
CAPABILITY = bytes((0x09, 0, 3 + len(RECORDS))) + RECORDS


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (config_space(CAPABILITY), VirtualGPU("460.16", "r460_00")),
        (config_space(CAPABILITY, status=0), None),
        (config_space(b"\x09\x00\x06ABC"), None),
        (config_space(b"\x09\x00\x05VF"), VirtualGPU()),
        (config_space(b"\x05\x40\x08"), None),  # a chain that loops
        (b"", None),
        (config_space(CAPABILITY)[:64], None),
    ],
)
def test_virtual_gpus_by_their_configuration_space(config: bytes, expected: VirtualGPU | None) -> None:
    assert read_vgpu(config) == expected
