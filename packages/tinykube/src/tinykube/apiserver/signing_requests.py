"""CertificateSigningRequests: whose request it is, who may approve and sign it, and what never changes.

The admission plugins CertificateApproval, CertificateSigning and CertificateSubjectRestriction are here. A signer
trusts `spec.username` and `spec.groups`, so they are those of the caller, whatever the request says.

Source: plugin/pkg/admission/certificates and pkg/registry/certificates of Kubernetes 1.36.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from tinykube.apiserver.failure import forbidden
from tinykube.apiserver.hooks import AdmissionRequest, Attributes, Object, User
from tinykube.apiserver.rbac import MASTERS, RBAC

GROUP: Final = "certificates.k8s.io"
REQUESTS: Final = "certificatesigningrequests"
QUALIFIED: Final = f"{REQUESTS}.{GROUP}"
#: The writes that `check` looks at, as (operation, subresource).
WRITES: Final = (("CREATE", ""), ("UPDATE", "approval"), ("UPDATE", "status"))
_CLIENT_SIGNER: Final = "kubernetes.io/kube-apiserver-client"


def identify(request: Object, user: User) -> None:
    """Write the caller into a new request, in place of what the caller wrote."""
    spec = request.get("spec")
    if not isinstance(spec, dict):
        return  # validation refuses it
    for field in ("username", "uid", "groups", "extra"):
        spec.pop(field, None)
    spec |= user.info()


def check(request: AdmissionRequest, rbac: RBAC | None) -> None:
    """Raise ApiFailure 403 for a request, an approval or a certificate that its writer may not write."""
    obj, old = request.obj, request.old
    if obj is None:
        return
    if old is None:
        _check_subject(request, obj.get("spec") or {})
    elif request.subresource == "approval":
        _check_signer(request, rbac, "approve", old)
    elif request.subresource == "status" and _signed_part(obj) != _signed_part(old):
        _check_signer(request, rbac, "sign", old)


def _signed_part(obj: Object) -> tuple[object, object]:
    status = obj.get("status") or {}
    return status.get("certificate") or "", status.get("conditions") or []


def _check_signer(request: AdmissionRequest, rbac: RBAC | None, verb: str, old: Object) -> None:
    signer: str = old["spec"]["signerName"]
    names = (signer, signer.partition("/")[0] + "/*")
    wanted = [Attributes(verb, GROUP, "*", "signers", name=name) for name in names]
    if rbac is not None and all(rbac.authorize(request.user, one) is not None for one in wanted):
        text = f'user not permitted to {verb} requests with signerName "{signer}"'
        raise forbidden(request.info, request.name, text)


def _check_subject(request: AdmissionRequest, spec: Object) -> None:
    """Refuse a client's certificate for system:masters: no binding could take its rights away again."""
    if spec.get("signerName") != _CLIENT_SIGNER:
        return
    try:
        subject = x509.load_pem_x509_csr(base64.b64decode(spec.get("request") or "")).subject
    except ValueError:
        return  # validation refuses it
    if any(name.value == MASTERS for name in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)):
        text = f"use of {_CLIENT_SIGNER} signer with {MASTERS} group is not allowed"
        raise forbidden(request.info, request.name, text)


def changed_part(old: Object, new: Object, subresource: str, now: Callable[[], str]) -> Object:
    """Return `new` with what this kind of write may not change as it was in `old`.

    The spec never changes. An approval writes conditions only; a status keeps the conditions by which it was decided.
    Conditions without times get those of `now`.
    """
    result = {**new, "spec": old.get("spec")}
    before, after = old.get("status") or {}, new.get("status") or {}
    if subresource == "approval":
        status = {**before, "conditions": after.get("conditions") or []}
    elif subresource == "status":
        status = {**after, "conditions": _with_decisions(before, after)} if "conditions" in after else after
    else:
        return result
    if status.get("conditions"):
        status = {**status, "conditions": _with_times(before, status["conditions"], now)}
    if status or "status" in new:
        result["status"] = status
    return result


def _with_decisions(before: Object, after: Object) -> list[Object]:
    """Return the conditions of `after`; those of approval and denial as they were, where as many are there."""
    conditions: list[Object] = list(after["conditions"] or ())
    for type_ in ("Approved", "Denied"):
        decided = [one for one in before.get("conditions") or () if one.get("type") == type_]
        places = [at for at, one in enumerate(conditions) if one.get("type") == type_]
        if len(decided) == len(places):
            for at, one in zip(places, decided, strict=True):
                conditions[at] = one
    return conditions


def _with_times(before: Object, conditions: list[Object], now: Callable[[], str]) -> list[Object]:
    """Return conditions with the times that they lack; a transition was when the stored status became what it is."""
    since = {
        (one.get("type"), one.get("status")): one["lastTransitionTime"]
        for one in before.get("conditions") or ()
        if one.get("lastTransitionTime")
    }
    result = []
    for one in conditions:
        changed = since.get((one.get("type"), one.get("status")))
        times = {
            "lastUpdateTime": one.get("lastUpdateTime") or now(),
            "lastTransitionTime": one.get("lastTransitionTime") or changed or now(),
        }
        result.append({**one, **times})
    return result
