"""Validates webhook configurations, admission policies, roles and bindings, with Kubernetes' messages.

Invalid objects are refused when written: these objects are evaluated for every later write, and an invalid one would
block every writer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from kubekit.api.formats import valid_format
from kubekit.cel import CelProgram, CelSyntaxError
from kubekit.cel.result_types import result_type
from tinykube.apiserver.failure import Cause, duplicate, invalid_value, not_supported, required
from tinykube.apiserver.hooks import Object
from tinykube.apiserver.policies import MESSAGES, VARIABLES
from tinykube.apiserver.validation import validate_selector

_WEBHOOK_VARIABLES: Final = ("object", "oldObject", "request")
_OPERATIONS: Final = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_REASONS: Final = ("Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized")


def webhooks(obj: Object, old: Object | None) -> list[Cause]:
    """Findings of a Mutating- or ValidatingWebhookConfiguration."""
    causes: list[Cause] = []
    seen: set[str] = set()
    for index, hook in enumerate(obj.get("webhooks") or ()):
        path = f"webhooks[{index}]"
        name = hook.get("name", "")
        if name in seen:
            causes.append(duplicate(f"{path}.name", name))
        seen.add(name)
        causes += _webhook(hook, path)
    return causes


def _webhook(hook: Mapping[str, Any], path: str) -> Iterator[Cause]:
    name = hook.get("name") or ""
    if not name:
        yield required(f"{path}.name")
    elif not valid_format("dns1123Subdomain", name) or name.count(".") < 2:
        text = "should be a domain with at least three segments separated by dots"
        yield invalid_value(f"{path}.name", name, text)
    yield from _client(hook.get("clientConfig") or {}, f"{path}.clientConfig")
    yield from _rules(hook.get("rules") or (), f"{path}.rules")
    yield from _one_of(hook, path, "failurePolicy", ("Fail", "Ignore"))
    yield from _one_of(hook, path, "matchPolicy", ("Equivalent", "Exact"))
    yield from _one_of(hook, path, "reinvocationPolicy", ("IfNeeded", "Never"))
    if not hook.get("sideEffects"):
        yield required(f"{path}.sideEffects", "must specify one of None, NoneOnDryRun")
    yield from _one_of(hook, path, "sideEffects", ("None", "NoneOnDryRun"))
    versions = hook.get("admissionReviewVersions") or []
    if not versions:
        yield required(f"{path}.admissionReviewVersions", "must specify one of v1, v1beta1")
    elif not {"v1", "v1beta1"} & set(versions):
        text = "must include at least one of v1, v1beta1"
        yield invalid_value(f"{path}.admissionReviewVersions", versions, text)
    seconds = hook.get("timeoutSeconds")
    if seconds is not None and not 1 <= seconds <= 30:
        yield invalid_value(f"{path}.timeoutSeconds", seconds, "the timeout value must be between 1 and 30 seconds")
    yield from _selectors(hook, path)
    yield from _conditions(hook, path, _WEBHOOK_VARIABLES)


def _client(client: Mapping[str, Any], path: str) -> Iterator[Cause]:
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        yield required(path, "exactly one of url or service is required")
    if url is not None:
        parts = urlsplit(url)
        if parts.scheme != "https":
            text = "'https' is the only allowed URL scheme; desired format: https://host[/path]"
            yield invalid_value(f"{path}.url", parts.scheme, text)
        if not parts.hostname:
            yield invalid_value(f"{path}.url", url, "host must be specified")
    if service is not None:
        for field in ("name", "namespace"):
            if not service.get(field):
                yield required(f"{path}.service.{field}", f"service {field} is required")
        port = service.get("port", 443)
        if not 1 <= port <= 65535:
            yield invalid_value(
                f"{path}.service.port", port, "port is not valid: must be between 1 and 65535, inclusive"
            )
        target = service.get("path")
        if target and not target.startswith("/"):
            yield invalid_value(f"{path}.service.path", target, "must start with a '/'")


def _rules(rules: Sequence[Mapping[str, Any]], path: str) -> Iterator[Cause]:
    for index, rule in enumerate(rules):
        here = f"{path}[{index}]"
        for field in ("operations", "apiGroups", "apiVersions", "resources"):
            if not rule.get(field):
                yield required(f"{here}.{field}")
        resources = rule.get("resources") or []
        if "*" in resources and any("/" not in one for one in resources if one != "*"):
            text = "if '*' is present, must not specify other resources without subresources"
            yield invalid_value(f"{here}.resources", resources, text)
        for at, operation in enumerate(rule.get("operations") or ()):
            if operation not in _OPERATIONS:
                yield not_supported(f"{here}.operations[{at}]", operation, _OPERATIONS)
        yield from _one_of(rule, here, "scope", ("*", "Cluster", "Namespaced"))


def _one_of(obj: Mapping[str, Any], path: str, field: str, allowed: Sequence[str]) -> Iterator[Cause]:
    value = obj.get(field)
    if value and value not in allowed:
        yield not_supported(f"{path}.{field}", value, allowed)


def _selectors(obj: Mapping[str, Any], path: str) -> Iterator[Cause]:
    for field in ("namespaceSelector", "objectSelector"):
        if obj.get(field):
            yield from validate_selector(obj[field], f"{path}.{field}")


def _expression(source: str, path: str, variables: Sequence[str], *, wanted: tuple[str, ...] = ()) -> Iterator[Cause]:
    if not source.strip():
        yield required(path)
        return
    try:
        CelProgram(source, variables)
    except CelSyntaxError as problem:
        yield invalid_value(path, source, f"compilation failed: {problem}")
        return
    found = result_type(source)
    if wanted and found and found not in wanted:
        yield invalid_value(path, source, f"must evaluate to {' or '.join(wanted)} but got {found}")


def _conditions(obj: Mapping[str, Any], path: str, variables: Sequence[str]) -> Iterator[Cause]:
    for index, condition in enumerate(obj.get("matchConditions") or ()):
        here = f"{path}.matchConditions[{index}]"
        if not condition.get("name"):
            yield required(f"{here}.name")
        yield from _expression(condition.get("expression") or "", f"{here}.expression", variables)


def policy(obj: Object, old: Object | None) -> list[Cause]:
    """Findings of a ValidatingAdmissionPolicy."""
    return list(_policy(obj.get("spec") or {}))


def _policy(spec: Mapping[str, Any]) -> Iterator[Cause]:
    known = yield from _common(spec)
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        for field in ("validations", "auditAnnotations"):
            yield required(f"spec.{field}", "validations or auditAnnotations must contain at least one item")
    for index, validation in enumerate(spec.get("validations") or ()):
        here = f"spec.validations[{index}]"
        yield from _expression(validation.get("expression") or "", f"{here}.expression", known, wanted=("bool",))
        if validation.get("messageExpression"):
            message = validation["messageExpression"]
            yield from _expression(message, f"{here}.messageExpression", known, wanted=("string",))
        yield from _one_of(validation, here, "reason", _REASONS)


def _common(spec: Mapping[str, Any]) -> Generator[Cause, None, tuple[str, ...]]:
    """The findings of what both kinds of policy have; returns the variables of its expressions."""
    match = spec.get("matchConstraints")
    if not match:
        yield required("spec.matchConstraints")
    else:
        yield from _match(match, "spec.matchConstraints")
        if not match.get("resourceRules"):
            yield required("spec.matchConstraints.resourceRules")
    yield from _one_of(spec, "spec", "failurePolicy", ("Fail", "Ignore"))
    if kind := spec.get("paramKind"):
        for field in ("apiVersion", "kind"):
            if not kind.get(field):
                yield required(f"spec.paramKind.{field}")
    yield from _conditions(spec, "spec", VARIABLES)
    for index, variable in enumerate(spec.get("variables") or ()):
        if not variable.get("name"):
            yield required(f"spec.variables[{index}].name")
        source = variable.get("expression") or ""
        yield from _expression(source, f"spec.variables[{index}].expression", (*VARIABLES, *MESSAGES))
    return VARIABLES if spec.get("variables") else tuple(name for name in VARIABLES if name != "variables")


# patchType -> its field, and the types of values that its expression may have
_MUTATIONS: Final = {"ApplyConfiguration": ("applyConfiguration", ("Object",)), "JSONPatch": ("jsonPatch", ("list",))}


def mutating_policy(obj: Object, old: Object | None) -> list[Cause]:
    """Findings of a MutatingAdmissionPolicy."""
    return list(_mutating_policy(obj.get("spec") or {}))


def _mutating_policy(spec: Mapping[str, Any]) -> Iterator[Cause]:
    known = yield from _common(spec)
    mutations = spec.get("mutations") or ()
    if not mutations:
        yield required("spec.mutations", "mutations must contain at least one item")
    for index, mutation in enumerate(mutations):
        here, kind = f"spec.mutations[{index}]", mutation.get("patchType") or ""
        if kind not in _MUTATIONS:
            yield not_supported(f"{here}.patchType", kind, tuple(_MUTATIONS))
            continue
        field, wanted = _MUTATIONS[kind]
        if mutation.get(field) is None:
            yield required(f"{here}.{field}", f"must be specified when patchType is {kind}")
            continue
        source = mutation[field].get("expression") or ""
        yield from _expression(source, f"{here}.{field}.expression", (*known, *MESSAGES), wanted=wanted)
    if not spec.get("reinvocationPolicy"):
        yield required("spec.reinvocationPolicy")
    yield from _one_of(spec, "spec", "reinvocationPolicy", ("IfNeeded", "Never"))


def mutating_policy_binding(obj: Object, old: Object | None) -> list[Cause]:
    """Findings of a MutatingAdmissionPolicyBinding."""
    return list(_bound(obj.get("spec") or {}))


def _match(match: Mapping[str, Any], path: str) -> Iterator[Cause]:
    yield from _rules(match.get("resourceRules") or (), f"{path}.resourceRules")
    yield from _rules(match.get("excludeResourceRules") or (), f"{path}.excludeResourceRules")
    yield from _one_of(match, path, "matchPolicy", ("Equivalent", "Exact"))
    yield from _selectors(match, path)


def policy_binding(obj: Object, old: Object | None) -> list[Cause]:
    """Findings of a ValidatingAdmissionPolicyBinding."""
    return list(_policy_binding(obj.get("spec") or {}))


def _policy_binding(spec: Mapping[str, Any]) -> Iterator[Cause]:
    actions = spec.get("validationActions") or ()
    if not actions:
        yield required("spec.validationActions", "at least one validation action is required")
    for index, action in enumerate(actions):
        if action not in ("Audit", "Deny", "Warn"):
            yield not_supported(f"spec.validationActions[{index}]", action, ("Audit", "Deny", "Warn"))
    if {"Deny", "Warn"} <= set(actions):
        yield invalid_value("spec.validationActions", str(list(actions)), "must not contain both Deny and Warn")
    yield from _bound(spec)


def _bound(spec: Mapping[str, Any]) -> Iterator[Cause]:
    """Findings of what both kinds of binding have."""
    if not spec.get("policyName"):
        yield required("spec.policyName")
    if match := spec.get("matchResources"):
        yield from _match(match, "spec.matchResources")
    if param := spec.get("paramRef"):
        if bool(param.get("name")) == (param.get("selector") is not None):
            yield required("spec.paramRef.name", "one of name or selector must be specified")
        if not param.get("parameterNotFoundAction"):
            yield required("spec.paramRef.parameterNotFoundAction")
        yield from _one_of(param, "spec.paramRef", "parameterNotFoundAction", ("Allow", "Deny"))
        if param.get("selector"):
            yield from validate_selector(param["selector"], "spec.paramRef.selector")
