"""Rules evaluated on features: pure, and as node feature discovery's documentation says.

Where that leaves a choice: expressions on flags and attributes are one union of names; `DoesNotExist` holds only where
neither has the name; an expression on several instances holds if one instance passes all of a term's expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from gpuplane.api.nodefeature import FeatureMatch, FeatureRule, MatchExpression, NodeFeatureRule
from gpuplane.api.nodefeature_checks import (
    RuleProblem,
    annotation_problems,
    full_name,
    label_problems,
    number,
    resource_problems,
    version,
)
from gpuplane.api.nodefeature_node import WantedFeatures
from gpuplane.api.nodefeature_template import FeatureTemplate, TemplateError, expand_pairs, parse
from gpuplane.api.regexps import compile_regexp
from gpuplane.discovery.features import RULE_MATCHED, Attributes, Features, union
from kubekit.api.core import Taint

Element = Mapping[str, str]
"""Fields of a template: Name, or Name and Value, or an instance's attributes."""
Matched = dict[str, dict[str, list[Element]]]


class RuleError(ValueError):
    """A rule that cannot be evaluated on this node."""


class RuleOutcome(msgspec.Struct, frozen=True):
    """The results of all rules for a node, and the errors by name of the NodeFeatureRule."""

    wanted: WantedFeatures
    failed: Mapping[str, str] = {}


class Output(msgspec.Struct, frozen=True):
    """The result of one matching rule; names as the rule has them."""

    labels: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}


def holds(expression: MatchExpression, value: str | None) -> bool:
    """Return whether an element with this value (None: it is not there) passes. A flag's value is the empty text.

    Raises RuleError for a value of the node that cannot be compared.
    """
    if expression.op in ("Exists", "DoesNotExist"):
        return (value is not None) is (expression.op == "Exists")
    if value is None:
        return False
    match expression.op:
        case "In":
            return value in expression.value
        case "NotIn":
            return value not in expression.value
        case "InRegexp":
            return any(compile_regexp(pattern).matches(value) for pattern in expression.value)
        case "IsTrue":
            return value == "true"
        case "IsFalse":
            return value == "false"
    return _compares(expression, value)


def _compares(expression: MatchExpression, value: str) -> bool:
    read: Callable[[str], Any] = version if expression.type == "version" else number
    try:
        here = read(value)
        bounds = [read(bound) for bound in expression.value]
    except ValueError as error:
        raise RuleError(f"{expression.op}: {error}") from error
    match expression.op:
        case "Gt":
            return bool(here > bounds[0])
        case "Ge":
            return bool(here >= bounds[0])
        case "Lt":
            return bool(here < bounds[0])
        case "Le":
            return bool(here <= bounds[0])
        case "GtLt":
            return bool(bounds[0] < here < bounds[1])
        case "GeLe":
            return bool(bounds[0] <= here <= bounds[1])
    raise RuleError(f"there is no operator {expression.op}")


def _flag_holds(expression: MatchExpression, there: bool) -> bool:
    """Flags have no value: only whether they are there can be asked."""
    return expression.op in ("Exists", "DoesNotExist") and there is (expression.op == "Exists")


def match_term(term: FeatureMatch, features: Features) -> list[Element] | None:
    """The elements that a term matched, None when it does not match. Raises RuleError."""
    name = term.feature.lower()
    if not features.has(name):
        return None
    matched: list[Element] = []
    if term.match_expressions is not None:
        found = _match_values(term.match_expressions, name, features)
        if found is None:
            return None
        matched += found
    if term.match_name is not None:
        named = _match_names(term.match_name, name, features)
        if not named:
            return None
        matched += named
    return matched


def _match_values(expressions: Mapping[str, MatchExpression], name: str, features: Features) -> list[Element] | None:
    flags, attributes = features.flags.get(name), features.attributes.get(name)
    singles: list[Element] | None = None
    if flags is not None or attributes is not None:
        singles = _match_singles(expressions, flags, attributes)
    several = [
        instance
        for instance in features.instances.get(name, ())
        if all(holds(expression, instance.get(key)) for key, expression in expressions.items())
    ]
    if singles is None and not several:
        return None
    return [*(singles or ()), *several]


def _match_singles(
    expressions: Mapping[str, MatchExpression], flags: frozenset[str] | None, attributes: Attributes | None
) -> list[Element] | None:
    matched: list[Element] = []
    for key, expression in sorted(expressions.items()):
        as_flag = flags is not None and _flag_holds(expression, key in flags)
        as_attribute = attributes is not None and holds(expression, attributes.get(key))
        if expression.op == "DoesNotExist":
            answers = [as_flag] * (flags is not None) + [as_attribute] * (attributes is not None)
            if not all(answers):
                return None
        elif not as_flag and not as_attribute:
            return None
        if as_flag:
            matched.append({"Name": key})
        if as_attribute and attributes is not None:
            matched.append({"Name": key, "Value": attributes.get(key, "")})
    return matched


