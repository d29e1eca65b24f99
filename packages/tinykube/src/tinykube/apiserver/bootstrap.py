"""The roles and bindings that every Kubernetes cluster has, as data; written at start where they are missing."""

from __future__ import annotations

from typing import Any, Final

Object = dict[str, Any]

_GROUP: Final = "rbac.authorization.k8s.io"
_AGGREGATE: Final = "rbac.authorization.k8s.io/aggregate-to-"
_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "delete", "deletecollection", "patch", "update")
_ALL: Final = ("*",)


def _rule(groups: str, resources: str, verbs: tuple[str, ...]) -> Object:
    """Groups and resources are words; `core` is the group without a name."""
    named = ["" if group == "core" else group for group in groups.split()]
    return {"apiGroups": named, "resources": resources.split(), "verbs": list(verbs)}


def _urls(urls: str, *verbs: str) -> Object:
    return {"nonResourceURLs": urls.split(), "verbs": list(verbs)}


_VIEW: Final = [
    _rule(
        "core",
        "configmaps endpoints events limitranges namespaces namespaces/status persistentvolumeclaims "
        "persistentvolumeclaims/status pods pods/log pods/status replicationcontrollers replicationcontrollers/scale "
        "replicationcontrollers/status resourcequotas resourcequotas/status serviceaccounts services services/status "
        "bindings",
        _READ,
    ),
    _rule("apps", "*", _READ),
    _rule("batch autoscaling policy discovery.k8s.io events.k8s.io", "*", _READ),
    _rule("networking.k8s.io", "ingresses ingresses/status networkpolicies", _READ),
    _rule("resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates", _READ),
]
_EDIT: Final = [
    _rule("core", "secrets pods/attach pods/exec pods/portforward pods/proxy services/proxy", _READ),
    _rule("core", "serviceaccounts", ("impersonate",)),
    _rule(
        "core",
        "configmaps events persistentvolumeclaims pods pods/attach pods/exec pods/portforward pods/proxy "
        "replicationcontrollers replicationcontrollers/scale secrets serviceaccounts services services/proxy",
        _WRITE,
    ),
    _rule("core", "pods/eviction serviceaccounts/token", ("create",)),
    _rule(
        "apps",
        "daemonsets deployments deployments/scale replicasets replicasets/scale statefulsets statefulsets/scale",
        _WRITE,
    ),
    # NB: each by its name: states are written by controllers alone.
    _rule("batch", "cronjobs jobs", _WRITE),
    _rule("autoscaling", "horizontalpodautoscalers", _WRITE),
    _rule("policy", "poddisruptionbudgets", _WRITE),
    _rule("networking.k8s.io", "ingresses networkpolicies", _WRITE),
    _rule("events.k8s.io", "events", _WRITE),
    _rule("coordination.k8s.io", "leases", (*_READ, *_WRITE)),
    _rule("resource.k8s.io", "resourceclaims resourceclaimtemplates", _WRITE),
]
_ADMIN: Final = [
    _rule("authorization.k8s.io", "localsubjectaccessreviews", ("create",)),
    _rule(_GROUP, "roles rolebindings", (*_READ, *_WRITE)),
]

_ROLES: Final[dict[str, list[Object]]] = {
    "cluster-admin": [_rule("*", "*", _ALL), _urls("*", "*")],
    "system:aggregate-to-admin": _ADMIN,
    "system:aggregate-to-edit": _EDIT,
    "system:aggregate-to-view": _VIEW,
    "system:discovery": [
        _urls("/api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* /readyz /version /version/", "get")
    ],
    "system:public-info-viewer": [_urls("/healthz /livez /readyz /version /version/", "get")],
    "system:basic-user": [
        _rule("authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews", ("create",)),
        _rule("authentication.k8s.io", "selfsubjectreviews", ("create",)),
    ],
    "system:monitoring": [_urls("/healthz /healthz/* /livez /livez/* /metrics /readyz /readyz/*", "get")],
    "system:service-account-issuer-discovery": [
        _urls(
            "/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/",
            "get",
        )
    ],
    "system:auth-delegator": [
        _rule("authentication.k8s.io", "tokenreviews", ("create",)),
        _rule("authorization.k8s.io", "subjectaccessreviews", ("create",)),
    ],
    "system:kube-scheduler": [
        _rule("core", "pods nodes namespaces services persistentvolumes persistentvolumeclaims", _READ),
        _rule("apps", "replicasets statefulsets", _READ),
        _rule("core", "pods/binding bindings", ("create",)),
        _rule("core", "pods/status", ("patch", "update")),
        _rule("core", "pods", ("delete",)),
        _rule("core events.k8s.io", "events", ("create", "patch", "update")),
        _rule("coordination.k8s.io", "leases", (*_READ, "create", "update")),
        _rule("policy storage.k8s.io resource.k8s.io", "*", _READ),
    ],
    "system:kube-controller-manager": [_rule("*", "*", _ALL)],
    "system:node": [_rule("core", "nodes pods", _READ)],
    "system:node-proxier": [_rule("core discovery.k8s.io", "services endpoints endpointslices nodes", _READ)],
}
# role -> (whose rules it has, the role that has its own)
_AGGREGATED: Final = {
    "admin": (("view", "edit", "admin"), ""),
    "edit": (("view", "edit"), "admin"),
    "view": (("view",), "edit"),
}
_BINDINGS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "cluster-admin": (("Group", "system:masters"),),
    "system:discovery": (("Group", "system:authenticated"),),
    "system:basic-user": (("Group", "system:authenticated"),),
    "system:public-info-viewer": (("Group", "system:authenticated"), ("Group", "system:unauthenticated")),
    "system:monitoring": (("Group", "system:monitoring"),),
    "system:service-account-issuer-discovery": (("Group", "system:serviceaccounts"),),
    "system:kube-scheduler": (("User", "system:kube-scheduler"),),
    "system:kube-controller-manager": (("User", "system:kube-controller-manager"),),
    "system:node-proxier": (("User", "system:kube-proxy"),),
}


def _object(kind: str, name: str, labels: dict[str, str], body: Object) -> Object:
    labels = {"kubernetes.io/bootstrapping": "rbac-defaults", **labels}
    return {"apiVersion": f"{_GROUP}/v1", "kind": kind, "metadata": {"name": name, "labels": labels}, **body}


def cluster_roles() -> list[Object]:
    made = []
    for name, rules in _ROLES.items():
        prefix = "system:aggregate-to-"
        labels = {}
        if name.startswith(prefix):
            labels = {_AGGREGATE + name.removeprefix(prefix): "true"}
        made.append(_object("ClusterRole", name, labels, {"rules": rules}))
    for name, (parts, parent) in _AGGREGATED.items():
        # The controller of aggregated roles writes the same, and what later roles add.
        rules = [rule for part in parts for rule in _ROLES[f"system:aggregate-to-{part}"]]
        selectors = [{"matchLabels": {_AGGREGATE + name: "true"}}]
        labels = {_AGGREGATE + parent: "true"} if parent else {}
        body = {"aggregationRule": {"clusterRoleSelectors": selectors}, "rules": rules}
        made.append(_object("ClusterRole", name, labels, body))
    return made


def cluster_role_bindings() -> list[Object]:
    return [
        _object(
            "ClusterRoleBinding",
            name,
            {},
            {
                "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": _GROUP, "kind": kind, "name": who} for kind, who in subjects],
            },
        )
        for name, subjects in _BINDINGS.items()
    ]
