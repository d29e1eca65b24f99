"""Tests of admission on a real API server: older pods, the order of webhooks, and the users that the policy stops.

The webhook runs under its own account, as in its pod; a real API server on this machine reaches it by a URL.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.crds import crds
from gpuplane.cli.install_objects import apply
from gpuplane.operator.installation import installation, manifests, resource_of
from kubekit.api.core import LeaseObject, Namespace, Pod
from kubekit.kube import ApiError, Client, NotFound
from tests.support.realkube.life import PATIENCE_S, account_config
from tests.support.until import until

NAMESPACE = names.OPERATOR_NAMESPACE
OLD = Path(__file__).parents[1] / "admission" / "kubernetes-alpha"
PODS = "/api/v1/namespaces/default/pods"
LEFT = ("gpu-pod", "gpu-pod-affinity", "gpu-pod-libraries", "p", "never", "spelled", "given", "left", "theirs")
TENANT, EXTENDER = "tenant", "gpuplane-scheduler"
(POLICIES,) = [one for one in crds() if one["spec"]["names"]["kind"] == "ClusterPolicy"]


async def post(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await client.request("POST", path, None, body))
    return answer


async def refusal(client: Client, method: str, path: str, body: dict[str, Any], patch: str = "merge-patch") -> str:
    """Return the API server's error for a request; empty if it succeeds."""
    try:
        kind = f"application/{patch}+json" if method == "PATCH" else "application/json"
        await client.request(method, path, None, body, content_type=kind)
    except ApiError as error:
        return str(error)
    return ""


async def gone(client: Client, *pods: str) -> None:
    for name in pods:
        try:
            await client.request("DELETE", f"{PODS}/{name}", None, {"gracePeriodSeconds": 0})
        except NotFound:
            continue


def old(name: str) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load((OLD / f"{name}.yaml").read_text())
    manifest["spec"]["nodeSelector"] = {"example.com/nowhere": "true"}  # there are nodes of other tests
    return manifest


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[Client]:
    """The namespace and the policy on assignments; accounts of a tenant and of the extender that may do anything."""
    async with Client.connect(control_plane.kubeconfig) as client:
        # Pods are refused before their namespace has its account.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        await until(lambda: client.request("GET", account), ignored=NotFound, what=account, seconds=PATIENCE_S)
        made = [m for m in installation() if m["kind"] == "Namespace"] + manifests("shares")
        for account in (TENANT, EXTENDER):
            meta = {"name": account, "namespace": NAMESPACE}
            made.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
            made.append(
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": "ClusterRoleBinding",
                    "metadata": {"name": f"test-{account}"},
                    "roleRef": {
                        "apiGroup": "rbac.authorization.k8s.io",
                        "kind": "ClusterRole",
                        "name": "cluster-admin",
                    },
                    "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
                }
            )
        made += [m for m in manifests("admission") if m["kind"] not in ("Deployment", "PodDisruptionBudget")]
        made += manifests("scheduler-name")
        webhooks = [m for m in made if "webhooks" in m]
        await gone(client, *LEFT)  # a run that was cut short left its own
        await until(lambda: _is_settled(client), what="the end of an earlier namespace", seconds=PATIENCE_S)
        try:
            for manifest in [POLICIES, *made]:
                if manifest not in webhooks:
                    await apply(client, manifest)
            yield client
        finally:
            await gone(client, *LEFT)
            for manifest in reversed(made):
                resource, meta = resource_of(manifest), manifest["metadata"]
                try:
                    await client.delete(resource, meta["name"], meta.get("namespace"))
                except NotFound:
                    continue
            await until(
                lambda: _is_gone(client, Namespace.RESOURCE.path(None, NAMESPACE)),
                what="the namespace is gone",
                seconds=PATIENCE_S,
            )


async def _is_settled(client: Client) -> bool:
    """Return whether the operator's namespace is there to stay, or not at all."""
    try:
        found = await client.get(Namespace, NAMESPACE)
    except NotFound:
        return True
    return not found.metadata.deletion_timestamp


