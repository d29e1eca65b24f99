"""Validates the policies of a Job: podFailurePolicy, successPolicy and the failures of single indexes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import Cause, duplicate, invalid_value, not_supported, required
from tinykube.apiserver.validation.names import qualified_name
from tinykube.apiserver.validation.tables import Object, RuleTable, at_most_items, not_negative, one_of

_ACTIONS: Final = ("Count", "FailIndex", "FailJob", "Ignore")
_OPERATORS: Final = ("In", "NotIn")
_STATUSES: Final = ("False", "True", "Unknown")
_REPLACEMENTS: Final = ("Failed", "TerminatingOrFailed")
_MANY: Final = 100_000  # completions, from which on failed indexes are limited
_MOST_FAILED: Final = 10_000
_INDEXED: Final = "requires indexed completion mode"

FAILED_INDEXES: Final = RuleTable(("backoffLimitPerIndex", not_negative), ("maxFailedIndexes", not_negative))


def _word(value: Any, where: str, words: tuple[str, ...]) -> Iterator[Cause]:
    if not value:
        listed = " ".join(f'"{word}"' for word in words)
        yield required(where, f"valid values: [{listed}]")
    elif value not in words:
        yield not_supported(where, value, words)


def _values(requirement: Any, where: str) -> Iterator[Cause]:
    """The exit codes of a rule: distinct, in order, and none that is no failure."""
    values = requirement.get("values") or []
    if not values:
        yield invalid_value(where, values, "at least one value is required")
        return
    yield from at_most_items(255)(values, where)
    for index, value in enumerate(values):
        if value == 0 and requirement.get("operator") == "In":
            yield invalid_value(f"{where}[{index}]", value, "must not be 0 for the In operator")
        if value in values[:index]:
            yield duplicate(f"{where}[{index}]", value)
    if values != sorted(values):
        yield invalid_value(where, values, "must be ordered")


def _exit_codes(requirement: Object, where: str, containers: set[str]) -> Iterator[Cause]:
    yield from _word(requirement.get("operator"), f"{where}.operator", _OPERATORS)
    name = requirement.get("containerName")
    if name is not None and name not in containers:
        text = "must be one of the container or initContainer names in the pod template"
        yield invalid_value(f"{where}.containerName", name, text)
    yield from _values(requirement, f"{where}.values")


def _condition(pattern: Any, where: str) -> Iterator[Cause]:
    yield from qualified_name(pattern.get("type") or "", f"{where}.type")
    yield from _word(pattern.get("status"), f"{where}.status", _STATUSES)


_CONDITIONS: Final = RuleTable(("onPodConditions", at_most_items(20)), ("onPodConditions[]", _condition))


def _failure_rule(spec: Object, rule: Object, where: str, containers: set[str]) -> Iterator[Cause]:
    action, codes, conditions = rule.get("action"), rule.get("onExitCodes"), rule.get("onPodConditions")
    if action == "FailIndex":
        if spec.get("backoffLimitPerIndex") is None:
            yield invalid_value(f"{where}.action", action, "requires the backoffLimitPerIndex to be set")
    else:
        yield from _word(action, f"{where}.action", _ACTIONS)
    if codes is not None:
        yield from _exit_codes(codes, f"{where}.onExitCodes", containers)
    yield from _CONDITIONS(rule, where)
    if codes is not None and conditions:
        yield _of_rule(where, "specifying both OnExitCodes and OnPodConditions is not supported")
    elif codes is None and not conditions:
        yield _of_rule(where, "specifying one of OnExitCodes and OnPodConditions is required")


def _of_rule(where: str, message: str) -> Cause:
    """A finding about a rule as a whole, whose value the real API server does not print."""
    return Cause("FieldValueInvalid", f"Invalid value: {message}", where)


def _failure_policy(spec: Object, where: str) -> Iterator[Cause]:
    pod = (spec.get("template") or {}).get("spec") or {}
    containers = {
        container.get("name") for field in ("containers", "initContainers") for container in pod.get(field) or ()
    }
    rules = spec["podFailurePolicy"].get("rules") or ()
    yield from at_most_items(20)(rules, f"{where}.rules")
    for index, rule in enumerate(rules):
        yield from _failure_rule(spec, rule, f"{where}.rules[{index}]", containers)


def _parse_ranges(text: str, completions: int) -> tuple[int, str]:
    """Return how many indexes a text like `0-2,5` names, and what is wrong with it, as the real server words it."""
    total, last = 0, -1
    for part in text.split(",") if text else ():
        numbers = []
        for word in part.split("-"):
            if not word.isdecimal():
                return 0, f"cannot convert string to integer for index: {_quoted(word)}"
            if int(word) >= completions:
                return 0, f"too large index: {_quoted(word)}"
            numbers.append(int(word))
        if len(numbers) > 2:
            text = "violates the requirement that an index interval can have at most two parts separated by '-'"
            return 0, f"the fragment {_quoted(part)} {text}"
        first, end = numbers[0], numbers[-1]
        if first <= last:
            return 0, f"non-increasing order, previous: {last}, current: {first}"
        if len(numbers) == 2 and end <= first:
            return 0, f"non-increasing order, previous: {first}, current: {end}"
        total, last = total + end - first + 1, end
    return total, ""


def _quoted(word: str) -> str:
    return f'"{word}"'


def _success_rule(rule: Object, where: str, completions: int) -> Iterator[Cause]:
    indexes, count = rule.get("succeededIndexes"), rule.get("succeededCount")
    if indexes is None and count is None:
        yield required(where, "at least one of succeededCount or succeededIndexes must be specified")
    total, wrong = 0, ""
    if indexes is not None:
        total, wrong = _parse_ranges(indexes, completions)
        if wrong:
            yield invalid_value(f"{where}.succeededIndexes", indexes, f"error parsing succeededIndexes: {wrong}")
    if count is None:
        return
    field = f"{where}.succeededCount"
    yield from not_negative(count, field)
    if count > completions:
        text = f"must be less than or equal to {completions} (the number of specified completions)"
        yield invalid_value(field, count, text)
    if indexes is not None and count > total:
        text = f"must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
        yield invalid_value(field, count, text)


def _success_policy(spec: Object, where: str) -> Iterator[Cause]:
    rules = spec["successPolicy"].get("rules") or ()
    if not rules:
        yield required(f"{where}.rules", "at least one rules must be specified when the successPolicy is specified")
    yield from at_most_items(20)(rules, f"{where}.rules")
    for index, rule in enumerate(rules):
        yield from _success_rule(rule, f"{where}.rules[{index}]", spec.get("completions") or 0)


def _as_in_go(policy: Object) -> Object:
    """A success policy under the names that the real API server prints."""
    names = ("SucceededIndexes", "SucceededCount")
    rules = [{name: rule.get(name[0].lower() + name[1:]) for name in names} for rule in policy.get("rules") or ()]
    return {"Rules": rules}


def validate_failed_indexes(spec: Object, where: str) -> Iterator[Cause]:
    """The limits of failures of an index and of failed indexes."""
    limit, most = spec.get("backoffLimitPerIndex"), spec.get("maxFailedIndexes")
    if spec.get("completionMode") != "Indexed":
        for name, value in (("backoffLimitPerIndex", limit), ("maxFailedIndexes", most)):
            if value is not None:
                yield invalid_value(f"{where}.{name}", value, _INDEXED)
        return
    completions = spec.get("completions")
    if completions is None:
        return
    if most is not None and most > completions:
        yield invalid_value(f"{where}.maxFailedIndexes", most, "must be less than or equal to completions")
    if limit is None or completions <= _MANY:
        return
    if most is None:
        yield required(f"{where}.maxFailedIndexes", f"must be specified when completions is above {_MANY}")
    elif most > _MOST_FAILED:
        text = f"must be less than or equal to {_MOST_FAILED} when completions are above {_MANY} and used with backoff "
        yield invalid_value(f"{where}.maxFailedIndexes", most, f"{text}limit per index")


def validate_policies(spec: Object, where: str) -> Iterator[Cause]:
    """Check the policies about failed and succeeded pods, and about their replacement."""
    if spec.get("podFailurePolicy") is not None:
        yield from _failure_policy(spec, f"{where}.podFailurePolicy")
    if spec.get("successPolicy") is not None:
        if spec.get("completionMode") != "Indexed":
            yield invalid_value(f"{where}.successPolicy", _as_in_go(spec["successPolicy"]), _INDEXED)
        else:
            yield from _success_policy(spec, f"{where}.successPolicy")
    replacement = spec.get("podReplacementPolicy")
    if replacement is not None:
        allowed = _REPLACEMENTS[:1] if spec.get("podFailurePolicy") is not None else _REPLACEMENTS
        yield from one_of(*allowed)(replacement, f"{where}.podReplacementPolicy")
