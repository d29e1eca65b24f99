"""A user with the role `view` in one namespace of a real cluster asks why a pod waits, and the operator answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.api.explanation import PodExplanation
from gpuplane.api.gpunode import GPUNode
from gpuplane.explain.asking import Unanswered, ask_operator
from gpuplane.operator import explanations
from gpuplane.operator.explanations import ExplainProcess, ExplanationController
from gpuplane.operator.installation import installation, resource_of
from kubekit.kube import AlreadyExists, Client, Forbidden, NotFound, SystemClock
from tests.support.extender_world import gpu_pod
from tests.support.realkube.life import PATIENCE_S, account_config, take_away, until_absent
from tests.support.until import until

SINCE = "2026-01-01T00:00:00Z"
MINE, SECRET, NODE = "explain-mine", "explain-secret", "explain-n1"
TENANTS = (f"namespaces/{MINE}", f"namespaces/{SECRET}")


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[Client]:
    """An installation without a running operator, two tenants, and a GPU of which the other one holds 90%."""
    async with Client.connect(control_plane.kubeconfig) as client:
        await clear(control_plane, client)  # a run that was cut short left its own
        for manifest in installation():
            if manifest["kind"] not in ("ClusterPolicy", "Deployment"):
                await client.apply(manifest, "test", resource=resource_of(manifest))
        for name in (MINE, SECRET):
            with contextlib.suppress(AlreadyExists):
                await client.request("POST", "/api/v1/namespaces", None, {"metadata": {"name": name}})
            account = f"/api/v1/namespaces/{name}/serviceaccounts"
            with contextlib.suppress(AlreadyExists):
                await client.request("POST", account, None, {"metadata": {"name": "default"}})
        with contextlib.suppress(AlreadyExists):
            await client.request("POST", "/api/v1/nodes", None, node())
        gpus = [{"index": 0, "uuid": "GPU-0", "model": "Tesla T4", "memoryMib": 15360}]
        await client.apply({"metadata": {"name": NODE}, "status": {"gpus": gpus}}, "test", resource=GPUNode.RESOURCE)
        tolerate = [{"key": "example.com/none", "operator": "Exists"}]
        for pod in (
            gpu_pod("payroll", (90, 8), namespace=SECRET, nodeName=NODE),
            gpu_pod("tune", (40, 8), namespace=MINE, nodeSelector={"kubernetes.io/hostname": NODE}),
        ):
            pod["spec"]["tolerations"] = tolerate
            await client.request("POST", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", None, pod)
        await client.apply(binding(), "test", resource=resource_of(binding()))
        try:
            yield client
        finally:
            await clear(control_plane, client)


async def clear(plane: ControlPlane, client: Client) -> None:
    """Remove the installation, the node, and the tenants with all that they have; those of them that there are."""
    for path in (f"/api/v1/namespaces/{SECRET}/pods/payroll", f"/api/v1/namespaces/{MINE}/pods/tune"):
        with contextlib.suppress(NotFound):  # the controller manager may have been there first
            await client.request("DELETE", path, None, {"gracePeriodSeconds": 0})
    await take_away(plane, client)  # with the finalizers of requests, for which namespaces would wait
    await until_absent(client, *(f"/api/v1/{path}" for path in (f"nodes/{NODE}", *TENANTS)))


def node() -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "110", names.VCUDA_CORE: "100", names.VCUDA_MEMORY: "60"}
    return {
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}},
        "spec": {"taints": [{"key": "example.com/none", "effect": "NoSchedule"}]},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "lastTransitionTime": SINCE}],
        },
    }


def binding() -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "vera", "namespace": MINE},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "vera"}],
    }


@contextlib.asynccontextmanager
async def operating(config: Path) -> AsyncIterator[None]:
    """The controller with the token of the operator's account, for the block."""
    async with Client.connect(config) as client:
        controller = ExplanationController(client, SystemClock(), ExplainProcess(config))
        task = asyncio.create_task(controller.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_viewer_of_one_namespace_is_answered_without_names_of_others(
    control_plane: ControlPlane, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = await account_config(control_plane, admin, names.OPERATOR_NAMESPACE, "gpu-operator")
    async with operating(config), Client.connect(control_plane.client_config("vera")) as vera:

        async def may_ask() -> bool:
            """The controller manager aggregates roles a moment after they are made."""
            body = {
                "apiVersion": "gpuplane.dev/v1alpha1",
                "kind": "PodExplanation",
                "metadata": {"generateName": "explain-", "finalizers": ["example.com/forever"]},
                "spec": {"pods": ["tune"]},
                "status": {"answered": "2026-01-01T00:00:00Z"},
            }
            made = await vera.create(body, namespace=MINE, resource=PodExplanation.RESOURCE)
            assert "answered" not in made.get("status", {}), "a status of the user's own is dropped"
            return True

        await until(may_ask, ignored=Forbidden, seconds=PATIENCE_S)
        [found] = await ask_operator(vera, MINE, ["tune", "payroll"])
        assert (found.pod, found.state, found.unread) == (f"{MINE}/tune", "waiting", ())
        text = msgspec.json.encode(found).decode()
        assert SECRET not in text and "payroll" not in text
        assert found.nodes and NODE in text
        with pytest.raises(Unanswered, match=r"spec\.pods"):
            await ask_operator(vera, MINE, [f"../../{SECRET}/pods/payroll"])
        with pytest.raises(Forbidden):
            await vera.list(PodExplanation, SECRET)
        monkeypatch.setattr(explanations, "LIFETIME_SECONDS", 0.1)
        with contextlib.suppress(Unanswered):
            await ask_operator(vera, MINE, ["tune"])

        async def none_left() -> bool:
            return not await admin.list(PodExplanation, MINE)

        await until(none_left, seconds=PATIENCE_S, what="the operator deletes requests, whatever finalizers they have")
