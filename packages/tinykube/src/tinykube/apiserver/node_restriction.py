"""Bounds what kubelets write: the admission plugin NodeRestriction, as far as it depends on the object.

A stolen token of a node must give no more than that node: no pod of its own making reads Secrets or runs under an
account, and no label, taint or resource slice brings pods to it that belong elsewhere. `node_authorizer` looks at the
path of a request, `token_requests` at tokens of service accounts.

Source: plugin/pkg/admission/noderestriction of Kubernetes 1.36.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from tinykube.apiserver.failure import forbidden
from tinykube.apiserver.hooks import AdmissionRequest, Find, Object
from tinykube.apiserver.node_authorizer import node_of, references

MIRROR: Final = "kubernetes.io/config.mirror"  # annotation of a pod that a kubelet made from a file
_RESTRICTED: Final = "node-restriction.kubernetes.io"
_LABELS: Final = frozenset(
    (
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    )
)
_LABEL_NAMESPACES: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
# volume -> what it refers to, in the words of a refusal
_VOLUMES: Final = {
    "csi": "csidrivers (via CSI volumes)",
    "glusterfs": "endpoints (via glusterFS volumes)",
    "persistentVolumeClaim": "persistentvolumeclaims",
    "ephemeral": "persistentvolumeclaims (via ephemeral volumes)",
    "azureFile": "secrets (via azureFile volumes)",
}
_PROJECTIONS: Final = {
    "serviceAccountToken": "serviceaccounts (via projected volumes)",
    "clusterTrustBundle": "clustertrustbundles",
    "podCertificate": "podcertificates",
}
_KUBELET_SIGNERS: Final = ("kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet")


def restrict_node(request: AdmissionRequest, find: Find) -> None:
    """Raise ApiFailure 403 for a write of a kubelet that it may not make. Other users are let through."""
    node = node_of(request.user)
    if node is None:
        return
    why = why_not(node, request, find)
    if why:
        raise forbidden(request.info, request.name, why)


def why_not(node: str, request: AdmissionRequest, find: Find) -> str:
    """Return why the kubelet of a node may not make a write; empty where it may."""
    obj, old = request.obj or {}, request.old or {}
    match request.info.plural, request.subresource, request.operation:
        case "pods", "", "CREATE":
            return _why_no_pod(node, obj, find)
        case "pods", "status", "UPDATE":
            if _at(obj, "metadata", "labels") != _at(old, "metadata", "labels"):
                return f'node "{node}" cannot update labels through pod status'
            if _at(obj, "status", "resourceClaimStatuses") != _at(old, "status", "resourceClaimStatuses"):
                return f'node "{node}" cannot update resource claim statues'
        case "nodes", _, "CREATE" | "UPDATE":
            return _why_no_node(node, request.name, obj, old)
        case "certificatesigningrequests", "", "CREATE":
            return _why_no_certificate(node, obj)
        case "resourceslices", "", "CREATE":
            if _at(obj, "spec", "nodeName") != node:
                return "can only create ResourceSlice with the same NodeName as the requesting node"
        case "resourceslices", "", "DELETE":
            if _at(old, "spec", "nodeName") != node:
                return "can only delete ResourceSlice with the same NodeName as the requesting node"
    return ""


def is_mirror(pod: Object) -> bool:
    """Return whether a pod says that a kubelet made it from a file."""
    return MIRROR in (_at(pod, "metadata", "annotations") or {})


def referenced(pod: Object) -> str:
    """Return a resource that a pod refers to, in the words of a refusal; empty for none."""
    spec: Object = pod.get("spec") or {}
    if spec.get("serviceAccountName"):
        return "serviceaccounts"
    kinds = {kind for kind, name in references(pod) if name}
    if "secret" in kinds:
        return "secrets"
    if "configmap" in kinds:
        return "configmaps"
    if spec.get("resourceClaims"):
        return "resourceclaims"
    for volume in spec.get("volumes") or ():
        for kind, words in _VOLUMES.items():
            if volume.get(kind) is not None:
                return words
        for source in (volume.get("projected") or {}).get("sources") or ():
            for kind, words in _PROJECTIONS.items():
                if source.get(kind) is not None:
                    return words
    return ""


def _why_no_pod(node: str, pod: Object, find: Find) -> str:
    if not is_mirror(pod):
        return f'pod does not have "{MIRROR}" annotation, node "{node}" can only create mirror pods'
    if _at(pod, "spec", "nodeName") != node:
        return f'node "{node}" can only create pods with spec.nodeName set to itself'
    owners = _at(pod, "metadata", "ownerReferences") or ()
    if len(owners) > 1:
        return f'node "{node}" can only create pods with a single owner reference set to itself'
    if not owners or [owners[0].get(one) for one in ("apiVersion", "kind", "name")] != ["v1", "Node", node]:
        return f'node "{node}" can only create pods with an owner reference set to itself'
    if not owners[0].get("controller"):
        return f'node "{node}" can only create pods with a controller owner reference set to itself'
    if owners[0].get("blockOwnerDeletion"):
        return f'node "{node}" must not set blockOwnerDeletion on an owner reference'
    known = _at(find("nodes", "", node) or {}, "metadata", "uid")
    if owners[0].get("uid") != known:
        return f"node {node} UID mismatch: expected {owners[0].get('uid')} got {known or ''}"
    resource = referenced(pod)
    return f'node "{node}" can not create pods that reference {resource}' if resource else ""


def _why_no_node(node: str, name: str, obj: Object, old: Object) -> str:
    if (_at(obj, "metadata", "name") or name) != node:
        return f'node "{node}" is not allowed to modify node "{_at(obj, "metadata", "name") or name}"'
    labels, before = _at(obj, "metadata", "labels") or {}, _at(old, "metadata", "labels") or {}
    wrong = sorted(key for key in labels | before if labels.get(key) != before.get(key) and not _is_own_label(key))
    if not old:
        listed = ", ".join(wrong)
        return f'node "{node}" is not allowed to set the following labels: {listed}' if wrong else ""
    if (_at(obj, "spec", "taints") or []) != (_at(old, "spec", "taints") or []):
        return f'node "{node}" is not allowed to modify taints'
    if (_at(obj, "metadata", "ownerReferences") or []) != (_at(old, "metadata", "ownerReferences") or []):
        return f'node "{node}" is not allowed to modify ownerReferences'
    return f"is not allowed to modify labels: {', '.join(wrong)}" if wrong else ""


def _why_no_certificate(node: str, request: Object) -> str:
    if _at(request, "spec", "signerName") not in _KUBELET_SIGNERS:
        return ""
    try:
        subject = x509.load_pem_x509_csr(base64.b64decode(_at(request, "spec", "request") or "")).subject
    except (ValueError, TypeError) as error:
        return f"unable to parse csr: {error}"
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    # NB: Go takes the last one of several names, so a signer would as well.
    own = f"system:node:{node}"
    return "" if names and names[-1].value == own else f"can only create a node CSR with CN={own}"


def _is_own_label(key: str) -> bool:
    """Return whether a kubelet may set a label of its Node."""
    namespace = key.partition("/")[0] if "/" in key else ""
    if _is_below(namespace, (_RESTRICTED,)):
        return False
    if not _is_below(namespace, ("kubernetes.io", "k8s.io")):
        return True
    return key in _LABELS or _is_below(namespace, _LABEL_NAMESPACES)


def _is_below(namespace: str, domains: tuple[str, ...]) -> bool:
    return any(namespace == domain or namespace.endswith(f".{domain}") for domain in domains)


def _at(obj: Object, *path: str) -> Any:
    found: Any = obj
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found