def _match_names(expression: MatchExpression, name: str, features: Features) -> list[Element]:
    matched: list[Element] = [
        {"Name": flag} for flag in sorted(features.flags.get(name, ())) if holds(expression, flag)
    ]
    attributes = features.attributes.get(name, {})
    matched += [{"Name": key, "Value": attributes[key]} for key in sorted(attributes) if holds(expression, key)]
    several = features.instances.get(name, ())
    matched += [instance for instance in several if any(holds(expression, key) for key in instance)]
    return matched


def match_all(terms: Iterable[FeatureMatch], features: Features) -> Matched | None:
    """Return the matches of all terms, by domain and feature as templates address them; None when one does
    not match.
    """
    matched: Matched = {}
    for term in terms:
        found = match_term(term, features)
        if found is None:
            return None
        # As the rule writes it, and in lower case, which is how features are spelled.
        for spelled in {term.feature, term.feature.lower()}:
            domain, _, feature = spelled.partition(".")
            matched.setdefault(domain, {}).setdefault(feature, []).extend(found)
    return matched


@lru_cache(maxsize=256)
def _template(source: str) -> FeatureTemplate:
    return parse(source)


def evaluate(rule: FeatureRule, features: Features) -> Output | None:
    """Return the result of one rule on these features, None when it does not match. Raises RuleError."""
    ways = [found for way in rule.match_any if (found := match_all(way.match_features, features)) is not None]
    if rule.match_any and not ways:
        return None
    if rule.match_features or not rule.match_any:  # a rule that asks nothing holds everywhere
        found = match_all(rule.match_features, features)
        if found is None:
            return None
        ways.append(found)
    labels: dict[str, str] = {}
    variables: dict[str, str] = {}
    for source, made in ((rule.labels_template, labels), (rule.vars_template, variables)):
        for matched in ways if source else ():
            try:
                made |= expand_pairs(_template(source), matched)
            except TemplateError as error:
                where = f" in line {error.line}" if error.line else ""
                raise RuleError(f"its template{where}: {error}") from error
    return Output({**labels, **rule.labels}, {**variables, **rule.vars})


def value_of(value: str, features: Features) -> str:
    """The value itself, or for `@domain.feature.element` that attribute's. Raises RuleError when there is none."""
    if not value.startswith("@"):
        return value
    domain, feature, element = (*value[1:].split(".", 2), "", "")[:3]
    found = features.attributes.get(f"{domain}.{feature}".lower(), {}).get(element)
    if found is None:
        raise RuleError(f"{value} is not there on this node")
    return found


def evaluate_object(rules: NodeFeatureRule, features: Features) -> tuple[WantedFeatures, Attributes]:
    """Return the result of one NodeFeatureRule, and the values that later rules may test. Raises RuleError.

    All or nothing: one rule that cannot be evaluated takes the whole object out.
    """
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: dict[tuple[str, str], Taint] = {}
    resources: dict[str, str] = {}
    left: Attributes = features.attributes.get(RULE_MATCHED, {})
    for rule in rules.spec.rules:
        seen = union(features, Features(attributes={RULE_MATCHED: left}))
        try:
            output = evaluate(rule, seen)
            if output is None:
                continue
            left = {**left, **output.labels, **output.variables}
            for name, value in output.labels.items():
                labels[full_name(name)] = _checked(label_problems, name, value_of(value, seen))
            for name, value in rule.annotations.items():
                annotations[full_name(name)] = _checked(annotation_problems, name, value)
            for name, value in rule.extended_resources.items():
                resources[full_name(name)] = _checked(resource_problems, name, value_of(value, seen))
        except RuleError as error:
            raise RuleError(f"rule {rule.name!r}: {error}") from error
        for taint in rule.taints:
            taints[taint.key, taint.effect] = Taint(key=taint.key, value=taint.value, effect=taint.effect)
    return WantedFeatures(labels, annotations, tuple(taints.values()), resources), left


def _checked(judge: Callable[[str, str, str], Iterator[RuleProblem]], name: str, value: str) -> str:
    """The value, if a Node may have it under this name. Raises RuleError."""
    problem = next(judge(name, value, ""), None)
    if problem is not None:
        raise RuleError(f"{name}: {problem.message}" + (f"; {problem.cure}" if problem.cure else ""))
    return value


def evaluate_objects(objects: Iterable[NodeFeatureRule], features: Features) -> RuleOutcome:
    """Return the result of all NodeFeatureRules in the order of their names; later ones override."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: dict[tuple[str, str], Taint] = {}
    resources: dict[str, str] = {}
    failed: dict[str, str] = {}
    for rules in sorted(objects, key=lambda rules: rules.metadata.name):
        try:
            wanted, left = evaluate_object(rules, features)
        except RuleError as error:
            failed[rules.metadata.name] = str(error)
            continue
        features = union(features, Features(attributes={RULE_MATCHED: left}))
        labels |= wanted.labels
        annotations |= wanted.annotations
        taints |= {(taint.key, taint.effect): taint for taint in wanted.taints}
        resources |= wanted.resources
    return RuleOutcome(WantedFeatures(labels, annotations, tuple(taints.values()), resources), failed)
