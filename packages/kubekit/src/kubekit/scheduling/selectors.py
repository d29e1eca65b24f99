"""Label selectors and node selector terms, compiled once and matched often.

Compiled selectors are frozen and hashable: the cache counts pods per selector, so equal selectors must be equal keys.
An empty label selector matches everything; no selector (None) matches nothing; an empty node selector term matches no
node (all three as in Kubernetes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec


class Requirement(msgspec.Struct, frozen=True):
    """`key operator values`; operator is In, NotIn, Exists, DoesNotExist, Gt or Lt (the last two for nodes only)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
            case _:
                return False

    def _compares(self, value: str | None) -> bool:
        try:
            have, want = int(value or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return have > want if self.operator == "Gt" else have < want


class Selector(msgspec.Struct, frozen=True):
    """A label selector: all requirements must hold."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def extended(self, more: Iterable[Requirement]) -> Selector:
        return Selector(self.requirements + tuple(more))


EVERYTHING: Final = Selector()


class NodeTerm(msgspec.Struct, frozen=True):
    """One node selector term: all expressions (labels) and fields (only metadata.name exists) must hold."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        if not self.expressions and not self.fields:
            return False
        return all(e.matches(labels) for e in self.expressions) and all(
            f.matches({"metadata.name": name}) for f in self.fields
        )


def requirements(raw: Iterable[Mapping[str, Any]] | None) -> tuple[Requirement, ...]:
    """Compiles `matchExpressions` or `matchFields`."""
    return tuple(Requirement(e["key"], e["operator"], tuple(str(v) for v in e.get("values") or ())) for e in raw or ())


def equalities(labels: Mapping[str, str] | None) -> tuple[Requirement, ...]:
    return tuple(Requirement(key, "In", (value,)) for key, value in sorted((labels or {}).items()))


def compile_selector(raw: Mapping[str, Any] | None) -> Selector | None:
    """A `LabelSelector` object; None stays None (matches nothing)."""
    if raw is None:
        return None
    return Selector(equalities(raw.get("matchLabels")) + requirements(raw.get("matchExpressions")))


def compile_node_term(raw: Mapping[str, Any]) -> NodeTerm:
    return NodeTerm(requirements(raw.get("matchExpressions")), requirements(raw.get("matchFields")))


def compile_node_terms(raw: Mapping[str, Any] | None) -> tuple[NodeTerm, ...] | None:
    """A `NodeSelector` object (its terms are alternatives); None when there is none."""
    if raw is None:
        return None
    return tuple(compile_node_term(term) for term in raw.get("nodeSelectorTerms") or ())
