"""Least rights on a real API server: each component worked under its own account, was refused nothing, and has nothing
that it does not use; and an operand's token is good for its own node only.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.operator.installation import installation, resource_of
from kubekit.kube import ApiError, Client, Forbidden, NotFound
from tests.support.realkube.control_plane import ControlPlane
from tests.support.realkube.life import PATIENCE_S, Life, account_config, gpuplane
from tests.support.until import until

NAMESPACE = names.OPERATOR_NAMESPACE
# The first test that wants the recorded life waits for all of it.
pytestmark = pytest.mark.deadline(300)

# (account or *, API group, resource, verb or *) -> why it is granted though the recorded life does not show it.
UNSEEN = {
    ("gpu-operator", "coordination.k8s.io", "leases", "*"): "the audit log leaves leases out",
    ("gpu-operator", "apps", "*", "create"): "an apply that makes an object is a create as well",
    ("gpu-operator", "node.k8s.io", "runtimeclasses", "create"): "the same",
    ("gpu-operator", "apps", "daemonsets", "get"): "driver upgrades compare pods with their DaemonSet",
    ("gpu-operator", "apps", "*", "delete"): "what a changed policy does not want any more",
    ("*", "", "events", "patch"): "an event that repeats is counted on",
    ("gpu-operator", "", "services", "*"): "the exporter's Service: made by an apply, removed with the exporter",
    ("gpu-operator", "monitoring.coreos.com", "servicemonitors", "*"): "with dcgmExporter.serviceMonitor.enabled",
    ("gpu-operator", "", "configmaps", "get"): "with driver.kernelModuleConfig, repoConfig or certConfig",
    ("gpu-operator", "", "pods/eviction", "create"): "driver upgrades evict pods",
    ("gpu-operator", "", "pods", "delete"): "driver upgrades restart the driver's pods",
    ("gpu-operator", "nvidia.com", "nvidiadrivers", "*"): "with driver.useNvidiaDriverCRD",
    ("gpu-operator", "nvidia.com", "nvidiadrivers/status", "patch"): "the same",
    ("gpu-operator", "nfd.k8s-sigs.io", "nodefeatures", "*"): "with nfd.enabled switched off",
    ("gpu-operator", "", "nodes/status", "patch"): "extended resources of rules, with nfd.enabled switched off",
    ("gpu-operator", "karpenter.sh", "*", "*"): "where Karpenter's kinds are served",
    ("gpu-operator", "gpuplane.dev", "podexplanations", "*"): "a user of one namespace asks: test_explanation",
    ("gpu-operator", "gpuplane.dev", "podexplanations/status", "patch"): "the same",
    ("gpu-operator", "", "namespaces", "list"): "the same",
    ("node-feature-discovery", "nfd.k8s-sigs.io", "*", "*"): "where rules exist",
    ("node-feature-discovery-master", "", "*", "*"): "where rules exist",
    ("node-feature-discovery-master", "nfd.k8s-sigs.io", "*", "*"): "where rules exist",
    ("gpuplane-scheduler", "coordination.k8s.io", "leases", "*"): "the audit log leaves leases out",
    (
        "gpuplane-scheduler",
        "",
        "*",
        "create",
    ): "where kube-scheduler asks the extender, which binds pods",
    ("gpuplane-scheduler", "", "pods", "get"): "the same",
    ("gpuplane-scheduler", "", "nodes", "patch"): "the same",
    ("nvidia-device-plugin", "", "pods", "*"): "on nodes that offer shares",
    ("nvidia-device-plugin", "", "events", "create"): "a process that got round its limits",
    ("nvidia-dcgm-exporter", "", "pods", "*"): "with dcgmExporter.enablePodLabels or enablePodUID",
    ("gpu-feature-discovery", "", "nodes", "list"): "with devicePlugin.config",
    ("gpu-feature-discovery", "", "nodes", "watch"): "the same",
    ("nvidia-operator-validator", "", "pods", "delete"): "a later validation replaces the pod of an earlier one",
    ("nvidia-operator-validator", "", "pods/log", "get"): "when the validation pod failed",
}


def granted() -> set[tuple[str, str, str, str]]:
    """(account, API group, resource, verb) of every rule that the installation makes."""
    manifests = installation()
    roles = {
        (m["kind"], m["metadata"].get("namespace", ""), m["metadata"]["name"]): m["rules"]
        for m in manifests
        if m["kind"] in ("Role", "ClusterRole")
    }
    found = set()
    for binding in manifests:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        role = binding["roleRef"]
        namespace = binding["metadata"].get("namespace", "") if role["kind"] == "Role" else ""
        for subject in binding["subjects"]:
            for rule in roles[role["kind"], namespace, role["name"]]:
                found |= {
                    (subject["name"], group, resource, verb)
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for verb in rule["verbs"]
                }
    return found


def excused(rule: tuple[str, str, str, str]) -> bool:
    return any(all(mine in ("*", his) for mine, his in zip(entry, rule, strict=True)) for entry in UNSEEN)


def test_no_rule_has_a_wildcard_or_secrets() -> None:
    for account, group, resource, verb in granted():
        assert "*" not in (group, resource, verb), account
        assert resource.partition("/")[0] not in ("secrets", "clusterroles", "roles") or (
            (account, resource) == ("gpuplane-admission", "secrets") and verb in ("get", "patch")
        ), account
    # The certificate of the admission webhooks is in one Secret, and the rule names it.
    rules = [rule for manifest in installation() if "Role" in manifest["kind"] for rule in manifest.get("rules", ())]
    assert [rule["resourceNames"] for rule in rules if "secrets" in rule["resources"]] == [["gpuplane-admission-tls"]]


def test_nobody_was_refused_anything(life: Life) -> None:
    assert life.refused == []


def test_every_rule_is_used_or_excused(life: Life) -> None:
    idle = sorted(rule for rule in granted() - life.asked.keys() if not excused(rule))
    assert idle == [], "granted, never used and not in UNSEEN"


def test_no_excuse_is_left_without_its_rule() -> None:
    rules = granted()
    for entry in UNSEEN:
        assert any(all(mine in ("*", his) for mine, his in zip(entry, rule, strict=True)) for rule in rules), entry


# -- tokens ------------------------------------------------------------------------------------------------------------

OPERANDS = (
    "node-feature-discovery",
    "nvidia-driver",
    "nvidia-container-toolkit",
    "nvidia-operator-validator",
    "nvidia-device-plugin",
    "nvidia-dcgm-exporter",
    "gpu-feature-discovery",
)
MINE, OTHER = "rbac-mine", "rbac-other"


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[Client]:
    """Two nodes, the accounts and the policies, and on the first node a pod of each operand's account."""
    async with Client.connect(control_plane.kubeconfig) as client:
        await clear(client)  # a run that was cut short left its own
        for manifest in installation():
            if manifest["kind"] not in ("ClusterPolicy", "Deployment"):
                await client.apply(manifest, "test", resource=resource_of(manifest))
        try:
            for name in (MINE, OTHER):
                # Nobody's pod shall be bound to a machine that there is not: it would never end.
                node = {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name},
                    "spec": {"taints": [{"key": "example.com/nobody", "effect": "NoSchedule"}]},
                }
                await client.request("POST", "/api/v1/nodes", None, node)
                await client.request("POST", GPUNode.RESOURCE.path(None), None, gpunode(name))
            for account in OPERANDS:
                await client.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", None, pod(account))
            yield client
        finally:
            await clear(client)
            gpuplane(control_plane, "uninstall", "-q", "--timeout", "90")


