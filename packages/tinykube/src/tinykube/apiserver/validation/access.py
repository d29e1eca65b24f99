"""Validates roles, their bindings, service accounts and certificate signing requests."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from tinykube.apiserver.failure import Cause, duplicate, forbidden_value, invalid_value, not_supported, required
from tinykube.apiserver.validation.names import SUBDOMAIN, validate_selector
from tinykube.apiserver.validation.tables import Check, Needs, Object, RuleTable, at_least, one_of

_GROUP: Final = "rbac.authorization.k8s.io"


def _rule(rule: Object, where: str, *, is_namespaced: bool) -> Iterator[Cause]:
    if not rule.get("verbs"):
        yield required(f"{where}.verbs", "verbs must contain at least one value")
    if rule.get("nonResourceURLs"):
        urls = rule["nonResourceURLs"]
        if is_namespaced:
            text = "namespaced rules cannot apply to non-resource URLs"
            yield invalid_value(f"{where}.nonResourceURLs", urls, text)
        if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
            text = "rules cannot apply to both regular resources and non-resource URLs"
            yield invalid_value(f"{where}.nonResourceURLs", urls, text)
        return
    if not rule.get("apiGroups"):
        yield required(f"{where}.apiGroups", "resource rules must supply at least one api group")
    if not rule.get("resources"):
        yield required(f"{where}.resources", "resource rules must supply at least one resource")


def validate_role(obj: Object, old: Object | None) -> list[Cause]:
    rules = enumerate(obj.get("rules") or ())
    return [cause for at, rule in rules for cause in _rule(rule, f"rules[{at}]", is_namespaced=True)]


def validate_cluster_role(obj: Object, old: Object | None) -> list[Cause]:
    rules = enumerate(obj.get("rules") or ())
    causes = [cause for at, rule in rules for cause in _rule(rule, f"rules[{at}]", is_namespaced=False)]
    aggregation = obj.get("aggregationRule")
    where = "aggregationRule.clusterRoleSelectors"
    if aggregation is not None and not aggregation.get("clusterRoleSelectors"):
        text = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        causes.append(required(where, text))
    for at, selector in enumerate((aggregation or {}).get("clusterRoleSelectors") or ()):
        wrong = validate_selector(selector, f"{where}[{at}]")
        causes += wrong
        if wrong:
            causes.append(invalid_value(f"{where}[{at}]", None, "invalid label selector."))
    return causes


#: The API groups of a subject by its kind.
_GROUPS: Final[dict[str, Check]] = {
    "ServiceAccount": RuleTable(("apiGroup", one_of(""))),
    "User": RuleTable(("apiGroup", one_of(_GROUP))),
    "Group": RuleTable(("apiGroup", one_of(_GROUP))),
}


def _subject(value: Any, where: str) -> Iterator[Cause]:
    kind = value.get("kind") or ""
    if not value.get("name"):
        yield required(f"{where}.name")
    if kind not in _GROUPS:
        yield from one_of("ServiceAccount", "User", "Group")(kind, f"{where}.kind")
    else:
        yield from _GROUPS[kind](value, where)


def _binding(kinds: tuple[str, ...]) -> RuleTable:
    reference = RuleTable(("apiGroup", one_of(_GROUP)), ("kind", one_of(*kinds)), ("name", Needs()))
    return RuleTable(("roleRef", Needs(), reference), ("subjects[]", _subject))


_BINDING: Final = _binding(("Role", "ClusterRole"))
_CLUSTER_BINDING: Final = _binding(("ClusterRole",))


def validate_role_binding(obj: Object, old: Object | None) -> list[Cause]:
    return _validate_binding(obj, old, _BINDING)


def validate_cluster_role_binding(obj: Object, old: Object | None) -> list[Cause]:
    return _validate_binding(obj, old, _CLUSTER_BINDING)


def _validate_binding(obj: Object, old: Object | None, table: RuleTable) -> list[Cause]:
    reference = obj.get("roleRef") or {}
    causes = [*table(obj, "")]
    if old is not None and reference != old.get("roleRef"):
        shown = {"APIGroup": reference.get("apiGroup"), "Kind": reference.get("kind"), "Name": reference.get("name")}
        causes.append(invalid_value("roleRef", shown, "cannot change roleRef"))
    return causes


_LABEL: Final = "CERTIFICATE REQUEST"
_SHORTEST: Final = at_least(600, "may not specify a duration less than 600 seconds (10 minutes)")


def _request(value: Any, where: str) -> Iterator[Cause]:
    pem = base64.b64decode(value.get("request") or "")
    problem = ""
    if f"-----BEGIN {_LABEL}-----".encode() not in pem:
        problem = f"PEM block type must be {_LABEL}"
    else:
        try:
            if not x509.load_pem_x509_csr(pem).is_signature_valid:
                problem = "x509: the signature is not that of the request's key"
        except (ValueError, UnsupportedAlgorithm) as error:
            problem = f"x509: malformed certificate request: {error}"
    if problem:
        yield invalid_value(f"{where}.request", value.get("request") or "", problem)


_USAGES: Final = (
    *("any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment"),
    *("decipher only", "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel"),
    *("ipsec user", "key agreement", "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime"),
    *("server auth", "signing", "timestamping"),
)


def _usages(value: Any, where: str) -> Iterator[Cause]:
    for at, usage in enumerate(value):
        yield from one_of(*_USAGES)(usage, f"{where}[{at}]")
    for at, usage in enumerate(value):
        if usage in value[:at]:
            yield duplicate(f"{where}[{at}]", usage)


def _signer(value: Any, where: str) -> Iterator[Cause]:
    if value == "kubernetes.io/legacy-unknown":
        yield invalid_value(where, value, "the legacy signerName is not allowed via this API version")
        return
    domain, slash, path = value.partition("/")
    if not slash or not path or "." not in domain or not SUBDOMAIN.match(domain):
        text = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        yield invalid_value(where, value, text)


_SIGNING: Final = RuleTable(
    ("", _request), ("usages", Needs(), _usages), ("signerName", Needs(), _signer), ("expirationSeconds", _SHORTEST)
)


_DECISIONS: Final = ("Approved", "Denied")
_CONDITIONS: Final = "status.conditions"
_MOST_BLOCKS: Final = 100
_STATUSES: Final = ("False", "True", "Unknown")
_BLOCK: Final = re.compile(rb"^-----BEGIN ([^\n]*)-----[ \t\r]*\n(.*?)^-----END \1-----", re.MULTILINE | re.DOTALL)


def validate_signing_request(obj: Object, old: Object | None) -> list[Cause]:
    if old is None:
        return list(_SIGNING(obj.get("spec") or {}, "spec"))
    added = [one for one in _DECISIONS if len(_of_type(obj, one)) > len(_of_type(old, one))]
    text = 'updates may not add a condition of type "{}"'
    causes = [
        *_wrong_status(obj, old),
        *_decision(obj, old),
        *(forbidden_value(_CONDITIONS, text.format(one)) for one in added),
    ]
    before, after = ((one.get("status") or {}).get("certificate") or "" for one in (old, obj))
    if before and after != before:
        causes.append(forbidden_value("status.certificate", "updates may not modify existing certificate content"))
    return causes


def validate_approval(obj: Object, old: Object | None) -> list[Cause]:
    return [*_wrong_status(obj, old or {}), *_decision(obj, old or {})]


def _wrong_status(obj: Object, old: Object) -> Iterator[Cause]:
    """Find conditions that contradict themselves, and a new certificate that is invalid."""
    before, after = (one.get("status") or {} for one in (old, obj))
    found = [one.get("type") or "" for one in before.get("conditions") or ()]
    repeats = len(set(found)) < len(found)
    types: list[str] = []
    for at, condition in enumerate(after.get("conditions") or ()):
        type_, status = condition.get("type") or "", condition.get("status") or ""
        where = f"{_CONDITIONS}[{at}]"
        if not type_ and "" not in found:
            yield required(f"{where}.type")
        allowed = ("True",) if type_ in (*_DECISIONS, "Failed") else _STATUSES
        if not status:
            yield required(f"{where}.status")
        elif status not in allowed:
            yield not_supported(f"{where}.status", status, allowed)
        if type_ in types and not repeats:
            yield duplicate(f"{where}.type", type_)
        types.append(type_)
    certificate = after.get("certificate") or ""
    if certificate != (before.get("certificate") or "") and (why := _why_no_certificate(certificate)):
        yield invalid_value("status.certificate", "<certificate data>", why)


def _why_no_certificate(encoded: str) -> str:
    text = base64.b64decode(encoded)
    if text.count(b"-----BEGIN ") > _MOST_BLOCKS:  # each is looked through to the end
        return f"x509: malformed certificate: more than {_MOST_BLOCKS} PEM blocks"
    blocks = _BLOCK.findall(text)
    for label, body in blocks:
        if label != b"CERTIFICATE":
            return f'only CERTIFICATE PEM blocks are allowed, found "{label.decode(errors="replace")}"'
        if b":" in body:
            return "no PEM block headers are permitted"
        try:
            x509.load_der_x509_certificate(base64.b64decode(body))
        except (ValueError, UnsupportedAlgorithm) as error:
            return f"x509: malformed certificate: {error}"
    return "" if blocks or not encoded else "must contain at least one CERTIFICATE PEM block"


def _of_type(request: Object, type_: str) -> list[Object]:
    conditions = (request.get("status") or {}).get("conditions") or ()
    return [one for one in conditions if one.get("type") == type_]


def _decision(obj: Object, old: Object) -> Iterator[Cause]:
    """Find a request that is approved and denied, and a decision that is taken back."""
    both = [all(_of_type(one, type_) for type_ in _DECISIONS) for one in (old, obj)]
    if both == [False, True]:
        last = [one["type"] for one in obj["status"]["conditions"] if one.get("type") in _DECISIONS][-1]
        yield invalid_value(_CONDITIONS, last, "Approved and Denied conditions are mutually exclusive")
    for type_ in (*_DECISIONS, "Failed"):
        if len(_of_type(obj, type_)) < len(_of_type(old, type_)):
            yield forbidden_value(_CONDITIONS, f'updates may not remove a condition of type "{type_}"')
