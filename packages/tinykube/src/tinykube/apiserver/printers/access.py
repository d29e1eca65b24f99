"""Printers of rights and extensions: roles, bindings, webhooks, admission policies, CRDs, signing requests."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from kubekit.api.durations import age
from tinykube.apiserver.printers.base import (
    NONE,
    Object,
    Printer,
    TableColumn,
    columns,
    created,
    get,
    join,
    name,
)


def _role(obj: Object, now: datetime) -> list[Any]:
    return [name(obj), get(obj, "metadata", "creationTimestamp", default="<unknown>")]


def _binding(obj: Object, now: datetime) -> list[Any]:
    users: list[str] = []
    groups: list[str] = []
    accounts: list[str] = []
    for subject in obj.get("subjects") or []:
        if subject.get("kind") == "ServiceAccount":
            accounts.append(f"{subject.get('namespace') or ''}/{subject.get('name', '')}")
        else:
            (groups if subject.get("kind") == "Group" else users).append(subject.get("name", ""))
    role = get(obj, "roleRef", default={})
    return [
        name(obj),
        f"{role.get('kind', '')}/{role.get('name', '')}",
        created(obj, now),
        ", ".join(users),
        ", ".join(groups),
        ", ".join(accounts),
    ]


def _webhooks(obj: Object, now: datetime) -> list[Any]:
    return [name(obj), len(obj.get("webhooks") or []), created(obj, now)]


def _policy(obj: Object, now: datetime) -> list[Any]:
    kind = get(obj, "spec", "paramKind", default={})
    return [
        name(obj),
        len(get(obj, "spec", "validations", default=[])),
        f"{kind['apiVersion']}/{kind['kind']}" if kind else "<unset>",
        created(obj, now),
    ]


def _policy_binding(obj: Object, now: datetime) -> list[Any]:
    ref = get(obj, "spec", "paramRef", default={})
    param = f"{ref.get('namespace', '*')}/{ref.get('name', '*')}" if ref else "<unset>"
    return [name(obj), get(obj, "spec", "policyName", default=""), param, created(obj, now)]


def _crd(obj: Object, now: datetime) -> list[Any]:
    return [name(obj), get(obj, "metadata", "creationTimestamp", default="<unknown>")]


def _signing_request(obj: Object, now: datetime) -> list[Any]:
    spec = get(obj, "spec", default={})
    kinds = [c.get("type") for c in get(obj, "status", "conditions", default=[])]
    condition = "Denied" if "Denied" in kinds else "Approved" if "Approved" in kinds else "Pending"
    if "Failed" in kinds:
        condition += ",Failed"
    if get(obj, "status", "certificate"):
        condition += ",Issued"
    seconds = spec.get("expirationSeconds")
    return [
        name(obj),
        created(obj, now),
        spec.get("signerName") or NONE,
        spec.get("username", ""),
        f"{seconds}s" if seconds else NONE,
        condition,
    ]


def _api_service(obj: Object, now: datetime) -> list[Any]:
    service = get(obj, "spec", "service")
    local = "Local" if not service else f"{service.get('namespace')}/{service.get('name')}"
    available: Object = next(
        (c for c in get(obj, "status", "conditions", default=[]) if c.get("type") == "Available"), {}
    )
    return [name(obj), local, available.get("status", "Unknown"), created(obj, now)]


def _autoscaler(obj: Object, now: datetime) -> list[Any]:
    spec, target = get(obj, "spec", default={}), get(obj, "spec", "scaleTargetRef", default={})
    return [
        name(obj),
        f"{target.get('kind', '')}/{target.get('name', '')}",
        join([str(m.get("type", "")) for m in spec.get("metrics") or []]),
        str(spec.get("minReplicas", "<unset>")),
        spec.get("maxReplicas", 0),
        get(obj, "status", "currentReplicas", default=0),
        created(obj, now),
    ]


def _default(obj: Object, now: datetime) -> list[Any]:
    return [name(obj), age(get(obj, "metadata", "creationTimestamp"), now)]


_CREATED = (TableColumn("Name", format="name"), TableColumn("Created At", type="date"))
_BINDING = columns("Name Role Age wide:Users wide:Groups wide:ServiceAccounts")
_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"

#: Kinds without columns of their own.
DEFAULT = Printer(columns("Name Age"), _default)

PRINTERS: dict[tuple[str, str], Printer] = {
    (_RBAC, "roles"): Printer(_CREATED, _role),
    (_RBAC, "clusterroles"): Printer(_CREATED, _role),
    (_RBAC, "rolebindings"): Printer(_BINDING, _binding),
    (_RBAC, "clusterrolebindings"): Printer(_BINDING, _binding),
    (_ADMISSION, "mutatingwebhookconfigurations"): Printer(columns("Name Webhooks# Age"), _webhooks),
    (_ADMISSION, "validatingwebhookconfigurations"): Printer(columns("Name Webhooks# Age"), _webhooks),
    (_ADMISSION, "validatingadmissionpolicies"): Printer(columns("Name Validations# ParamKind Age"), _policy),
    (_ADMISSION, "validatingadmissionpolicybindings"): Printer(
        columns("Name PolicyName ParamRef Age"), _policy_binding
    ),
    ("apiextensions.k8s.io", "customresourcedefinitions"): Printer(_CREATED, _crd),
    ("apiregistration.k8s.io", "apiservices"): Printer(columns("Name Service Available Age"), _api_service),
    ("certificates.k8s.io", "certificatesigningrequests"): Printer(
        columns("Name Age SignerName Requestor RequestedDuration Condition"), _signing_request
    ),
    ("autoscaling", "horizontalpodautoscalers"): Printer(
        columns("Name Reference Targets MinPods MaxPods Replicas Age"), _autoscaler
    ),
}
