"""Least rights on a real API server: each component worked under its own account, was refused nothing, and has nothing
that it does not use; and an operand's token is good for its own node only.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.nodefeature import NODE_NAME_LABEL, NodeFeature
from gpuplane.operator.installation import installation, resource_of
from gpuplane.validator.workload import pod_name
from kubekit.kube import ApiError, Client, Forbidden, NotFound
from packages.gpuplane.tests.kubernetes.granted import UNSEEN, excused, granted
from tests.support.realkube.life import PATIENCE_S, Life, account_config, take_away
from tests.support.stolen_tokens import (
    OWN_EVENTS,
    REFUSED_EVENTS,
    REFUSED_PODS,
    REFUSED_RESULTS,
    REFUSED_STATUS,
    REFUSED_WEBHOOKS,
    authority,
    validation_pod,
)
from tests.support.until import until

NAMESPACE = names.OPERATOR_NAMESPACE

SECRETS = {
    "gpuplane-admission": {names.ADMISSION_SECRET},
    "gpuplane-scheduler": {names.EXTENDER_SECRET, names.EXTENDER_CLIENT_SECRET},
}


def test_no_rule_has_a_wildcard_or_secrets_but_certificates() -> None:
    for account, group, resource, verb in granted():
        assert "*" not in (group, resource, verb), account
        assert resource.partition("/")[0] not in ("clusterroles", "roles"), account
        if resource.partition("/")[0] == "secrets":
            assert account in SECRETS and verb in ("get", "patch"), account
    # Certificates of servers are in these Secrets, and the rules name them.
    rules = [
        (manifest["metadata"]["name"], manifest["kind"], rule)
        for manifest in installation()
        if "Role" in manifest["kind"]
        for rule in manifest.get("rules", ())
    ]
    named = {name: (kind, set(rule["resourceNames"])) for name, kind, rule in rules if "secrets" in rule["resources"]}
    assert named == {account: ("Role", secrets) for account, secrets in SECRETS.items()}


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
NOBODY = {"key": "example.com/nobody", "effect": "NoSchedule"}
OURS = "app.kubernetes.io/part-of"


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[Client]:
    """Two nodes, the accounts and the policies, and on the first node a pod of each operand's account."""
    async with Client.connect(control_plane.kubeconfig) as client:
        await clear(client)  # a run that was cut short left its own
        await take_away(control_plane, client)
        for manifest in installation():
            if manifest["kind"] not in ("ClusterPolicy", "Deployment"):
                await client.apply(manifest, "test", resource=resource_of(manifest))
        try:
            for name in (MINE, OTHER):
                # The taint repels pods: a pod on a machine that does not exist would never end.
                node = {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                    "spec": {"taints": [NOBODY]},
                }
                await client.request("POST", "/api/v1/nodes", None, node)
                await client.request("POST", GPUNode.RESOURCE.path(None), None, gpunode(name))
            for account in OPERANDS:
                await client.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", None, pod(account))
            yield client
        finally:
            await clear(client)
            # NB: a real API server has once taken more than 90 s to remove a definition; uninstall waits five minutes.
            await take_away(control_plane, client)


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


async def refusal(client: Client, path: str, patch: dict[str, Any], **parameters: str) -> str:
    """Return the API server's error for a patch; empty if it succeeds."""
    try:
        await client.request("PATCH", path, parameters, patch, content_type="application/merge-patch+json")
    except ApiError as error:
        return str(error)
    return ""


async def creation(client: Client, path: str, body: dict[str, Any]) -> str:
    """Return why the API server would refuse a new object, by a dry run; empty when it would not."""
    try:
        await client.request("POST", path, {"dryRun": "All"}, body)
    except ApiError as error:
        return str(error)
    return ""


async def in_force(refused: Callable[[], Awaitable[str]]) -> None:
    """Return when the policies are, a moment after they were applied: one of them denies the request of `refused`."""

    async def denied() -> bool:
        return "ValidatingAdmissionPolicy" in await refused()

    await until(denied, what="the policies are in force", seconds=PATIENCE_S)


