"""The device plugin packs on the GPUs that NVML lists; the extender on those of the GPUNode: the same GPUs."""

from __future__ import annotations

from gpuplane.api.gpunode import GPUNode, GPUNodeStatus, Link
from gpuplane.device_plugin.shares.packing import node_state
from gpuplane.hardware import GPUFacts, MigMode, to_api
from gpuplane.sharing import gpus_of


def test_nvml_and_the_gpunode_give_placement_the_same_gpus() -> None:
    inventory = tuple(
        GPUFacts(
            index=at,
            minor=at,
            uuid=f"GPU-{at}",
            model="NVIDIA A100-SXM4-80GB",
            memory_bytes=85_899_345_920,
            pci=f"0000:1{at}:00.0",
            compute=(8, 0),
            numa=at,
            mig=MigMode.DISABLED,
            links=(Link(gpu=1 - at, type="NVL", lanes=12),),
        )
        for at in range(2)
    )
    health = {"GPU-1": "Xid 79"}
    node = GPUNode(status=GPUNodeStatus(gpus=tuple(map(to_api, inventory)), health=health))
    listed = node_state(inventory, health, ()).gpus
    assert listed == gpus_of(node)
    assert [(gpu.memory_mib, gpu.numa, gpu.fault) for gpu in listed] == [(81_920, 0, ""), (81_920, 1, "Xid 79")]
