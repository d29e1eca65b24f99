"""The operator against the embedded API server, on nodes whose kubelets and operands are played.

Played is what a node's own processes would do: pods come where a gate is open and go where it is closed, stages are
reported, the driver's pod is made from the DaemonSet that means the node. All the rest is production code.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.crds import crds
from gpuplane.operator.explanations import ExplainProcess
from gpuplane.operator.installation import manifests, resource_of
from gpuplane.operator.operator import OperatorProcess
from gpuplane.operator.stages import OPERANDS
from gpuplane.operator.upgrade import controller, decide
from kubekit.kube import Client
from tests.support.api_client import connected
from tests.support.node_taints import follow_conditions
from tests.support.until import until
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.identity import ADMIN, service_account_user
from tinykube.apiserver.server import ApiServer

NAMESPACE = names.OPERATOR_NAMESPACE
POLICY, GPUNODES = ("nvidia.com", "clusterpolicies"), ("gpuplane.dev", "gpunodes")
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
COMPONENT, PART_OF = "app.kubernetes.io/component", "app.kubernetes.io/part-of"
KERNEL = "6.8.0-1036-aws"
REPORTS = (("driver", "driver"), ("container-toolkit", "toolkit"), ("operator-validator", "cuda"),
           ("operator-validator", "plugin"))  # fmt: skip
SINCE = "2026-11-20T10:00:00.000000Z"


def digest_of(spec: dict[str, Any]) -> str:
    env = spec["containers"][0].get("env") or []
    return next((entry["value"] for entry in env if entry["name"] == names.DRIVER_DIGEST_ENV), "")


class Played:
    """A cluster of played nodes. `bad` holds (node, driver digest) that fail validation; `most` is how many nodes were
    unschedulable at once, at most."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.registry = server.registry
        self.bad: set[tuple[str, str]] = set()
        self.most = 0
        self._dirty: set[str] = set()
        self._said: dict[tuple[str, str], tuple[str, str]] = {}
        self._changed = asyncio.Event()
        self._cordoned: set[str] = set()
        self._states: dict[str, str] = {}
        self._pods: dict[str, dict[str, dict[str, Any]]] = {}  # node -> uid -> pod
        for resource in ("nodes", "pods", ("apps", "daemonsets"), GPUNODES, POLICY):
            self.registry.subscribe(resource, self._note)

    def _note(self, kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        meta = obj["metadata"]
        if obj.get("kind") == "Node":
            gone = kind == "DELETED" or not obj["spec"].get("unschedulable")
            (self._cordoned.discard if gone else self._cordoned.add)(meta["name"])
            self.most = max(self.most, len(self._cordoned))
            self._states[meta["name"]] = meta.get("labels", {}).get(names.UPGRADE_STATE_LABEL, "")
        if obj.get("kind") in ("Node", "GPUNode"):
            self._dirty.add(meta["name"])
        elif obj.get("kind") == "DaemonSet":
            self._dirty.update(node["metadata"]["name"] for node in self.nodes())
        elif obj.get("kind") == "Pod" and (node := obj["spec"].get("nodeName")):
            self._dirty.add(node)
            self._pods.setdefault(node, {})[meta["uid"]] = obj
            if kind == "DELETED":
                del self._pods[node][meta["uid"]]
        self._changed.set()

    # -- looking ---------------------------------------------------------------------------------------------------

    def nodes(self) -> list[dict[str, Any]]:
        return self.registry.list("nodes")

    def node(self, name: str) -> dict[str, Any]:
        found = self.registry.get("nodes", None, name)
        assert found is not None
        return found

    def states(self) -> list[str]:
        return [self._states[name] for name in sorted(self._states)]

    def pods_of(self, node: str) -> list[dict[str, Any]]:
        return list(self._pods.get(node, {}).values())

    def driver(self, node: str) -> str:
        """The digest of the driver that the node's driver pod runs."""
        return next((digest_of(p["spec"]) for p in self.pods_of(node) if _component(p) == "driver"), "")

    def drivers(self) -> list[dict[str, Any]]:
        return [d for d in self.registry.list(("apps", "daemonsets"), NAMESPACE) if _component(d) == "driver"]

    async def until(self, holds: Callable[[], Any], seconds: float = 45) -> Any:
        """The first true value, looked at again after every write."""

        def seen() -> str:
            return str([(n["metadata"]["name"], n["metadata"].get("labels", {}).get(names.UPGRADE_STATE_LABEL),
                         n["metadata"].get("annotations"), n["spec"]) for n in self.nodes()[:5]])  # fmt: skip

        return await until(holds, changed=self._changed, seconds=seconds, seen=seen)

    # -- making ----------------------------------------------------------------------------------------------------

    async def add_node(self, name: str, **spec: Any) -> None:
        labels = {
            names.PCI_PRESENT_LABELS[0]: "true",
            names.OS_ID_LABEL: "ubuntu",
            names.OS_VERSION_LABEL: "22.04",
            names.KERNEL_VERSION_LABEL: KERNEL,
        }
        ready = [{"type": "Ready", "status": "True", "lastHeartbeatTime": SINCE}]
        info = {"kernelVersion": KERNEL, "containerRuntimeVersion": "containerd://2.1.0", "architecture": "amd64"}
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        status = {"conditions": ready, "nodeInfo": info, "allocatable": amounts}
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}
        await self.registry.create("nodes", None, body)
        await follow_conditions(self.registry, name)

    async def add_pod(self, name: str, node: str, *, gpus: int = 1, owner: str = "ReplicaSet", **labels: str) -> None:
        limits = {names.GPU_RESOURCE: str(gpus)} if gpus else {}
        container = {"name": "c", "image": "train", "resources": {"limits": limits, "requests": limits}}
        owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "o", "controller": True}]
        meta = {"name": name, "labels": labels, "ownerReferences": owners if owner else []}
        body = {"metadata": meta, "spec": {"nodeName": node, "containers": [container]}}
        await self.registry.create("pods", "default", body)
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await self.registry.patch("pods", "default", name, {"status": status}, "merge", subresource="status")

    async def policy(self, **driver: Any) -> None:
        """Make or change the policy: what its driver group says."""
        body = {"spec": {"driver": driver}}
        if self.registry.get(POLICY, None, "p") is None:
            full = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "p"}, **body}
            await self.registry.create(POLICY, None, full)
        else:
            await self.registry.patch(POLICY, None, "p", body, "merge")

    # -- playing ---------------------------------------------------------------------------------------------------

    async def play(self) -> None:
        while True:
            await self._changed.wait()
            while self._dirty:
                name = self._dirty.pop()
                with contextlib.suppress(ApiFailure):  # changed meanwhile: that comes again
                    await self._play_node(name)
            self._changed.clear()

    async def _play_node(self, name: str) -> None:
        node = self.registry.get("nodes", None, name)
        if node is None:
            return
        labels = node["metadata"].get("labels", {})
        here = {_component(pod): pod for pod in self.pods_of(name) if pod["metadata"]["namespace"] == NAMESPACE}
        for pod in self.pods_of(name):
            if "deletionTimestamp" in pod["metadata"]:
                meta = pod["metadata"]
                await self.registry.delete("pods", meta["namespace"], meta["name"], grace=0)
                return
        for operand in OPERANDS:
            gate = labels.get(names.DEPLOY_PREFIX + operand.gate)
            pod = here.get(operand.gate)
            wanted = self._daemonset(operand.gate, node)
            owner = pod["metadata"]["ownerReferences"][0]["uid"] if pod is not None else ""
            if pod is not None and (wanted is None or owner != wanted["metadata"]["uid"]):
                await self.registry.delete("pods", NAMESPACE, pod["metadata"]["name"], grace=0)
            elif pod is None and wanted is not None:
                await self._make(name, operand.gate, wanted)
            if gate == "removing" and self._stage(name, operand.makes[0].value) != "removed":
                await self._report(name, operand.makes[0].value, "removed")
        for gate, stage in REPORTS:
            if gate not in here:
                return
            state = "failed" if stage == "cuda" and (name, self.driver(name)) in self.bad else "done"
            # As an operand does: once for each of its pods, and not again after another client removes the label.
            said = (here[gate]["metadata"]["uid"], state)
            if self._said.get((name, stage)) != said:
                await self._report(name, stage, state)
                self._said[name, stage] = said
            if state == "failed":
                return

    def _daemonset(self, gate: str, node: dict[str, Any]) -> dict[str, Any] | None:
        labels, taints = node["metadata"].get("labels", {}), node["spec"].get("taints", ())
        if labels.get(names.DEPLOY_PREFIX + gate) != "true":
            return None
        for daemonset in self.registry.list(("apps", "daemonsets"), NAMESPACE):
            if _component(daemonset) != gate:
                continue
            selector = daemonset["spec"]["template"]["spec"].get("nodeSelector") or {}
            if any(not _tolerated(taint, daemonset["spec"]["template"]["spec"]) for taint in taints):
                continue
            off = names.ROLLBACK_LABEL in labels and names.ROLLBACK_LABEL not in selector and gate == "driver"
            if not off and all(labels.get(key) == value for key, value in selector.items()):
                return daemonset
        return None

    async def _make(self, node: str, gate: str, daemonset: dict[str, Any]) -> None:
        template, meta = daemonset["spec"]["template"], daemonset["metadata"]
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": meta["name"], "uid": meta["uid"]}
        pod = {
            "metadata": {
                "generateName": f"{gate}-",
                "labels": template["metadata"]["labels"],
                "annotations": template["metadata"].get("annotations") or {},
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {
                "nodeName": node,
                "containers": [
                    {key: value for key, value in container.items() if key in ("name", "image", "env")}
                    for container in template["spec"]["containers"]
                ],
            },
        }
        made = await self.registry.create("pods", NAMESPACE, pod)
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        name = made["metadata"]["name"]
        await self.registry.patch("pods", NAMESPACE, name, {"status": status}, "merge", subresource="status")

    def _stage(self, node: str, stage: str) -> str:
        gpunode = self.registry.get(GPUNODES, None, node) or {}
        state: str = gpunode.get("status", {}).get("stages", {}).get(stage, {}).get("state", "")
        return state

    async def _report(self, node: str, stage: str, state: str) -> None:
        entry = {"state": state, "since": SINCE}
        if state == "failed":
            entry |= {"reason": "VectorAddFailed", "message": "element 7 differs"}
        await self.registry.patch(GPUNODES, None, node, {"status": {"stages": {stage: entry}}}, "merge")


def _tolerated(taint: dict[str, Any], spec: dict[str, Any]) -> bool:
    """Return whether a DaemonSet's pods run on a node with this taint; only tolerations of whole keys occur here."""
    return any(one.get("key", taint["key"]) == taint["key"] for one in spec.get("tolerations", ()))


def _component(obj: dict[str, Any]) -> str:
    return str(obj["metadata"].get("labels", {}).get(COMPONENT, ""))


@pytest.fixture
async def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Played]:
    # Nothing is waited for without a cause: looks are hardly gathered, failures need not last.
    monkeypatch.setattr(controller, "_GATHER_SECONDS_PER_NODE", 0.002)
    monkeypatch.setattr(decide, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(decide, "EVICT_SECONDS", 0.05)
    server = await ApiServer.start(tmp_path / "pki")
    server.extensions.identity.add("admin", ADMIN)
    server.extensions.identity.add("operator", service_account_user(NAMESPACE, "gpu-operator"))
    await server.registry.create("namespaces", None, {"metadata": {"name": NAMESPACE}})
    async with connected(server) as client:
        for manifest in (*crds(), *(one for one in manifests() if one["kind"] in RIGHTS)):
            await client.apply(manifest, "test", resource=resource_of(manifest))
    cluster = Played(server)
    player = asyncio.create_task(cluster.play())
    yield cluster
    assert not player.done(), player.exception()
    player.cancel()
    await asyncio.gather(player, return_exceptions=True)
    await server.stop()


@pytest.fixture
async def admin(played: Played) -> AsyncIterator[Client]:
    async with connected(played.server) as client:
        yield client


@contextlib.asynccontextmanager
async def operating(cluster: Played) -> AsyncIterator[OperatorProcess]:
    """An operator at work for the block, with the rights of one; its end is that of a process."""
    async with connected(cluster.server, "operator") as client:
        operator = OperatorProcess(client, ExplainProcess(), image="own", identity="test")
        task = asyncio.create_task(operator.run())
        try:
            yield operator
        finally:
            ended = task.exception() if task.done() else None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert ended is None, ended


@pytest.fixture
def work() -> Callable[[Played], contextlib.AbstractAsyncContextManager[OperatorProcess]]:
    return operating
