"""What an operator is refused is told where an administrator looks first: in the status of its ClusterPolicy."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.operator import cluster
from kubekit.kube import Forbidden


def condition(played: Any, kind: str) -> dict[str, Any]:
    policy = played.registry.get(("nvidia.com", "clusterpolicies"), None, "p")
    found = policy.get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == kind), {})


async def test_it_is_told_until_it_is_granted(played: Any, work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with work(played):
        await played.add_node("n0")
        await played.policy()
        await played.until(lambda: condition(played, "Error").get("status") == "False")

        async def refuse(*_: Any) -> None:
            raise Forbidden('daemonsets.apps "nvidia-driver-daemonset" is forbidden', cure="give it the right")

        with monkeypatch.context() as patch:
            patch.setattr(cluster, "keep_before", refuse)
            await played.policy(env=[{"name": "GENERATION", "value": "2"}])
            told = await played.until(
                lambda: (found := condition(played, "Error")).get("reason") == "ReconcileFailed" and found
            )
        assert told["status"] == "True"
        assert 'nvidia-driver-daemonset" is forbidden' in told["message"]
        ready = condition(played, "Ready")
        assert (ready["status"], ready["reason"], ready["message"]) == ("False", "ReconcileFailed", told["message"])
        # Granted, it is done at the next look, which any change brings.
        await played.policy(env=[{"name": "GENERATION", "value": "3"}])
        await played.until(lambda: condition(played, "Error").get("status") == "False")
        assert condition(played, "Ready")["reason"] != "ReconcileFailed"
