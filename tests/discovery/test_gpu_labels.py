"""GPU labels: what GPU feature discovery gives for the same hardware."""

from __future__ import annotations

import struct

import msgspec
import pytest

from gpuplane.discovery import GpuFacts, gpu_labels
from gpuplane.discovery.vgpu import VirtualGPU, read_vgpu
from gpuplane.hardware import GPU, MigMode


def gpu(index: int = 0, **changes: object) -> GPU:
    base = GPU(
        index=index,
        minor=index,
        uuid=f"GPU-{index}",
        name="Tesla T4",
        memory_bytes=15360 << 20,
        pci=f"0000:00:{0x1E - index:02x}.0",
        compute=(7, 5),
    )
    return msgspec.structs.replace(base, **changes)


def facts(*gpus: GPU, **changes: object) -> GpuFacts:
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
        (facts(gpu(name="NVIDIA H100 80GB HBM3", mig=MigMode.DISABLED)), "gpu.product", "NVIDIA-H100-80GB-HBM3"),
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
        (facts(gpu(0), gpu(1, name="NVIDIA L4"), gpu(2, name="NVIDIA L4")), "gpu.product", "NVIDIA-L4"),
        (facts(gpu(0), gpu(1, name="NVIDIA L4")), "gpu.product", "Tesla-T4"),
        (facts(gpu(), vgpus=(VirtualGPU("460.16", "r460_00"),)), "vgpu.host-driver-version", "460.16"),
        (facts(gpu(compute=(9, 0))), "gpu.family", "hopper"),
    ],
)
def test_single_labels(of: GpuFacts, label: str, value: str) -> None:
    assert short(gpu_labels(of))[label] == value


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
