"""ValidatingAdmissionPolicies and their bindings: rules in CEL on what comes in, without a webhook.

Policies are compiled when they are written; a request costs the evaluation of those that match it. A write of one
policy does not compile the others again. `variables` are computed when an expression first reads them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from kubekit.cel import CelError, CelProgram, CelSyntaxError
from kubekit.cel.authorizer import AccessQuestion, CelAuthorizer
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure, forbidden
from tinykube.apiserver.hooks import AdmissionRequest, Object, User
from tinykube.apiserver.matching import Match, parse_match, review_request
from tinykube.apiserver.selectors import selector_of

logger = logging.getLogger("tinykube.apiserver")

VARIABLES: Final = ("object", "oldObject", "request", "params", "namespaceObject", "authorizer", "variables")
#: The messages that expressions of mutations construct.
MESSAGES: Final = ("Object", "JSONPatch")
_CODES: Final = {"Invalid": 422, "Forbidden": 403, "Unauthorized": 401, "RequestEntityTooLarge": 413}

# (apiVersion, kind, namespace, name or None for all) -> the parameter objects
FindParams = Callable[[str, str, str, str | None], list[Object]]
# (the user of the request, what is asked) -> why it is refused, empty if it is allowed
Authorize = Callable[[User, AccessQuestion], str]


class Validation(msgspec.Struct, frozen=True):
    program: CelProgram
    message: str
    message_program: CelProgram | None
    reason: str


class Mutation(msgspec.Struct, frozen=True):
    """One change of an object; `applied`: the expression gives a configuration to apply, otherwise JSON patches."""

    program: CelProgram
    applied: bool


class AdmissionPolicy(msgspec.Struct, frozen=True):
    name: str
    match: Match
    conditions: tuple[CelProgram, ...]
    variables: dict[str, CelProgram]
    validations: tuple[Validation, ...]
    param_kind: tuple[str, str] | None  # (apiVersion, kind)
    ignores_failure: bool
    mutations: tuple[Mutation, ...] = ()
    again: bool = False  # reinvocationPolicy: IfNeeded


class Binding(msgspec.Struct, frozen=True):
    name: str
    policy: str
    match: Match | None
    param: Object | None
    actions: frozenset[str]


class _Variables(Mapping[str, Any]):
    """`variables.x`: evaluated on first use; one may read those before it."""

    def __init__(self, programs: Mapping[str, CelProgram], scope: Object) -> None:
        self._programs = programs
        self._scope = scope
        self._known: Object = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._programs[name](self._scope)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._programs

    def __iter__(self) -> Iterator[str]:
        return iter(self._programs)

    def __len__(self) -> int:
        return len(self._programs)


@functools.lru_cache(maxsize=1024)
def _program(source: str, messages: tuple[str, ...] = ()) -> CelProgram:
    return CelProgram(source, (*VARIABLES, *messages))


def compile_policy(obj: Object) -> AdmissionPolicy:
    """Raises CelSyntaxError for an expression that does not compile."""
    spec = obj.get("spec") or {}
    kind = spec.get("paramKind")
    return AdmissionPolicy(
        obj["metadata"]["name"],
        parse_match(spec.get("matchConstraints") or {}),
        tuple(_program(condition["expression"]) for condition in spec.get("matchConditions") or ()),
        {variable["name"]: _program(variable["expression"]) for variable in spec.get("variables") or ()},
        tuple(
            Validation(
                _program(entry["expression"]),
                entry.get("message") or "",
                _program(entry["messageExpression"]) if entry.get("messageExpression") else None,
                entry.get("reason") or "Invalid",
            )
            for entry in spec.get("validations") or ()
        ),
        (kind["apiVersion"], kind["kind"]) if kind else None,
        spec.get("failurePolicy") == "Ignore",
        tuple(
            Mutation(_program(entry[field]["expression"], MESSAGES), field == "applyConfiguration")
            for entry in spec.get("mutations") or ()
            for field in ("applyConfiguration", "jsonPatch")
            if entry.get(field)
        ),
        spec.get("reinvocationPolicy") == "IfNeeded",
    )


def compile_binding(obj: Object) -> Binding:
    spec = obj.get("spec") or {}
    match = spec.get("matchResources")
    # Without rules of its own a binding matches what its policy matches; its selectors still narrow that.
    return Binding(
        obj["metadata"]["name"],
        spec.get("policyName", ""),
        parse_match({"resourceRules": [_EVERYTHING], **match}) if match else None,
        spec.get("paramRef"),
        frozenset(spec.get("validationActions") or ()),
    )


_EVERYTHING: Final = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}


class BoundPolicies:
    """The policies of one kind in force: which of them match a request, by which bindings and with which parameters."""

    def __init__(self, find_params: FindParams, authorize: Authorize) -> None:
        self._find_params = find_params
        self._authorize = authorize
        self._policies: dict[str, AdmissionPolicy] = {}
        self._bindings: list[Binding] = []

    def load(self, policies: Iterable[Object], bindings: Iterable[Object]) -> None:
        """Take the stored objects as they are now; a policy that does not compile is left out and logged."""
        self._policies = {}
        for obj in policies:
            try:
                self._policies[obj["metadata"]["name"]] = compile_policy(obj)
            except CelSyntaxError as problem:
                logger.warning("admission policy %s is not in force: %s", obj["metadata"]["name"], problem)
        self._bindings = [compile_binding(obj) for obj in bindings]

    def covers(self, info: ResourceInfo, operation: str, subresource: str) -> bool:
        return any(
            binding.policy in self._policies
            and self._policies[binding.policy].match.covers(info, operation, subresource)
            for binding in self._bindings
        )

    def _matching(
        self, request: AdmissionRequest, namespace: Object | None
    ) -> Iterator[tuple[AdmissionPolicy, Binding]]:
        for binding in self._bindings:
            policy = self._policies.get(binding.policy)
            if policy is None or not policy.match.matches(request, namespace):
                continue
            if binding.match is None or binding.match.matches(request, namespace):
                yield policy, binding

    def _params(self, policy: AdmissionPolicy, binding: Binding, request: AdmissionRequest) -> list[Object | None]:
        if policy.param_kind is None or binding.param is None:
            return [None]
        reference = binding.param
        namespace = reference.get("namespace") or request.namespace
        found = self._find_params(*policy.param_kind, namespace, reference.get("name"))
        if selector := selector_of(reference.get("selector")):
            found = [obj for obj in found if selector.matches(obj["metadata"].get("labels"))]
        if not found and reference.get("parameterNotFoundAction") != "Allow" and not policy.ignores_failure:
            text = "no params found for policy binding with `Deny` parameterNotFoundAction"
            raise self._denied(policy, binding, request, text)
        return list(found)

    def _scope(
        self,
        policy: AdmissionPolicy,
        binding: Binding,
        request: AdmissionRequest,
        namespace: Object | None,
        params: Object | None,
    ) -> Object | None:
        """Return the variables of a policy's expressions; None where its conditions do not hold."""
        scope: Object = {
            "object": request.obj,
            "oldObject": request.old,
            "request": review_request(request, ""),
            "params": params,
            "namespaceObject": namespace,
            "authorizer": CelAuthorizer(functools.partial(self._authorize, request.user)),
        }
        scope["variables"] = _Variables(policy.variables, scope)
        try:
            if not all(condition(scope) is True for condition in policy.conditions):
                return None
        except CelError as problem:
            if not policy.ignores_failure:
                raise self._denied(policy, binding, request, f"match condition failed: {problem}") from None
            return None
        return scope

    @staticmethod
    def _denied(
        policy: AdmissionPolicy, binding: Binding, request: AdmissionRequest, text: str, reason: str = "Invalid"
    ) -> ApiFailure:
        what = "MutatingAdmissionPolicy" if policy.mutations else "ValidatingAdmissionPolicy"
        why = f"{what} '{policy.name}' with binding '{binding.name}' denied request: {text}"
        failure = forbidden(request.info, request.name, why)
        failure.reason = reason
        failure.status = _CODES.get(reason, 403)
        failure.details = {**(failure.details or {}), "causes": [{"message": why}]}
        return failure


