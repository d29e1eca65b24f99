"""PodExplanations: the operator answers users who may view one namespace, hides other tenants, and bounds its work.

The operator, its process and the user have exactly the rights of the installation's roles.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.explanation import PodExplanation
from gpuplane.explain.asking import Unanswered, ask_operator
from gpuplane.operator import explanations
from gpuplane.operator.autoscaler_install import AutoscalerInstall
from gpuplane.operator.explanations import (
    DELETED_AT_ONCE,
    LIFETIME_SECONDS,
    MOST_WAITING,
    PAUSE_SECONDS,
    Explain,
    ExplainProcess,
    ExplanationController,
    ExplanationFailed,
    NamespacePlan,
    SeenRequest,
    plan_namespace,
)
from gpuplane.operator.installation import installation, manifests, resource_of
from kubekit.api.core import Namespace
from kubekit.api.kinds import built_in
from kubekit.kube import ApiError, Client, Forbidden, NotFound, SystemClock
from tests.support.aggregated_roles import write_aggregated_roles
from tests.support.extender_world import World, gpu_pod, world
from tests.support.until import until
from tinykube.apiserver import User
from tinykube.apiserver.identity import service_account_user

RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
SECRET = "payroll-forecast"  # a name of another tenant, as of the tenant's namespace
RBAC = "rbac.authorization.k8s.io"


# -- the plan ----------------------------------------------------------------------------------------------------------


def request(number: int, age: float = 1.0, **more: Any) -> SeenRequest:
    return SeenRequest(f"r{number:05}", f"u{number}", f"2026-01-01T00:00:{number % 60:02}Z", age, ("p",), **more)


def test_the_oldest_request_is_answered_and_one_at_a_time() -> None:
    plan = plan_namespace([request(2), request(1)], float("inf"))
    assert plan == NamespacePlan(answer=request(1), again=PAUSE_SECONDS)
    assert plan_namespace([request(1)], 0.5).answer is None
    assert plan_namespace([request(1)], 0.5).again == PAUSE_SECONDS - 0.5


def test_requests_end_after_a_minute_answered_or_not() -> None:
    old = [request(1, LIFETIME_SECONDS), request(2, LIFETIME_SECONDS, answered=True)]
    assert plan_namespace(old, 0.0) == NamespacePlan(delete=tuple(old))
    young = request(1, 20.0, answered=True)
    assert plan_namespace([young], 0.0) == NamespacePlan(again=LIFETIME_SECONDS - 20)


def test_requests_beyond_the_bound_are_deleted_in_portions() -> None:
    plan = plan_namespace([request(number) for number in range(40)], float("inf"))
    assert len(plan.delete) == 40 - MOST_WAITING
    flood = plan_namespace([request(number) for number in range(5000)], float("inf"))
    assert (len(flood.delete), flood.again) == (DELETED_AT_ONCE, 0.0)
    assert flood.answer is not None and flood.answer not in flood.delete


def test_finalizers_are_taken_off_what_is_deleted() -> None:
    stuck = request(1, ending=True, finalized=True)
    assert plan_namespace([stuck, request(2, ending=True)], 0.0) == NamespacePlan(release=(stuck,))


# -- on a cluster ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """An API server with two tenants, the rights of an installation, and vera, who may view the namespace ml."""
    async with world(tmp_path) as made:
        for name in ("ml", SECRET, "kube-system", names.OPERATOR_NAMESPACE):
            with contextlib.suppress(ApiError):
                body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                await made.client.create(body, resource=Namespace.RESOURCE)
        for manifest in manifests():
            if manifest["kind"] in RIGHTS:
                await made.client.apply(manifest, "test", resource=resource_of(manifest))
        await write_aggregated_roles(made.client)
        identity = made.server.extensions.identity
        identity.add("operator", service_account_user(names.OPERATOR_NAMESPACE, "gpu-operator"))
        identity.add("vera", User("vera", ("system:authenticated",)))
        binding = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "vera", "namespace": "ml"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "view"},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "vera"}],
        }
        await made.client.apply(binding, "test", resource=built_in(binding["apiVersion"], binding["kind"]))
        for user in ("operator", "vera"):
            (tmp_path / user).write_text(made.kubeconfig(user, namespace="ml"))
        yield made


@contextlib.asynccontextmanager
async def operating(tmp_path: Path, explain: Explain | None = None) -> AsyncIterator[ExplanationController]:
    """The operator's controller with the operator's rights, for the block."""
    async with Client.connect(tmp_path / "operator") as client:
        explain = explain or ExplainProcess(tmp_path / "operator")
        controller = ExplanationController(client, SystemClock(), explain)
        task = asyncio.create_task(controller.run())
        try:
            yield controller
        finally:
            ended = task.exception() if task.done() else None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert ended is None, ended


async def gpuplane(tmp_path: Path, *arguments: str, user: str = "vera") -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command of a user's."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuplane", *arguments, "--kubeconfig", str(tmp_path / user),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def asking(pods: Sequence[str] = ("tune",), **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gpuplane.dev/v1alpha1",
        "kind": "PodExplanation",
        "metadata": {"generateName": "explain-", "namespace": "ml", **metadata},
        "spec": {"pods": list(pods)},
    }


async def ask(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    return await client.create(body, resource=PodExplanation.RESOURCE)


async def left(cluster: World, namespace: str = "ml") -> list[PodExplanation]:
    return await cluster.client.list(PodExplanation, namespace)


async def test_explain_works_for_a_user_with_the_role_view_in_one_namespace(cluster: World, tmp_path: Path) -> None:
    """The answer is an administrator's, GPU by GPU, without the name of another tenant's pod or namespace."""
    await cluster.node("n1", 1)
    await cluster.pod(gpu_pod(f"{SECRET}-0", (90, 8), namespace=SECRET, nodeName="n1"))
    await cluster.pod(gpu_pod("tune", (40, 8), namespace="ml"))
    await cluster.pod(gpu_pod("eval", (60, 8), namespace="ml"))
    async with operating(tmp_path):
        code, out, err = await gpuplane(tmp_path, "explain", "tune", "-o", "json")
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert found["canEverRun"] is True and found["unread"] == []
        assert [(tally["count"], tally["reason"]) for tally in found["gpuReasons"]] == [(1, "core")]
        assert [gpu["core"] for node in found["free"] for gpu in node["gpus"]] == [10]
        changes = [cure["change"] for cure in found["cures"]]
        assert "a pod of another namespace ends or is deleted" in changes and "ask 10% core (vcuda-core 10)" in changes
        assert SECRET not in out
        code, page, _ = await gpuplane(tmp_path, "explain")
        assert code == 0 and "ml/tune   waiting" in page and "ml/eval   waiting" in page
        assert SECRET not in page and "can ever run: yes" in page
    answered = await left(cluster)
    assert len(answered) == 2, "one request for both pods of the second command"


async def test_the_operator_answers_what_pools_would_buy_as_the_command_does(cluster: World, tmp_path: Path) -> None:
    """An administrator and a user of one namespace read the same about pools, and the user no name of other tenants."""
    client = cluster.client
    asked = AutoscalerInstall({"CLUSTER_NAME": "demo", "FEATURE_GATES": "NodeOverlay=true"})
    for manifest in installation(autoscaler=asked):
        if (
            manifest["kind"] in (*RIGHTS, "CustomResourceDefinition")
            or manifest["metadata"]["name"] == names.AUTOSCALER_NAME
        ):
            await client.apply(manifest, "test", resource=resource_of(manifest))
    template = {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    daemons = {"metadata": {"name": SECRET}, "spec": {"selector": {"matchLabels": {"app": "agent"}}}}
    daemons["spec"]["template"] = template
    await cluster.server.registry.create(("apps", "daemonsets"), SECRET, daemons)
    provider = {"launchTemplate": "gpu", "subnetSelector": {"a": "b"}}
    types = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g4dn.xlarge"]}
    for name, more in (("plain", {}), ("guarded", {"taints": [{"key": "team", "effect": "NoSchedule"}]})):
        pool = {"metadata": {"name": name}, "spec": {"provider": provider, "requirements": [types], **more}}
        await cluster.server.registry.create(("karpenter.sh", "provisioners"), None, pool)
    await cluster.pod(gpu_pod("train", whole=1, namespace="ml"))
    (tmp_path / "admin").write_text(cluster.kubeconfig())
    async with operating(tmp_path):
        code, out, err = await gpuplane(tmp_path, "explain", "train", "-o", "json")
        assert (code, err) == (0, "")
        mine = json.loads(out)
    [theirs] = json.loads((await gpuplane(tmp_path, "explain", "-n", "ml", "-o", "json", user="admin"))[1])["items"]
    assert mine["unread"] == [] and SECRET not in out
    assert [(one["pool"], one["type"]) for one in mine["pools"]] == [("plain", "g4dn.xlarge"), ("guarded", "")]
    assert mine["buying"]["state"] == "not-running"
    for part in ("pools", "buying", "priced", "canEverRun"):
        assert mine[part] == theirs[part]
    granted = {
        (verb, resource)
        for role in installation(autoscaler=asked)
        if role["kind"] in ("Role", "ClusterRole") and "explain-pools" in role["metadata"]["name"]
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    text = (await client.request("GET", "/metrics")).decode()
    line = re.compile(r'verb="(\w+)",resource="([\w/]*)",[^}]*user="system:serviceaccount:gpu-operator:gpu-operator"')
    assert len(granted) == 7 and granted <= set(line.findall(text)), "rights that the answer does not use"


async def test_quota_and_own_pods_are_named(cluster: World, tmp_path: Path) -> None:
    """Cures name pods of the user's own namespace; the quota of the namespace is read with the operator's rights."""
    await cluster.node("n1", 1, labels={names.QUOTA_MODEL_LABEL: "T4"})
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.QUOTA_CONFIGMAP, "namespace": names.QUOTA_NAMESPACE},
        "data": {names.QUOTA_KEY: json.dumps({"ml": {"quota": {"T4": 1}, "pool": []}})},
    }
    await cluster.client.apply(config, "test", resource=built_in("v1", "ConfigMap"))
    await cluster.pod(gpu_pod("mine", (90, 8), namespace="ml", nodeName="n1"))
    await cluster.pod(gpu_pod("tune", (40, 8), namespace="ml"))
    async with operating(tmp_path), Client.connect(tmp_path / "vera") as vera:
        [found] = await ask_operator(vera, "ml", ["tune"])
    assert found.quota == "exceeded" and "mine" in found.node_reasons[0].reason
    assert any(cure.change == "ml/mine ends or is deleted" for cure in found.cures)


async def test_the_role_lets_a_user_ask_and_nothing_else(cluster: World, tmp_path: Path) -> None:
    async with Client.connect(tmp_path / "vera") as vera:
        made = await ask(vera, asking())
        name = made["metadata"]["name"]
        with pytest.raises(Forbidden):
            await vera.delete(PodExplanation, name, "ml")
        for subresource in (None, "status"):
            with pytest.raises(Forbidden):
                await vera.patch(PodExplanation, name, {"status": {"error": "x"}}, "ml", subresource=subresource)
        with pytest.raises(Forbidden):
            await ask(vera, asking(namespace=SECRET))
        with pytest.raises(Forbidden):
            await vera.list(PodExplanation, SECRET)


async def test_a_forged_status_is_dropped(cluster: World, tmp_path: Path) -> None:
    await cluster.pod(gpu_pod("tune", (40, 8), namespace="ml"))
    forged = {"answered": "2026-01-01T00:00:00Z", "answers": [{"pod": "tune", "explanation": {"note": "forged"}}]}
    async with Client.connect(tmp_path / "vera") as vera:
        made = await ask(vera, {**asking(), "status": forged})
        assert not made.get("status")
        async with operating(tmp_path):
            await until_answered(vera, made["metadata"]["name"])
        found = await vera.get(PodExplanation, made["metadata"]["name"], "ml")
    [answer] = found.status.answers
    assert answer.explanation["pod"] == "ml/tune" and answer.explanation["note"] != "forged"


async def until_answered(client: Client, name: str) -> None:
    async def answered() -> bool:
        return bool((await client.get(PodExplanation, name, "ml")).status.answered)

    await until(answered)


@pytest.mark.parametrize(
    "pods",
    [["../../../namespaces/payroll-forecast/pods/x"], ["a/b"], ["A"], [""], ["x" * 254], ["p"] * 33, []],
    ids=["path", "slash", "case", "empty", "long", "many", "none"],
)
async def test_names_that_are_none_are_refused(cluster: World, tmp_path: Path, pods: list[str]) -> None:
    async with Client.connect(tmp_path / "vera") as vera:
        with pytest.raises(ApiError, match=r"spec\.pods"):
            await ask(vera, asking(pods))


async def test_a_pod_of_another_namespace_is_not_explained(cluster: World, tmp_path: Path) -> None:
    await cluster.node("n1", 1)
    await cluster.pod(gpu_pod("theirs", (40, 8), namespace=SECRET))
    async with operating(tmp_path), Client.connect(tmp_path / "vera") as vera:
        assert await ask_operator(vera, "ml", ["theirs", "pod-0", "pod-1"]) == []


async def test_a_tenant_with_a_flood_of_requests_delays_no_other_tenant(cluster: World, tmp_path: Path) -> None:
    """Beyond ten the requests are deleted; a request of another namespace is answered next."""
    order: list[str] = []

    async def explain(namespace: str, pods: Sequence[str]) -> list[dict[str, Any]]:
        order.append(namespace)
        return [{"pod": pod} for pod in pods]

    create = cluster.server.registry.create
    resource = ("gpuplane.dev", "podexplanations")
    for number in range(600):
        await create(resource, "ml", asking(name=f"flood-{number:04}"))
    await create(resource, SECRET, asking(name="one", namespace=SECRET))
    async with operating(tmp_path, explain):

        async def drained() -> bool:
            return bool(order.count(SECRET)) and len(await left(cluster)) <= MOST_WAITING + order.count("ml")

        await until(drained, seconds=60)
        assert order.index(SECRET) <= 2
        assert order.count("ml") <= MOST_WAITING
        [one] = await left(cluster, SECRET)
        assert one.status.answered


async def test_a_request_ends_after_its_time_though_a_user_gave_it_finalizers(
    cluster: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanations, "LIFETIME_SECONDS", 0.2)
    async with Client.connect(tmp_path / "vera") as vera:
        await ask(vera, asking(finalizers=["tenant.example/forever"]))
        await ask(vera, asking())
    async with operating(tmp_path):

        async def none_left() -> bool:
            return not await left(cluster)

        await until(none_left)


async def test_a_process_that_fails_is_reported_without_its_words(cluster: World, tmp_path: Path) -> None:
    (tmp_path / "nowhere").write_text("{}")
    async with operating(tmp_path, ExplainProcess(tmp_path / "nowhere")), Client.connect(tmp_path / "vera") as vera:
        with pytest.raises(Unanswered, match="could not read the cluster; its log has the cause") as told:
            await ask_operator(vera, "ml", ["tune"])
    assert "nowhere" not in str(told.value)


async def test_a_process_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(explanations, "PROCESS_SECONDS", 0.0)
    with pytest.raises(ExplanationFailed, match="within 0 s"):
        await ExplainProcess(tmp_path / "operator")("ml", ["tune"])


async def test_a_request_that_is_deleted_says_that_too_many_wait(cluster: World, tmp_path: Path) -> None:
    async with Client.connect(tmp_path / "vera") as vera:
        asked = asyncio.create_task(ask_operator(vera, "ml", ["tune"]))

        async def delete() -> bool:
            found = await left(cluster)
            for one in found:
                await cluster.client.delete(PodExplanation, one.metadata.name, "ml")
            return bool(found)

        await until(delete)
        with pytest.raises(Unanswered, match="too many podexplanations wait in namespace ml"):
            await asked


async def test_without_an_operator_that_answers_events_say_why(cluster: World, tmp_path: Path) -> None:
    await cluster.pod(gpu_pod("tune", (40, 8), namespace="ml"))
    with contextlib.suppress(NotFound):
        await cluster.client.request(
            "DELETE",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/podexplanations.gpuplane.dev",
        )
    code, out, _ = await gpuplane(tmp_path, "explain", "tune")
    told = " ".join(out.split())
    assert code == 0 and "only events say why the pod waits" in told
    assert "the cluster serves no podexplanations" in told
