"""Authorizes kubelets: the Node authorizer of kube-apiserver, with the parts of NodeRestriction that depend on a
request's path.

A kubelet reads what the pods of its node refer to, and writes its own Node, its lease and the status of its pods. It
may not read or write a custom resource: a component on a node has a service account of its own for that.

Source: plugin/pkg/auth/authorizer/node and NodeRules of Kubernetes 1.34, with AuthorizeNodeWithSelectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from tinykube.apiserver.hooks import Attributes, Find, Object, User

LEASE_NAMESPACE: Final = "kube-node-lease"
_NODES: Final = "system:nodes"
_NODE_PREFIX: Final = "system:node:"

_READ: Final = frozenset(("get", "list", "watch"))
_WRITE: Final = frozenset(("update", "patch"))
_CREATE: Final = frozenset(("create",))

# (group, resource, subresource) -> verbs, for every object of the resource.
_ALWAYS: Final[Mapping[tuple[str, str, str], frozenset[str]]] = {
    ("", "services", ""): _READ,
    ("discovery.k8s.io", "endpointslices", ""): _READ,  # NB: for names of pods, which DNS has on a real cluster
    ("", "events", ""): _CREATE | _WRITE,
    ("events.k8s.io", "events", ""): _CREATE | _WRITE,
    ("", "nodes", ""): _CREATE,
    ("", "pods", ""): _CREATE,
    ("node.k8s.io", "runtimeclasses", ""): _READ,
    ("storage.k8s.io", "csidrivers", ""): _READ,
    ("storage.k8s.io", "csinodes", ""): _CREATE,
    ("certificates.k8s.io", "certificatesigningrequests", ""): _READ | _CREATE,
    ("resource.k8s.io", "resourceslices", ""): _CREATE,
    ("authentication.k8s.io", "tokenreviews", ""): _CREATE,
    ("authorization.k8s.io", "subjectaccessreviews", ""): _CREATE,
    ("authorization.k8s.io", "localsubjectaccessreviews", ""): _CREATE,
}
# For the objects that bear the node's name.
_OWN: Final[Mapping[tuple[str, str, str], frozenset[str]]] = {
    ("", "nodes", ""): _READ | _WRITE,
    ("", "nodes", "status"): _WRITE,
    ("storage.k8s.io", "csinodes", ""): _WRITE | {"get", "delete"},
}
# For the pods of the node.
_PODS: Final[Mapping[str, frozenset[str]]] = {
    "": frozenset(("get", "delete")),
    "status": _WRITE,
    "eviction": _CREATE,
}

PodsOf = Callable[[str], Iterable[Object]]  # node -> its pods


def node_of(user: User) -> str | None:
    """Return the node of a kubelet, None for other users."""
    is_node = _NODES in user.groups and user.name.startswith(_NODE_PREFIX)
    return user.name.removeprefix(_NODE_PREFIX) if is_node else None


def node_may(node: str, wanted: Attributes, pods_of: PodsOf, find: Find) -> bool:
    """Return whether the kubelet of `node` may do this."""
    what = (wanted.group, wanted.resource, wanted.subresource)
    if wanted.verb in _ALWAYS.get(what, ()):
        return True
    if wanted.name == node and wanted.verb in _OWN.get(what, ()):
        return True
    if what == ("coordination.k8s.io", "leases", ""):
        own = wanted.namespace == LEASE_NAMESPACE and wanted.name in (node, "")
        return own and (wanted.verb == "create" or (wanted.name == node and wanted.verb in _WRITE | {"get", "delete"}))
    if what == ("resource.k8s.io", "resourceslices", ""):
        return _may_use_slices(node, wanted, find)
    if what[:2] == ("", "pods"):
        if wanted.verb in ("list", "watch"):
            return wanted.selected_node == node
        pod = find("pods", wanted.namespace, wanted.name)
        on_it = pod is not None and (pod.get("spec") or {}).get("nodeName") == node
        return on_it and wanted.verb in _PODS.get(wanted.subresource, ())
    return _may_follow(wanted, what, pods_of(node), find)


def _may_use_slices(node: str, wanted: Attributes, find: Find) -> bool:
    """Return whether resource slices are of the node: those that are selected, or the one that is named."""
    if wanted.verb in ("list", "watch", "deletecollection"):
        return wanted.selected_node == node
    found = find("resourceslices", "", wanted.name)
    mine = found is None or (found.get("spec") or {}).get("nodeName") == node
    return mine and wanted.verb in _WRITE | {"get", "delete"}


def _may_follow(wanted: Attributes, what: tuple[str, str, str], pods: Iterable[Object], find: Find) -> bool:
    """Return whether a pod of the node refers to the object."""
    match what:
        case ("", "secrets" | "configmaps" as plural, ""):
            verbs, singular = _READ, plural.removesuffix("s")
        case ("", "persistentvolumeclaims" | "persistentvolumes", ""):
            verbs, singular = frozenset(("get",)), "claim"
        case ("", "serviceaccounts", "token") | ("", "serviceaccounts", ""):
            verbs, singular = _CREATE if wanted.subresource else frozenset(("get",)), "account"
        case ("resource.k8s.io", "resourceclaims", ""):
            verbs, singular = frozenset(("get",)), "resourceclaim"
        case _:
            return False
    if wanted.verb not in verbs or not wanted.name:
        return False
    for pod in pods:
        namespace = pod["metadata"].get("namespace", "")
        if wanted.resource == "persistentvolumes":
            claims = (find("persistentvolumeclaims", namespace, name) for _, name in _references(pod, "claim"))
            if any(claim and (claim.get("spec") or {}).get("volumeName") == wanted.name for claim in claims):
                return True
        elif namespace == wanted.namespace and (singular, wanted.name) in _references(pod, singular):
            return True
    return False


def _references(pod: Object, kind: str) -> frozenset[tuple[str, str]]:
    return frozenset((found, name) for found, name in references(pod) if found == kind and name)


def references(pod: Object) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of what a pod refers to in its namespace; a name may be empty."""
    spec: Mapping[str, Any] = pod.get("spec") or {}
    yield "account", spec.get("serviceAccountName") or "default"
    for secret in spec.get("imagePullSecrets") or ():
        yield "secret", secret.get("name", "")
    for claim in spec.get("resourceClaims") or ():
        yield "resourceclaim", claim.get("resourceClaimName", "")
    for status in (pod.get("status") or {}).get("resourceClaimStatuses") or ():
        yield "resourceclaim", status.get("resourceClaimName", "")
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for source in container.get("envFrom") or ():
            yield "configmap", (source.get("configMapRef") or {}).get("name", "")
            yield "secret", (source.get("secretRef") or {}).get("name", "")
        for variable in container.get("env") or ():
            value = variable.get("valueFrom") or {}
            yield "configmap", (value.get("configMapKeyRef") or {}).get("name", "")
            yield "secret", (value.get("secretKeyRef") or {}).get("name", "")
    for volume in spec.get("volumes") or ():
        yield "claim", (volume.get("persistentVolumeClaim") or {}).get("claimName", "")
        for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
            yield "configmap", (source.get("configMap") or {}).get("name", "")
            secret = source.get("secret") or {}
            yield "secret", secret.get("secretName") or secret.get("name", "")