# Changes of each operand: of its Node by labels, of its GPUNode by stages.
OWN_LABEL = {
    "node-feature-discovery": "feature.node.kubernetes.io/cpu-model.id",
    "gpu-feature-discovery": "nvidia.com/gpu.count",
}
OWN_STAGE = {
    "nvidia-driver": "driver",
    "nvidia-container-toolkit": "toolkit",
    "nvidia-operator-validator": "cuda",
    "nvidia-device-plugin": "device-plugin",
}
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "none", "uid": "none"}
REST_OF_A_NODE: tuple[dict[str, Any], ...] = (
    {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
    {"metadata": {"labels": {"node-restriction.kubernetes.io/team": "a"}}},
    {"metadata": {"labels": {names.DEPLOY_PREFIX + "driver": "true"}}},
    {"metadata": {"labels": {"trusted": "yes"}}},
    {"metadata": {"annotations": {"example.com/a": "b"}}},
    {"metadata": {"finalizers": ["example.com/held"]}},
    {"metadata": {"ownerReferences": [OWNER]}},
    {"spec": {"unschedulable": True}},
    {"spec": {"taints": None}},
)


async def test_the_expressions_of_all_policies_are_typed(control_plane: ControlPlane, admin: Client) -> None:
    """The API server would evaluate an expression with a wrong type as well, and refuse each request then."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    async def checked() -> list[dict[str, Any]] | None:
        found = [one for one in json.loads(await admin.request("GET", path))["items"] if OURS in str(one["metadata"])]
        return found if all("typeChecking" in one.get("status", {}) for one in found) else None

    policies = await until(checked, what="the policies are checked", seconds=PATIENCE_S)
    assert len(policies) == sum(one["kind"] == "ValidatingAdmissionPolicy" for one in installation())
    assert [one["status"]["typeChecking"] for one in policies if one["status"]["typeChecking"]] == []


async def test_an_operand_changes_its_part_of_its_own_node_and_gpunode(
    control_plane: ControlPlane, admin: Client
) -> None:
    gpunodes = GPUNode.RESOURCE.path(None)
    for account in OPERANDS:
        bound = await account_config(control_plane, admin, NAMESPACE, account, account)
        loose = await account_config(control_plane, admin, NAMESPACE, account)
        rules = {(resource, verb) for who, _, resource, verb in granted() if who == account}
        label = {"metadata": {"labels": {OWN_LABEL.get(account, "example.com/by"): "1"}}}
        stage = {"status": {"stages": {OWN_STAGE.get(account, "ready"): {"state": "running"}}}}
        async with Client.connect(bound) as own, Client.connect(loose) as unbound:
            if account == OPERANDS[0]:
                await in_force(functools.partial(refusal, own, f"/api/v1/nodes/{OTHER}", label))
            for resource, base, patch in (("nodes", "/api/v1/nodes", label), ("gpunodes", gpunodes, stage)):
                if (resource, "patch") not in rules:
                    assert "cannot patch" in await refusal(own, f"{base}/{MINE}", patch), account
                    continue
                assert await refusal(own, f"{base}/{MINE}", patch) == "", account
                assert "gpuplane-own-node" in await refusal(own, f"{base}/{OTHER}", patch), account
                assert "gpuplane-own-node" in await refusal(unbound, f"{base}/{MINE}", patch), account
            if ("nodes", "patch") in rules:
                for patch in REST_OF_A_NODE:
                    said = await refusal(own, f"/api/v1/nodes/{MINE}", patch)
                    assert "gpuplane-own-labels" in said, (account, patch)
            if ("gpunodes", "patch") in rules:
                for patch in (
                    {"status": {"stages": {"ready": {"state": "done"}}}},
                    {"metadata": {"labels": {"a": "b"}}},
                    {"metadata": {"ownerReferences": [OWNER]}},
                ):
                    said = await refusal(own, f"{gpunodes}/{MINE}", patch)
                    assert "gpuplane-own-report" in said, (account, patch)


async def test_discovery_publishes_features_of_its_node_only(control_plane: ControlPlane, admin: Client) -> None:
    account = "node-feature-discovery"
    path = NodeFeature.RESOURCE.path(NAMESPACE)
    async with Client.connect(await account_config(control_plane, admin, NAMESPACE, account, account)) as own:
        await in_force(functools.partial(creation, own, path, feature(MINE, OTHER)))
        assert await creation(own, path, feature(MINE, MINE)) == ""
        for name, about in ((OTHER, OTHER), (MINE, OTHER)):
            assert "gpuplane-own-" in await creation(own, path, feature(name, about)), (name, about)


def feature(name: str, about: str) -> dict[str, Any]:
    resource = NodeFeature.RESOURCE
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": "none"}
    metadata = {"name": name, "labels": {NODE_NAME_LABEL: about}, "ownerReferences": [owner]}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": {}}


async def test_events_are_in_the_name_of_their_component(control_plane: ControlPlane, admin: Client) -> None:
    accounts = {account for account, _, _, _ in granted()}  # the autoscaler is not installed
    for events, passes in ((REFUSED_EVENTS, False), (OWN_EVENTS, True)):
        for account, wanted in events:
            if account not in accounts:
                continue
            on_node = account in OPERANDS
            config = await account_config(control_plane, admin, NAMESPACE, account, account if on_node else "")
            body = json.loads(json.dumps(wanted).replace('"mine"', f'"{MINE}"').replace('"team"', '"default"'))
            path = f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
            async with Client.connect(config) as component:
                if (account, wanted) == REFUSED_EVENTS[0]:
                    await in_force(functools.partial(creation, component, path, body))
                said = await creation(component, path, body)
            refused = "gpuplane-events" in said or "cannot create" in said
            assert (said == "") if passes else refused, (account, body, said)


async def test_discoverys_master_changes_results_of_rules_only(control_plane: ControlPlane, admin: Client) -> None:
    config = await account_config(control_plane, admin, NAMESPACE, "node-feature-discovery-master")
    path, address = f"/api/v1/nodes/{MINE}", {"network.example.com/address": "10.0.0.1"}
    await admin.request(
        "PATCH", path, None, {"metadata": {"annotations": address}}, content_type="application/merge-patch+json"
    )
    async with Client.connect(config) as master:
        await in_force(functools.partial(refusal, master, path, REFUSED_RESULTS["owner"], dryRun="All"))
        for body in RESULTS:
            assert await refusal(master, path, body, dryRun="All") == "", body
        # Kubernetes taints a node whose kubelet is silent, at any moment.
        taint = {"key": "vendor.example.com/t", "effect": "NoSchedule"}
        assert await patch_json(master, path, [{"op": "add", "path": "/spec/taints/-", "value": taint}]) == ""
        for what, body in REFUSED_RESULTS.items():
            assert "gpuplane-discovery-master" in await refusal(master, path, body, dryRun="All"), what
        cards = {"status": {"capacity": {"vendor.example.com/cards": "2"}}}
        assert await refusal(master, f"{path}/status", cards, dryRun="All") == ""
        for what, body in REFUSED_STATUS.items():
            assert "gpuplane-discovery-master" in await refusal(master, f"{path}/status", body, dryRun="All"), what


RESULTS: tuple[dict[str, Any], ...] = (
    {"metadata": {"labels": {"feature.node.kubernetes.io/a": "1", "vendor.example.com/b": "2"}}},
    {"metadata": {"annotations": {"vendor.example.com/note": "m"}}},
)


async def test_the_webhook_changes_its_authority_only(control_plane: ControlPlane, admin: Client) -> None:
    """Its account would otherwise see and change every object that is written to the cluster."""
    config = await account_config(control_plane, admin, NAMESPACE, names.ADMISSION_NAME)
    async with Client.connect(config) as webhook:
        for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            path = f"/apis/admissionregistration.k8s.io/v1/{plural}/{names.ADMISSION_NAME}"
            patched = functools.partial(patch_json, webhook, path)
            await in_force(functools.partial(patched, REFUSED_WEBHOOKS["rule"]))
            assert await patched(authority("Y2E=")) == ""
            for what, patch in REFUSED_WEBHOOKS.items():
                assert "gpuplane-own-webhooks" in await patched(patch), what


async def patch_json(client: Client, path: str, patch: list[dict[str, Any]]) -> str:
    """Return why the API server would refuse a JSON patch, by a dry run; empty when it would not."""
    try:
        await client.request("PATCH", path, {"dryRun": "All"}, patch, content_type="application/json-patch+json")
    except ApiError as error:
        return str(error)
    return ""


async def test_policies_have_the_budget_for_the_largest_nodes(control_plane: ControlPlane, admin: Client) -> None:
    """CEL expressions that cost too much end in a refusal. The cost grows with the square of the annotations that rules
    have made: 1,000 are too many.
    """
    path = f"/api/v1/nodes/{MINE}"
    labels = {f"vendor.example.com/label-{number}": "v" * 63 for number in range(1000)}
    notes = {f"vendor.example.com/note-{number}": "n" * 100 for number in range(500)}
    book = {"gpuplane.nfd.node.kubernetes.io/feature-annotations": ",".join(notes)}
    worker = "node-feature-discovery"
    config = await account_config(control_plane, admin, NAMESPACE, worker, worker)
    async with Client.connect(config) as discovery:
        assert await refusal(discovery, path, {"metadata": {"labels": labels}}, dryRun="All") == ""
    config = await account_config(control_plane, admin, NAMESPACE, "node-feature-discovery-master")
    async with Client.connect(config) as master:
        body = {"metadata": {"labels": labels, "annotations": notes | book}}
        assert await refusal(master, path, body, dryRun="All") == ""
        assert await refusal(master, path, body) == ""
        gone = {"metadata": {"labels": dict.fromkeys(labels), "annotations": dict.fromkeys(notes | book)}}
        assert await refusal(master, path, gone) == ""


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


async def test_the_validator_makes_the_validation_pod_of_its_node_only(
    control_plane: ControlPlane, admin: Client
) -> None:
    account = "nvidia-operator-validator"
    config: Path = await account_config(control_plane, admin, NAMESPACE, account, account)
    loose = await account_config(control_plane, admin, NAMESPACE, account)
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    async with Client.connect(config) as validator, Client.connect(loose) as unbound:
        await in_force(functools.partial(creation, validator, pods, on_mine(REFUSED_PODS["privileged"])))
        assert await creation(validator, pods, on_mine(validation_pod())) == ""
        assert "gpuplane-validation-pods" in await creation(unbound, pods, on_mine(validation_pod()))
        answers = {what: await creation(validator, pods, on_mine(body)) for what, body in REFUSED_PODS.items()}
        others = {what: said for what, said in answers.items() if "gpuplane-validation-pods" not in said}
        # These are refused before the policies are asked: they are invalid, or name what is not there.
        assert others.keys() == {"two nodes", "mount", "proc", "runtime class"} and all(others.values()), others
        for name in ("nvidia-driver", "nvidia-device-plugin"):
            with pytest.raises(Forbidden, match="gpuplane-validation-pods"):
                await validator.request("DELETE", f"{pods}/{name}", {"dryRun": "All"})


def on_mine(body: dict[str, Any]) -> dict[str, Any]:
    """Return a validation pod of the node `mine`, or of `other`, for the nodes that there are."""
    text = json.dumps(body).replace('"mine"', f'"{MINE}"').replace('"other"', f'"{OTHER}"')
    found: dict[str, Any] = json.loads(text)
    for node in ("mine", "other"):
        if found["metadata"]["name"] == pod_name(node):
            found["metadata"]["name"] = pod_name({"mine": MINE, "other": OTHER}[node])
    return found


async def test_a_binding_brings_a_pod_no_annotation_of_others(control_plane: ControlPlane, admin: Client) -> None:
    """Annotations of a Binding become the pod's: `cdi.k8s.io/all` would bring it all GPUs of its node."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/waits"
    waits = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waits"}}
    spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": names.IMAGE}]}
    await admin.request("POST", path.rpartition("/")[0], None, {**waits, "spec": spec})
    try:
        async with Client.connect(await account_config(control_plane, admin, NAMESPACE, "gpuplane-scheduler")) as own:

            async def said(annotation: str) -> str:
                meta = {"name": "waits", "annotations": {annotation: "x"}}
                target = {"kind": "Node", "name": MINE}
                body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
                return await creation(own, f"{path}/binding", body)

            await in_force(functools.partial(said, "cdi.k8s.io/all"))
            for annotation in ("cdi.k8s.io/all", "k8s.v1.cni.cncf.io/networks"):
                assert "gpuplane-scheduler-bindings" in await said(annotation)
            assert await said(names.PREDICATE_NODE_ANNOTATION) == ""
    finally:
        await admin.request("DELETE", path, None, {"gracePeriodSeconds": 0})
