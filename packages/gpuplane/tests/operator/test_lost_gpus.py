"""The loss of a GPU is an event of its GPUNode and of the pods that hold the GPU."""

from __future__ import annotations

from typing import Any

GPUNODES = ("gpuplane.dev", "gpunodes")
FAULT = "Xid 79: fallen off the bus"


async def test_it_is_told_to_the_pods_that_hold_the_gpu_and_to_no_others(played: Any, work: Any) -> None:
    async with work(played):
        for name in ("n0", "n1"):
            await played.add_node(name)
            await played.add_pod(f"holds-{name}", name)
            await played.add_pod(f"plain-{name}", name, gpus=0)
        await played.policy()
        await played.until(lambda: played.registry.get(GPUNODES, None, "n0"))
        gpu = {"index": 0, "uuid": "GPU-0", "model": "T4", "memoryMib": 15360}
        await played.registry.patch(GPUNODES, None, "n0", {"status": {"gpus": [gpu]}}, "merge")
        await played.registry.patch(GPUNODES, None, "n0", {"status": {"health": {"GPU-0": FAULT}}}, "merge")

        def events() -> dict[str, str]:
            found = [event for event in played.registry.list("events") if event["reason"] == "GPULost"]
            return {event["involvedObject"]["name"]: event["message"] for event in found}

        played.registry.subscribe("events", lambda *_: played._changed.set())
        heard = await played.until(lambda: (found := events()) and len(found) > 1 and found)
    assert heard == {
        "n0": f"GPU-0: {FAULT}",
        "holds-n0": f"GPU 0 of n0, GPU-0: {FAULT}; this pod holds it",
    }