class AdmissionPolicies(BoundPolicies):
    """The ValidatingAdmissionPolicies in force."""

    def validate(self, request: AdmissionRequest, namespace: Object | None) -> None:
        """Raises ApiFailure for the first binding that denies, after all others have warned."""
        refusals: list[ApiFailure] = []
        for policy, binding in self._matching(request, namespace):
            try:
                for params in self._params(policy, binding, request):
                    self._run(policy, binding, request, namespace, params)
            except ApiFailure as refusal:
                refusals.append(refusal)
        if refusals:
            raise refusals[0]

    def _run(
        self,
        policy: AdmissionPolicy,
        binding: Binding,
        request: AdmissionRequest,
        namespace: Object | None,
        params: Object | None,
    ) -> None:
        scope = self._scope(policy, binding, request, namespace, params)
        if scope is None:
            return
        for validation in policy.validations:
            try:
                if validation.program(scope) is True:
                    continue
                text = _message(validation, scope)
            except CelError as problem:
                if policy.ignores_failure:
                    continue
                text = f"expression '{validation.program.source}' resulted in error: {problem}"
            if "Warn" in binding.actions:
                who = f"ValidatingAdmissionPolicy '{policy.name}' with binding '{binding.name}'"
                request.warnings.append(f"Validation failed for {who}: {text}")
            if "Deny" in binding.actions:
                raise self._denied(policy, binding, request, text, validation.reason)


def _message(validation: Validation, scope: Object) -> str:
    if validation.message_program is not None:
        try:
            text = validation.message_program(scope)
        except CelError as problem:
            logger.debug("a policy's messageExpression failed: %s", problem)
        else:
            if isinstance(text, str) and text.strip():
                return text.strip()
    return validation.message or f"failed expression: {validation.program.source}"
