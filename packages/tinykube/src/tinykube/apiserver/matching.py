"""Matches requests against rules and selectors, for webhooks and admission policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.hooks import AdmissionRequest, Object
from tinykube.apiserver.selectors import CompiledSelector, selector_of

# A broken policy or webhook has to be repairable. Policies do apply to the configurations of webhooks.
_POLICIES: Final = frozenset(
    f"{kind}admissionpolic{end}" for kind in ("mutating", "validating") for end in ("ies", "ybindings")
)
_CONFIGURATION: Final = _POLICIES | {"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}


class OperationRule(msgspec.Struct, frozen=True):
    """One RuleWithOperations; `names` empty: any. `exempt` are the kinds of admission itself that it never matches."""

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    resources: frozenset[str]
    scope: str
    names: frozenset[str]
    exempt: frozenset[str]

    def covers(self, info: ResourceInfo, operation: str, subresource: str) -> bool:
        """Return whether requests of this kind can match at all."""
        if info.plural in self.exempt and info.group == "admissionregistration.k8s.io":
            return False
        return (
            bool(self.operations & {"*", operation})
            and bool(self.groups & {"*", info.group})
            and bool(self.versions & {"*", info.version})
            and bool(self.resources & _spellings(info.plural, subresource))
            and (self.scope == "*" or (self.scope == "Namespaced") == info.namespaced)
        )


def _spellings(plural: str, subresource: str) -> set[str]:
    if subresource:
        return {"*/*", f"{plural}/*", f"*/{subresource}", f"{plural}/{subresource}"}
    return {"*", "*/*", plural}


def parse_rules(specs: Iterable[Mapping[str, Any]] | None, exempt: frozenset[str]) -> tuple[OperationRule, ...]:
    return tuple(
        OperationRule(
            frozenset(spec.get("operations") or ()),
            frozenset(spec.get("apiGroups") or ()),
            frozenset(spec.get("apiVersions") or ()),
            frozenset(spec.get("resources") or ()),
            spec.get("scope") or "*",
            frozenset(spec.get("resourceNames") or ()),
            exempt,
        )
        for spec in specs or ()
    )


class Match(msgspec.Struct, frozen=True):
    """Rules, what they leave out, and selectors; None selects everything."""

    rules: tuple[OperationRule, ...]
    excluded: tuple[OperationRule, ...] = ()
    namespaces: CompiledSelector | None = None
    objects: CompiledSelector | None = None

    def covers(self, info: ResourceInfo, operation: str, subresource: str) -> bool:
        return any(rule.covers(info, operation, subresource) for rule in self.rules)

    def matches(self, request: AdmissionRequest, namespace: Object | None) -> bool:
        """`namespace` is the object of the request's namespace, None for what is cluster-scoped."""
        return (
            _any_rule(self.rules, request)
            and not _any_rule(self.excluded, request)
            and self._namespace_selected(request, namespace)
            and self._object_selected(request)
        )

    def _namespace_selected(self, request: AdmissionRequest, namespace: Object | None) -> bool:
        if self.namespaces is None:
            return True
        if request.info.plural == "namespaces" and not request.info.group:
            return self.namespaces.matches(_labels(request.obj or request.old))
        return namespace is None or self.namespaces.matches(_labels(namespace))

    def _object_selected(self, request: AdmissionRequest) -> bool:
        if self.objects is None:
            return True
        return any(obj is not None and self.objects.matches(_labels(obj)) for obj in (request.obj, request.old))


def _any_rule(rules: Iterable[OperationRule], request: AdmissionRequest) -> bool:
    return any(
        rule.covers(request.info, request.operation, request.subresource)
        and (not rule.names or request.name in rule.names)
        for rule in rules
    )


def _labels(obj: Object | None) -> Mapping[str, str]:
    return (obj or {}).get("metadata", {}).get("labels") or {}


def parse_match(spec: Mapping[str, Any], rules: str = "resourceRules") -> Match:
    """A Match of a webhook (`rules` is its field) or of an admission policy's matchConstraints."""
    exempt = _POLICIES if rules == "resourceRules" else _CONFIGURATION
    return Match(
        parse_rules(spec.get(rules), exempt),
        parse_rules(spec.get("excludeResourceRules"), exempt),
        selector_of(spec.get("namespaceSelector")),
        selector_of(spec.get("objectSelector")),
    )


def _options(request: AdmissionRequest) -> Object:
    """The options of the request as the reviewer sees them."""
    kind = _OPTIONS.get(request.operation)
    if kind is None:
        return {}
    dry_run = {"dryRun": ["All"]} if request.dry_run else {}
    return {"kind": kind, "apiVersion": "meta.k8s.io/v1", **dry_run}


_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


def review_request(request: AdmissionRequest, uid: str) -> Object:
    """The `request` of an AdmissionReview, which is also what CEL sees as `request` (less the objects)."""
    info = request.info
    group, version, name = request.kind or (info.group, info.version, info.kind)
    kind = {"group": group, "version": version, "kind": name}
    resource = {"group": info.group, "version": info.version, "resource": info.plural}
    user: Object = {"groups": [], **request.user.info()}
    made: Object = {
        "uid": uid,
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "name": request.name,
        "operation": request.operation,
        "userInfo": user,
        "dryRun": request.dry_run,
        "options": request.options or _options(request),
    }
    if request.subresource:
        made |= {"subResource": request.subresource, "requestSubResource": request.subresource}
    if info.namespaced:
        made["namespace"] = request.namespace
    elif info.plural == "namespaces" and not info.group:
        made["namespace"] = request.name
    return made
