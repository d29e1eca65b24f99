"""`daemonsets.nodeSelector`: gpuplane prepares the nodes that it means, and gives the others back."""

from __future__ import annotations

from typing import Any

POLICY, GPUNODES = ("nvidia.com", "clusterpolicies"), ("gpuplane.dev", "gpunodes")


async def test_only_the_selected_nodes_are_prepared_and_others_are_given_back(played: Any, work: Any) -> None:
    def prepared() -> set[str]:
        return {found["metadata"]["name"] for found in played.registry.list(GPUNODES)}

    async with work(played):
        await played.add_node("n0")
        await played.add_node("n1")
        await played.registry.patch("nodes", None, "n0", {"metadata": {"labels": {"pool": "gpu"}}}, "merge")
        await played.policy()
        await played.until(lambda: prepared() == {"n0", "n1"})
        spec = {"spec": {"daemonsets": {"nodeSelector": {"pool": "gpu"}}}}
        await played.registry.patch(POLICY, None, "p", spec, "merge")
        await played.until(lambda: prepared() == {"n0"})
        await played.registry.patch("nodes", None, "n1", {"metadata": {"labels": {"pool": "gpu"}}}, "merge")
        await played.until(lambda: prepared() == {"n0", "n1"})
