"""A stolen token of a node: the requests of NodeRestriction's plugin, with its words."""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from packages.tinykube.tests.apiserver_extensions.test_access import may
from tinykube.apiserver import ApiFailure
from tinykube.apiserver.identity import ADMIN, node_user

KUBELET = node_user("n1")
MIRROR = {"kubernetes.io/config.mirror": "digest"}


@pytest.fixture
async def node(cluster: Any) -> Any:
    await cluster.create("nodes", {"metadata": {"name": "n2"}})
    return await cluster.create("nodes", {"metadata": {"name": "n1"}})


def mirror(node: Any, **spec: Any) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node["metadata"]["uid"], "controller": True}
    return {
        "metadata": {"name": "static", "annotations": dict(MIRROR), "ownerReferences": [owner]},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}], **spec},
    }


async def refused(cluster: Any, plural: str, obj: dict[str, Any], user: Any = KUBELET) -> str:
    with pytest.raises(ApiFailure) as caught:
        await cluster.create(plural, obj, user=user)
    assert caught.value.status == 403
    return caught.value.message.partition("is forbidden: ")[2]


async def test_a_kubelet_makes_no_pods_but_those_of_its_files(cluster, node):
    await cluster.create("serviceaccounts", {"metadata": {"name": "admin"}})
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}}
    only = 'pod does not have "kubernetes.io/config.mirror" annotation, node "n1" can only create mirror pods'
    assert await refused(cluster, "pods", pod) == only
    for change, why in (
        ({"nodeName": "n2"}, 'node "n1" can only create pods with spec.nodeName set to itself'),
        ({"serviceAccountName": "admin"}, 'node "n1" can not create pods that reference serviceaccounts'),
        (
            {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]},
            'node "n1" can not create pods that reference secrets',
        ),
        (
            {"containers": [{"name": "c", "image": "i", "envFrom": [{"configMapRef": {"name": "m"}}]}]},
            'node "n1" can not create pods that reference configmaps',
        ),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]},
            'node "n1" can not create pods that reference serviceaccounts (via projected volumes)',
        ),
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            'node "n1" can not create pods that reference persistentvolumeclaims',
        ),
    ):
        assert await refused(cluster, "pods", mirror(node, **change)) == why
    strange = mirror(node)
    strange["metadata"]["ownerReferences"][0]["uid"] = "other"
    assert "UID mismatch" in await refused(cluster, "pods", strange)
    made = await cluster.create(
        "pods", mirror(node, volumes=[{"name": "v", "hostPath": {"path": "/etc"}}]), user=KUBELET
    )
    assert "serviceAccountName" not in made["spec"] and [one["name"] for one in made["spec"]["volumes"]] == ["v"]


async def test_no_user_gives_a_pod_of_a_file_an_account(cluster, node):
    await cluster.create("serviceaccounts", {"metadata": {"name": "admin"}})
    with_account = mirror(node, serviceAccountName="admin")
    assert await refused(cluster, "pods", with_account, ADMIN) == "a mirror pod may not reference service accounts"


async def changed(cluster: Any, plural: str, name: str, change: Any, subresource: str = "", **more: Any) -> None:
    """Write an object as the kubelet does, after a change."""
    namespace = more.get("namespace")
    obj = copy.deepcopy(cluster.registry.get(plural, namespace, name))
    change(obj)
    await cluster.registry.update(plural, namespace, name, obj, subresource=subresource, user=KUBELET)


@pytest.mark.parametrize(
    "key", ["node-restriction.kubernetes.io/team", "node-role.kubernetes.io/master", "x.k8s.io/y", "kubernetes.io/z"]
)
async def test_a_kubelet_sets_no_label_that_brings_pods_to_it(cluster, node, key: str):
    with pytest.raises(ApiFailure, match=f"is not allowed to modify labels: {key}"):
        await changed(cluster, "nodes", "n1", lambda obj: obj["metadata"].setdefault("labels", {}).update({key: "a"}))
    body = {"metadata": {"name": "n1", "labels": {key: "a"}}}
    await cluster.registry.delete("nodes", None, "n1")
    why = f'node "n1" is not allowed to set the following labels: {key}'
    assert await refused(cluster, "nodes", body) == why


