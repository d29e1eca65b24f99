"""Label and field selectors as URLs carry them, parsed once into something quick to ask.

A selector that names one value of an indexed field (`metadata.name=x`, `spec.nodeName=n`) also says so (`equal`), which
is what lets the store look objects and watchers up instead of scanning them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tinykube.apiserver.failure import bad_request

Object = dict[str, Any]

_SET_TERM = re.compile(r"^(\S+)\s+(in|notin)\s*\(([^()]*)\)$")
_EQUAL_TERM = re.compile(r"^([^\s=!]+)\s*(==|=|!=)\s*(.*)$")
_ORDER_TERM = re.compile(r"^([^\s=!<>]+)\s*([<>])\s*(-?\d+)$")
_KEY = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
_SPLIT = re.compile(r",(?![^()]*\))")


class CompiledSelector:
    """Requirements that must all hold. `equal` maps a label to its only value, `others` holds the rest."""

    __slots__ = ("equal", "others")

    def __init__(self, equal: dict[str, str], others: tuple[tuple[str, str, frozenset[str]], ...]) -> None:
        self.equal = equal
        self.others = others

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        labels = labels or {}
        for key, value in self.equal.items():
            if labels.get(key) != value:
                return False
        for key, operator, values in self.others:
            found = labels.get(key)
            if operator == "in":
                if found not in values:
                    return False
            elif operator == "notin":
                if found in values and found is not None:
                    return False
            elif operator == "exists":
                if found is None:
                    return False
            elif operator in ("<", ">"):
                if not _ordered(found, operator, values):
                    return False
            elif found is not None:
                return False
        return True


def _ordered(found: str | None, operator: str, values: frozenset[str]) -> bool:
    (bound,) = values
    try:
        number = int(found or "")
    except ValueError:
        return False
    return number < int(bound) if operator == "<" else number > int(bound)


@lru_cache(maxsize=1024)
def parse_labels(text: str) -> CompiledSelector | None:
    """A label selector, None if it selects everything. Raises ApiFailure 400."""
    equal: dict[str, str] = {}
    others: list[tuple[str, str, frozenset[str]]] = []
    for raw in _SPLIT.split(text):
        term = raw.strip()
        if not term:
            continue
        if found := _SET_TERM.match(term):
            key, operator, listed = found.groups()
            others.append((key, operator, frozenset(word.strip() for word in listed.split(","))))
        elif found := _EQUAL_TERM.match(term):
            key, operator, value = found.groups()
            if "=" in value:
                raise bad_request("found '=', expected: ',' or 'end of string'")
            if operator == "!=":
                others.append((key, "notin", frozenset((value,))))
            elif equal.setdefault(key, value) != value:
                others.append((key, "in", frozenset((value,))))
        elif found := _ORDER_TERM.match(term):
            key, operator, value = found.groups()
            others.append((key, operator, frozenset((value,))))
        elif term.startswith("!"):
            key = term[1:].strip()
            if not key:
                raise bad_request("unable to parse requirement: found '', expected: identifier")
            others.append((key, "absent", frozenset()))
        else:
            key = term
            others.append((key, "exists", frozenset()))
        if "(" in term and ")" not in term:
            raise bad_request("unable to parse requirement: found '', expected: ',' or ')'")
        if not _KEY.match(key):
            text = (
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
                "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            )
            raise bad_request(f'unable to parse requirement: <nil>: Invalid value: "{key}": {text}')
    return CompiledSelector(equal, tuple(others)) if equal or others else None


def selector_of(selector: Mapping[str, Any] | None) -> CompiledSelector | None:
    """A `metav1.LabelSelector` of an object (matchLabels, matchExpressions); None if it selects everything."""
    if not selector:
        return None
    names = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    others = tuple(
        (term["key"], names[term["operator"]], frozenset(term.get("values") or ()))
        for term in selector.get("matchExpressions") or ()
    )
    return CompiledSelector(dict(selector.get("matchLabels") or {}), others)


class FieldSelector:
    """Requirements on fields: `(path, value, wanted)`; `equal` as in labels, by the field's dotted name."""

    __slots__ = ("equal", "terms")

    def __init__(self, equal: dict[str, str], terms: tuple[tuple[tuple[str, ...], str, bool], ...]) -> None:
        self.equal = equal
        self.terms = terms

    def matches(self, obj: Object) -> bool:
        return all((field_text(obj, path) == value) is wanted for path, value, wanted in self.terms)


def field_text(obj: Object, path: tuple[str, ...]) -> str:
    """The field as a selector compares it; empty when it is absent."""
    if path == _EVENT_SOURCE:
        source = obj.get("source")
        return str((source.get("component") if isinstance(source, dict) else "") or obj.get("reportingComponent") or "")
    value: Any = obj
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            # Kubernetes compares typed fields, so that an absent boolean or number is its zero value.
            return "false" if path[-1] in _BOOLEANS else "0" if path[-1] in _NUMBERS else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


_EVENT_SOURCE = ("source",)  # of an Event: its component, or the controller that reports it
_BOOLEANS = frozenset(("unschedulable", "hostNetwork"))
_NUMBERS = frozenset(("replicas", "successful"))
# Events are stored in their v1 form, whichever form a client selects by.
_ALIASES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("reportingController",): ("reportingComponent",),
}


def _stored_path(name: str) -> tuple[str, ...]:
    path = tuple(name.split("."))
    if path[0] == "regarding":
        return ("involvedObject", *path[1:])
    return _ALIASES.get(path, path)


@lru_cache(maxsize=8192)
def parse_fields(text: str, selectable: tuple[str, ...]) -> FieldSelector | None:
    """A field selector, None if it selects everything. Raises ApiFailure 400 for a field that `selectable` lacks."""
    equal: dict[str, str] = {}
    terms: list[tuple[tuple[str, ...], str, bool]] = []
    for raw in text.split(","):
        term = raw.strip()
        if not term:
            continue
        found = _EQUAL_TERM.match(term)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        name, operator, value = found.groups()
        if name not in ("metadata.name", "metadata.namespace") and name not in selectable:
            unknown = f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'
            raise bad_request(f"field label not supported: {name}" if selectable else unknown)
        wanted = operator != "!="
        terms.append((_stored_path(name), value, wanted))
        if wanted:
            equal[name] = value
    return FieldSelector(equal, tuple(terms)) if terms else None