async def _is_gone(client: Client, path: str) -> bool:
    try:
        await client.request("GET", path)
    except NotFound:
        return True
    return False


@pytest.fixture
async def webhook(control_plane: ControlPlane, admin: Client) -> AsyncIterator[None]:
    """The webhook, fail closed, in the path of the API server."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    parts = [*manifests("admission"), *manifests("scheduler-name")]
    for manifest in copy.deepcopy([m for m in parts if "webhooks" in m]):
        for hook in manifest["webhooks"]:
            path = hook["clientConfig"].pop("service")["path"]
            hook["clientConfig"]["url"] = f"https://localhost:{port}{path}"
            hook["failurePolicy"] = "Fail"
        await admin.apply(manifest, "test", resource=resource_of(manifest))
    config = await account_config(control_plane, admin, NAMESPACE, names.ADMISSION_NAME)
    command = [sys.executable, "-m", "gpuplane", "run", "admission", "--port", str(port), "--kubeconfig", str(config)]
    command.append(f"--scheduler-name={names.SCHEDULER_NAME}")
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, "POD_NAMESPACE": NAMESPACE})
    try:
        # The first certificate, and the API server's knowing of it.
        probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "never"}, "spec": share("150")}
        await until(lambda: _answers(admin, probe), what="the webhook answers", seconds=PATIENCE_S)
        yield
    finally:
        process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            await process.wait()


async def _answers(client: Client, probe: dict[str, Any]) -> bool:
    return "GP201" in await refusal(client, "POST", PODS, probe)


def share(core: str) -> dict[str, Any]:
    limits = {names.VCUDA_CORE: core}
    selector = {"example.com/nowhere": "true"}
    return {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}], "nodeSelector": selector}


async def test_without_the_webhook_the_old_resource_is_stored_and_means_nothing(admin: Client) -> None:
    stored = await post(admin, PODS, old("gpu-pod"))
    limits = [container["resources"]["limits"] for container in stored["spec"]["containers"]]
    assert limits == [{names.ALPHA_GPU: "2"}, {names.ALPHA_GPU: "3"}]
    # Only the annotation hides from validation what a label's value may not be.
    spelled = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "spelled"}, "spec": share("10")}
    spelled["spec"]["nodeSelector"] = {names.ALPHA_GPU_NAME_LABEL: "Tesla K80"}
    assert "Invalid value" in await refusal(admin, "POST", PODS, spelled)


async def test_mutation_comes_before_validation(admin: Client, webhook: None) -> None:
    for name in ("gpu-pod", "gpu-pod-affinity", "gpu-pod-libraries"):
        manifest = old(name)
        if name == "gpu-pod":
            # A value that validation refuses is put right in time.
            manifest["spec"]["nodeSelector"][names.ALPHA_GPU_NAME_LABEL] = "Tesla K80"
        stored = await post(admin, PODS, manifest)
        for container in stored["spec"]["containers"]:
            resources = container["resources"]
            assert set(resources["limits"]) == set(resources["requests"]) == {names.GPU_RESOURCE}
        if name == "gpu-pod":
            assert stored["spec"]["nodeSelector"][names.ALPHA_GPU_NAME_LABEL] == "Tesla-K80"
        if name == "gpu-pod-affinity":
            node = stored["spec"]["affinity"]["nodeAffinity"]
            (term,) = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            assert term["matchExpressions"][0]["values"] == ["Tesla-K80", "Tesla-P100"]
        # The manifest again, as kubectl apply merges it: no change, and no refusal.
        path = f"{PODS}/{name}"
        assert await refusal(admin, "PATCH", path, manifest, "strategic-merge-patch") == "", name
        # And as kubectl apply --server-side does, which knows owners of fields.
        for _ in range(2):
            await admin.apply(manifest, "kubectl", namespace="default", resource=Pod.RESOURCE)
        again = json.loads(await admin.request("GET", path))
        assert again["spec"] == stored["spec"]


async def test_pods_that_request_gpus_are_given_to_the_pod_scheduler(admin: Client, webhook: None) -> None:
    """While the policy says so, and the lease of the scheduler is held."""

    async def create(name: str, **spec: Any) -> str:
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": share("30") | spec}
        named: str = (await post(admin, PODS, body))["spec"]["schedulerName"]
        await gone(admin, name)
        return named

    async def is_given() -> bool:
        return await create("given") == names.SCHEDULER_NAME

    assert await create("left") == "default-scheduler"
    policy = {"metadata": {"name": "of-admission"}, "spec": {"operator": {"setSchedulerName": True}}}
    lease = {
        "metadata": {"name": names.EXTENDER_NAME, "namespace": NAMESPACE},
        "spec": {"holderIdentity": "replica", "leaseDurationSeconds": 60, "renewTime": "2026-01-01T00:00:00.000000Z"},
    }
    try:
        await admin.apply(policy, "test", resource=ClusterPolicy.RESOURCE)
        await admin.apply(lease, "test", resource=LeaseObject.RESOURCE)
        await until(is_given, what="the webhook has heard of policy and lease", seconds=PATIENCE_S)
        assert await create("theirs", schedulerName="another") == "another"
    finally:
        await admin.delete(ClusterPolicy, "of-admission")


async def test_what_can_never_run_is_refused(admin: Client, webhook: None) -> None:
    never = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "never"}, "spec": share("150")}
    said = await refusal(admin, "POST", PODS, never)
    assert 'admission webhook "pods.validate.gpuplane.dev" denied the request: GP201' in said
    await post(admin, PODS, {**never, "metadata": {"name": "p"}, "spec": share("50")})


@pytest.mark.parametrize("annotation", [names.ASSIGNMENT_ANNOTATION, f"{names.PREDICATE_INDEX_PREFIX}0"])
async def test_only_the_extender_says_what_a_pod_holds(
    control_plane: ControlPlane, admin: Client, annotation: str
) -> None:
    tenants = await account_config(control_plane, admin, NAMESPACE, TENANT)
    extenders = await account_config(control_plane, admin, NAMESPACE, EXTENDER)
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": share("50")}
    forged = {"metadata": {"annotations": {annotation: "{}"}}}
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", **forged["metadata"]},
        "target": {"kind": "Node", "name": "nowhere"},
    }
    async with Client.connect(tenants) as tenant, Client.connect(extenders) as extender:
        await post(tenant, PODS, body)
        another = {**body, "metadata": {"name": "never", **forged["metadata"]}}
        attempt = functools.partial(refusal, tenant, "POST", f"{PODS}?dryRun=All", another)
        await until(attempt, what="the policy is in force", seconds=PATIENCE_S)
        for method, path, what in (
            ("POST", PODS, another),
            ("PATCH", f"{PODS}/p", forged),
            ("PATCH", f"{PODS}/p/status", forged),
            ("POST", f"{PODS}/p/binding", binding),
            ("POST", "/api/v1/namespaces/default/bindings", binding),
        ):
            assert "gpuplane-own-assignment" in await refusal(tenant, method, path, what), path
        assert await refusal(tenant, "PATCH", f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}}) == ""
        assert await refusal(extender, "POST", f"{PODS}/p/binding", binding) == ""
        for client in (tenant, extender, admin):
            for path in (f"{PODS}/p", f"{PODS}/p/status"):
                for value in ("{1}", None):
                    changed = {"metadata": {"annotations": {annotation: value}}}
                    assert "gpuplane-own-assignment" in await refusal(client, "PATCH", path, changed)
        pod = json.loads(await admin.request("GET", f"{PODS}/p"))
        assert pod["metadata"]["annotations"] == {annotation: "{}"}


async def test_the_expressions_have_no_type_errors(admin: Client) -> None:
    """The API server checks the types of a policy's expressions when it stores it."""

    async def checked() -> Any:
        path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/gpuplane-own-assignment"
        status = json.loads(await admin.request("GET", path)).get("status") or {}
        return status if "observedGeneration" in status else None

    status = await until(checked, what="the controller manager has looked at the policy", seconds=PATIENCE_S)
    warnings = (status.get("typeChecking") or {}).get("expressionWarnings") or []
    assert not warnings, warnings
