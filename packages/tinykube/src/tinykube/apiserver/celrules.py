"""`x-kubernetes-validations`: rules in CEL of structural schemas.

A rule that names `oldSelf` is a transition rule: it runs on updates only (or always with `optionalOldSelf`, where
`oldSelf` is then an optional). Rules are parsed when the CRD comes in, so that a mistake is refused there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubekit.cel import CelError, CelProgram
from kubekit.cel.values import ABSENT, some
from tinykube.apiserver.failure import Cause

_VARIABLES = ("self", "oldSelf")


class CelRule:
    """One compiled rule. Raises CelSyntaxError at construction."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.source: str = str(spec.get("rule", "")).strip()
        self.program = CelProgram(self.source, _VARIABLES)
        self.message: str = str(spec.get("message") or "").strip()
        expression = spec.get("messageExpression")
        self.message_program = CelProgram(expression, _VARIABLES) if expression else None
        self.reason: str = spec.get("reason") or "FieldValueInvalid"
        self.field_path: str = spec.get("fieldPath") or ""
        self.optional_old: bool = bool(spec.get("optionalOldSelf"))
        self.transition: bool = "oldSelf" in self.program.names

    def check(self, value: Any, old: Any, path: str, kind: str) -> Iterator[Cause]:
        """Nothing, or the one finding. `kind` is the type of the place as the schema names it."""
        variables: dict[str, Any] = {"self": value}
        if self.optional_old:
            variables["oldSelf"] = ABSENT if old is None else some(old)
        elif self.transition:
            if old is None:
                return
            variables["oldSelf"] = old
        try:
            if self.program(variables) is True:
                return
        except CelError as problem:
            what = self.message or self.source
            yield self._cause(path, kind, f'"{kind}": {problem} evaluating rule: {what}', "FieldValueInvalid")
            return
        yield self._cause(path, kind, self._text(variables), self.reason)

    def _text(self, variables: dict[str, Any]) -> str:
        if self.message_program is not None:
            try:
                text = self.message_program(variables)
            except CelError:
                text = ""  # as Kubernetes: a message that fails gives way to the plain one
            if isinstance(text, str) and text.strip():
                return text.strip()
        return self.message or f"failed rule: {self.source}"

    def _cause(self, path: str, kind: str, message: str, reason: str) -> Cause:
        where = path + self.field_path if path else self.field_path.removeprefix(".")
        match reason:
            case "FieldValueForbidden":
                text = f"Forbidden: {message}"
            case "FieldValueRequired":
                text = f"Required value: {message}"
            case "FieldValueDuplicate":
                text = f'Duplicate value: "{kind}": {message}'
            case _:
                text = f"Invalid value: {message}"
        return Cause(reason, text, where or "<nil>")


def compile_rules(specs: Sequence[Mapping[str, Any]]) -> tuple[CelRule, ...]:
    """Raises CelSyntaxError for the first rule that does not compile."""
    return tuple(CelRule(spec) for spec in specs)