async def test_a_kubelet_sets_its_own_labels_and_no_taints(cluster, node):
    own = {"kubernetes.io/hostname": "n1", "node.kubernetes.io/instance-type": "t", "team": "a", "nvidia.com/gpu": "x"}
    await changed(cluster, "nodes", "n1", lambda obj: obj["metadata"].update(labels=own))
    assert cluster.registry.get("nodes", None, "n1")["metadata"]["labels"] == own
    with pytest.raises(ApiFailure, match='node "n1" is not allowed to modify taints'):
        await changed(
            cluster, "nodes", "n1", lambda obj: obj["spec"].update(taints=[{"key": "a", "effect": "NoSchedule"}])
        )
    with pytest.raises(ApiFailure, match='node "n1" is not allowed to modify node "n2"'):
        await changed(cluster, "nodes", "n2", lambda obj: None)
    assert (await refused(cluster, "nodes", {"metadata": {"name": "n3"}})).endswith('not allowed to modify node "n3"')


async def test_a_kubelet_changes_no_label_of_a_pod_by_its_status(cluster, node):
    await cluster.pod("p", nodeName="n1")
    with pytest.raises(ApiFailure, match='node "n1" cannot update labels through pod status'):
        await changed(
            cluster, "pods", "p", lambda obj: obj["metadata"].update(labels={"a": "b"}), "status", namespace="default"
        )
    await changed(
        cluster, "pods", "p", lambda obj: obj["status"].update(phase="Running"), "status", namespace="default"
    )


async def test_a_kubelet_writes_resource_slices_of_its_node_alone(cluster, node):
    def resource_slice(name: str, **place: Any) -> dict[str, Any]:
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        return {"metadata": {"name": name}, "spec": {"driver": "gpu.nvidia.com", "pool": pool, "devices": [], **place}}

    why = "can only create ResourceSlice with the same NodeName as the requesting node"
    assert await refused(cluster, "resourceslices", resource_slice("a", nodeName="n2")) == why
    assert await refused(cluster, "resourceslices", resource_slice("a", allNodes=True)) == why
    await cluster.create("resourceslices", resource_slice("own", nodeName="n1"), user=KUBELET)
    await cluster.create("resourceslices", resource_slice("other", nodeName="n2"))
    group = "resource.k8s.io"
    for verb in ("get", "update", "patch", "delete"):
        assert may(cluster, KUBELET, verb, "resourceslices", name="own", group=group)
        assert not may(cluster, KUBELET, verb, "resourceslices", name="other", group=group)
    for verb in ("list", "watch", "deletecollection"):
        assert may(cluster, KUBELET, verb, "resourceslices", group=group, selected_node="n1")
        assert not may(cluster, KUBELET, verb, "resourceslices", group=group)
    with pytest.raises(ApiFailure, match="can only delete ResourceSlice with the same NodeName"):
        await cluster.registry.delete("resourceslices", None, "other", user=KUBELET)


def signing_request(signer: str, *names: str) -> dict[str, Any]:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    signed = x509.CertificateSigningRequestBuilder().subject_name(subject)
    pem = signed.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    spec = {"signerName": signer, "usages": ["client auth"], "request": base64.b64encode(pem).decode()}
    return {"metadata": {"generateName": "csr-"}, "spec": spec}


@pytest.mark.parametrize("signer", ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"])
async def test_a_kubelet_asks_for_certificates_of_its_own_name(cluster, node, signer: str):
    why = "can only create a node CSR with CN=system:node:n1"
    for names in ((), ("system:node:n2",), ("system:node:n1", "system:node:n2"), ("admin",)):
        assert await refused(cluster, "certificatesigningrequests", signing_request(signer, *names)) == why
    broken = signing_request(signer, "system:node:n1")
    broken["spec"]["request"] = base64.b64encode(b"nothing").decode()
    assert (await refused(cluster, "certificatesigningrequests", broken)).startswith("unable to parse csr: ")
    for user, name in ((KUBELET, "system:node:n1"), (ADMIN, "system:node:n2")):
        await cluster.create("certificatesigningrequests", signing_request(signer, name), user=user)
    other = signing_request("example.com/own", "any")
    await cluster.create("certificatesigningrequests", other, user=KUBELET)
