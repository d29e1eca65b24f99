"""Decides who may give devices to ResourceClaims: administrative access, allocations, and the status of devices.

Administrative access is for namespaces with a label. An allocation is for who may write `resourceclaims/binding`, the
status of devices for who may write `resourceclaims/driver` of their driver, on this node or on any.

Source: pkg/registry/resource/utils.go of Kubernetes 1.36 (DRAAdminAccess, DRAResourceClaimGranularStatusAuthorization).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tinykube.apiserver.account_tokens import NODE_NAME
from tinykube.apiserver.failure import Cause, forbidden_value, invalid
from tinykube.apiserver.hooks import AdmissionRequest, Attributes, Object, User
from tinykube.apiserver.rbac import MASTERS, RBAC

GROUP: Final = "resource.k8s.io"
CLAIMS: Final = "resourceclaims"
TEMPLATES: Final = "resourceclaimtemplates"
ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
_REFUSED: Final = f"admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"
_REQUESTS: Final = "spec.devices.requests"
_RESULTS: Final = "status.allocation.devices.results"


def admin_refusals(obj: Object, old: Object | None, labels: Object) -> Sequence[Cause]:
    """Find administrative access that a claim or a template asks for, or gets, in a namespace without the label.

    `labels` are those of the namespace. A spec is looked at when it is created, since it never changes.
    """
    if labels.get(ADMIN_LABEL) == "true":
        return ()
    if old is None:
        spec = obj.get("spec") or {}
        if obj.get("kind") == "ResourceClaimTemplate":
            spec = spec.get("spec") or {}  # NB: the path of the finding is that of a claim
        requests = (spec.get("devices") or {}).get("requests") or ()
        at = _first_of_admins([one.get("exactly") or {} for one in requests])
        return () if at is None else (forbidden_value(f"{_REQUESTS}[{at}].adminAccess", _REFUSED),)
    at = _first_of_admins(_results(obj))
    if at is None or _first_of_admins(_results(old)) is not None:
        return ()
    return (forbidden_value(f"{_RESULTS}[{at}].adminAccess", _REFUSED),)


def _first_of_admins(items: Sequence[Object]) -> int | None:
    return next((at for at, item in enumerate(items) if item.get("adminAccess")), None)


def _allocation(claim: Object) -> Object:
    return (claim.get("status") or {}).get("allocation") or {}


def _results(claim: Object) -> Sequence[Object]:
    return (_allocation(claim).get("devices") or {}).get("results") or ()


def check_status(request: AdmissionRequest, rbac: RBAC) -> None:
    """Raises ApiFailure 422 for a status of a claim that its writer may not write."""
    if request.obj is None or request.old is None or MASTERS in request.user.groups:
        return
    causes = tuple(_status_refusals(request, request.obj, request.old, rbac))
    if causes:
        raise invalid(request.info, request.name, causes)


def _status_refusals(request: AdmissionRequest, obj: Object, old: Object, rbac: RBAC) -> Iterator[Cause]:
    user, verb = request.user, "patch" if request.patched else "update"
    status, before = obj.get("status") or {}, old.get("status") or {}
    if any((status.get(field) or None) != (before.get(field) or None) for field in ("allocation", "reservedFor")):
        why = rbac.authorize(user, Attributes(verb, GROUP, "v1", CLAIMS, "binding"))
        if why is not None:
            what = 'changing status.allocation or status.reservedFor requires resource="resourceclaims/binding"'
            yield forbidden_value("status.allocation", f'{what}, verb="{verb}" permission: {why}')
    if not status.get("allocation"):
        return
    verbs = [f"arbitrary-node:{verb}"]
    if _runs_on(user, status["allocation"]):
        verbs.insert(0, f"associated-node:{verb}")
    for driver in sorted(_changed_drivers(status, before)):
        asked = [Attributes(one, GROUP, "v1", CLAIMS, "driver", request.namespace, driver) for one in verbs]
        refusals = [rbac.authorize(user, attributes) for attributes in asked]
        if all(refusals):
            what = f'changing status.devices requires resource="resourceclaims/driver", verb="[{" ".join(verbs)}]"'
            yield forbidden_value("status.devices", f"{what} permission: {refusals[0]}")


def _runs_on(user: User, allocation: Object) -> bool:
    """Return whether a user is a service account in a pod of the one node that an allocation is for."""
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    if len(terms) != 1 or terms[0].get("matchExpressions") or len(terms[0].get("matchFields") or ()) != 1:
        return False
    field = terms[0]["matchFields"][0]
    nodes = tuple(field.get("values") or ()) if field.get("key") == "metadata.name" else ()
    is_account = user.name.startswith("system:serviceaccount:")
    return is_account and field.get("operator") == "In" and len(nodes) == 1 and user.extra.get(NODE_NAME) == nodes


def _changed_drivers(status: Object, before: Object) -> set[str]:
    """Return the drivers whose devices were added to the status, changed or removed."""
    new, old = _by_device(status), _by_device(before)
    return {key[0] for key in new.keys() | old.keys() if new.get(key) != old.get(key)}


def _by_device(status: Object) -> dict[tuple[str, ...], Object]:
    names = ("driver", "pool", "device", "shareID")
    return {tuple(one.get(name) or "" for name in names): one for one in status.get("devices") or ()}
