"""Refusals of the operator's writes are in the status of its ClusterPolicy, where an administrator looks first."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.operator import cluster
from kubekit.kube import Forbidden

NAMESPACE = names.OPERATOR_NAMESPACE
POLICY, GPUNODES = ("nvidia.com", "clusterpolicies"), ("gpuplane.dev", "gpunodes")


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


async def test_a_refused_operand_is_reported_with_its_field_and_the_others_are_made(played: Any, work: Any) -> None:
    async with work(played):
        await played.add_node("n0")
        await played.policy()
        await set_spec(played, {"toolkit": {"env": [{"name": "A=B", "value": "c"}]}})
        told = await played.until(
            lambda: (found := condition(played, "Error")).get("reason") == "ReconcileFailed" and found
        )
        assert "DaemonSet/nvidia-container-toolkit-daemonset: " in told["message"]
        assert 'spec.template.spec.containers[0].env[3].name: Invalid value: "A=B"' in told["message"]
        assert "correct spec.toolkit.env of the ClusterPolicy" in told["message"]
        made = {one["metadata"]["name"] for one in played.registry.list(("apps", "daemonsets"), NAMESPACE)}
        assert {"nvidia-device-plugin-daemonset", "nvidia-dcgm-exporter", "gpu-feature-discovery"} <= made
        await set_spec(played, {"toolkit": {"env": []}})
        await played.until(lambda: condition(played, "Error").get("status") == "False")


async def test_a_refused_operand_does_not_block_the_removal(played: Any, work: Any) -> None:
    """Neither a value that refuses every DaemonSet from the start, nor one that comes when the node is ready."""
    async with work(played):
        await played.add_node("n0")
        await played.policy()
        await played.until(lambda: condition(played, "Ready").get("reason") == "OperandNotReady" or None)
        await set_spec(played, {"daemonsets": {"labels": {"not a label": "x"}}})
        await played.until(lambda: "not a label" in condition(played, "Error").get("message", ""))
        await played.registry.delete(POLICY, None, "p")
        await played.until(lambda: played.registry.get(POLICY, None, "p") is None)
        assert played.registry.list(GPUNODES) == []


async def set_spec(played: Any, spec: dict[str, Any]) -> None:
    await played.registry.patch(POLICY, None, "p", {"spec": spec}, "merge")