async def clear(client: Client) -> None:
    """Delete the nodes, their GPUNodes and the pods, those of them that there are."""
    nodes = [f"{base}/{name}" for base in ("/api/v1/nodes", GPUNode.RESOURCE.path(None)) for name in (MINE, OTHER)]
    pods = [f"/api/v1/namespaces/{NAMESPACE}/pods/{account}" for account in OPERANDS]
    for path in (*nodes, *pods):
        with contextlib.suppress(NotFound):
            await client.request("DELETE", path, None, {"gracePeriodSeconds": 0})


def gpunode(name: str) -> dict[str, Any]:
    resource = GPUNode.RESOURCE
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}}


def pod(account: str) -> dict[str, Any]:
    container = {"name": "main", "image": names.IMAGE}
    spec = {"nodeName": MINE, "serviceAccountName": account, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": account}, "spec": spec}


async def refusal(client: Client, path: str, patch: dict[str, Any]) -> str:
    """What the API server says to a patch; empty when it is done."""
    try:
        await client.request("PATCH", path, None, patch, content_type="application/merge-patch+json")
    except Forbidden as error:
        return str(error)
    return ""


async def test_an_operand_changes_its_own_node_and_gpunode_and_no_other(
    control_plane: ControlPlane, admin: Client
) -> None:
    gpunodes = GPUNode.RESOURCE.path(None)
    for account in OPERANDS:
        bound = await account_config(control_plane, admin, NAMESPACE, account, account)
        loose = await account_config(control_plane, admin, NAMESPACE, account)
        rules = {(resource, verb) for who, _, resource, verb in granted() if who == account}
        async with Client.connect(bound) as own, Client.connect(loose) as unbound:
            if account == OPERANDS[0]:
                elsewhere = {"metadata": {"labels": {"example.com/by": account}}}
                path = f"/api/v1/nodes/{OTHER}"
                await until(
                    functools.partial(refusal, own, path, elsewhere), what="the policy is in force", seconds=PATIENCE_S
                )
            for resource, base, patch in (
                ("nodes", "/api/v1/nodes", {"metadata": {"labels": {"example.com/by": account}}}),
                ("gpunodes", gpunodes, {"metadata": {"labels": {"example.com/by": account}}}),
            ):
                if (resource, "patch") not in rules:
                    assert "cannot patch" in await refusal(own, f"{base}/{MINE}", patch), account
                    continue
                assert await refusal(own, f"{base}/{MINE}", patch) == "", account
                assert "gpuplane-own-node" in await refusal(own, f"{base}/{OTHER}", patch), account
                assert "gpuplane-own-node" in await refusal(unbound, f"{base}/{MINE}", patch), account
            if ("nodes", "patch") in rules:
                taint = {"spec": {"unschedulable": True}}
                assert "labels of its Node" in await refusal(own, f"/api/v1/nodes/{MINE}", taint), account


async def test_what_is_not_granted_is_refused(control_plane: ControlPlane, admin: Client) -> None:
    for account in (*OPERANDS, "gpu-operator"):
        user = f"system:serviceaccount:{NAMESPACE}:{account}"
        for group, resource, verb in (
            ("", "secrets", "get"),
            ("", "secrets", "list"),
            ("", "configmaps", "list"),
            ("", "nodes", "delete"),
            ("", "pods/exec", "create"),
            ("", "serviceaccounts/token", "create"),
            ("rbac.authorization.k8s.io", "clusterroles", "create"),
            ("apiextensions.k8s.io", "customresourcedefinitions", "patch"),
        ):
            plural, _, sub = resource.partition("/")
            attributes = {
                "group": group,
                "resource": plural,
                "subresource": sub,
                "verb": verb,
                "namespace": "kube-system",
            }
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": user, "resourceAttributes": attributes},
            }
            path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
            answer = json.loads(await admin.request("POST", path, None, body))
            assert not answer["status"]["allowed"], (account, resource, verb)


async def test_the_validator_makes_its_own_kind_of_pods_only(control_plane: ControlPlane, admin: Client) -> None:
    account = "nvidia-operator-validator"
    config: Path = await account_config(control_plane, admin, NAMESPACE, account, account)
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    async with Client.connect(config) as validator:

        async def said(name: str, **spec: Any) -> str:
            container = {"name": "main", "image": names.IMAGE, **spec.pop("container", {})}
            wanted = {"automountServiceAccountToken": False, "containers": [container], **spec}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": wanted}
            try:
                await validator.request("POST", pods, {"dryRun": "All"}, body)
            except ApiError as error:
                return str(error)
            return ""

        async def refused() -> bool:
            return "no others" in await said("something-else")

        await until(refused, what="the policy is in force, a moment after it was applied", seconds=PATIENCE_S)
        assert await said("nvidia-cuda-validator-a") == ""
        assert "no volumes" in await said(
            "nvidia-cuda-validator-a", volumes=[{"name": "host", "hostPath": {"path": "/"}}]
        )
        assert "no volumes" in await said("nvidia-cuda-validator-a", hostPID=True)
        assert "no volumes" in await said(
            "nvidia-cuda-validator-a", container={"securityContext": {"privileged": True}}
        )
