"""The variable `authorizer` of admission policies: asks what else the user of a request may do.

`authorizer.group('apps').resource('deployments').namespace('ml').check('create').allowed()`. A question is put together
step by step; each step is a value of CEL. `requestResource` is not built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kubekit.cel.values import CelError


class AccessQuestion(msgspec.Struct, frozen=True):
    """A question to the authorizer. `account`: namespace and name of a service account, None for the request's user."""

    verb: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    account: tuple[str, str] | None = None


class CelDecision(msgspec.Struct, frozen=True):
    """An answer: the refusal's reason, empty where the authorizer allows it."""

    refusal: str


Ask = Callable[[AccessQuestion], str]
"""Returns why something is refused; empty if it is allowed."""


class CelAuthorizer(msgspec.Struct, frozen=True):
    """A question so far, and the function that answers it."""

    ask: Ask
    question: AccessQuestion = AccessQuestion()

    def with_(self, **fields: Any) -> CelAuthorizer:
        return CelAuthorizer(self.ask, msgspec.structs.replace(self.question, **fields))


def _step(field: str) -> Callable[..., CelAuthorizer]:
    def take(value: Any, text: Any) -> CelAuthorizer:
        if not isinstance(value, CelAuthorizer) or not isinstance(text, str):
            raise CelError("no such overload")
        return value.with_(**{field: text})

    return take


def _account(value: Any, namespace: Any, name: Any) -> CelAuthorizer:
    if not isinstance(value, CelAuthorizer):
        raise CelError("no such overload")
    return value.with_(account=(namespace, name))


def _check(value: Any, verb: Any) -> CelDecision:
    if not isinstance(value, CelAuthorizer) or not (value.question.resource or value.question.path):
        raise CelError("no such overload")
    return CelDecision(value.ask(value.with_(verb=verb).question))


def _answer(read: Callable[[CelDecision], Any]) -> Callable[[Any], Any]:
    def of(decision: Any) -> Any:
        if not isinstance(decision, CelDecision):
            raise CelError("no such overload")
        return read(decision)

    return of


METHODS: dict[str, Callable[..., Any]] = {
    **{field: _step(field) for field in ("group", "resource", "subresource", "namespace", "name", "path")},
    "serviceAccount": _account,
    "check": _check,
    "allowed": _answer(lambda decision: not decision.refusal),
    "reason": _answer(lambda decision: decision.refusal),
    "errored": _answer(lambda decision: False),
}
