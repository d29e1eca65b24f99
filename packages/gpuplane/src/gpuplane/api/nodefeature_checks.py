"""Checks a NodeFeatureRule beyond its schema, for `gpuplane check` and for the master alike.

Works on plain JSON data that fits the schema. Errors that depend on a node's features (an attribute that is no number)
appear only when the rule is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.nodefeature import VALUES
from gpuplane.api.nodefeature_template import TemplateError, parse
from gpuplane.api.regexps import compile_regexp
from kubekit.api.labels import is_label_name, is_label_value
from kubekit.api.quantity import parse_quantity
from kubekit.errors import InvalidInput

PREFIX: Final = names.FEATURE_PREFIX.rstrip("/")
_LABEL_GROUPS: Final = (PREFIX, "profile.node.kubernetes.io")
_OTHER_GROUPS: Final = (PREFIX,)
_KUBERNETES: Final = ("kubernetes.io", "k8s.io")
_OUR_GROUPS: Final = ("gpuplane.dev", names.KARPENTER_GROUP)
_OURS: Final = (
    names.GPU_PRESENT_LABEL,
    names.NOT_READY_TAINT,
    names.GPU_RESOURCE,
    names.UPGRADE_STATE_LABEL,
    names.DRIVER_OWNER_LABEL,
)
_VERSION: Final = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:[-+].*)?")
_WHOLE: Final = re.compile(r"[+-]?\d+")
_NUMERIC: Final = frozenset(("Gt", "Ge", "Lt", "Le", "GtLt", "GeLe"))
_NOTATION: Final = re.compile(r"@[^.]+\.[^.]+\..+")

_INT64: Final = 2**63
_LONGEST_NUMBER: Final = 40  # digits of a text that is made into a number
_LONGEST_SHOWN: Final = 60  # characters of a value in a message

ANNOTATION_BYTES: Final = 1024


class RuleProblem(msgspec.Struct, frozen=True):
    """One thing wrong: a stable code, the path below the object, what it is, what to do, and the value."""

    code: str
    path: str
    message: str
    cure: str = ""
    shown: str = ""

    def __str__(self) -> str:
        text = f"{self.path} {self.message}"
        return f"{text}; {self.cure}" if self.cure else text


def full_name(name: str) -> str:
    """With the prefix of features, for a name that has none."""
    return name if "/" in name else names.FEATURE_PREFIX + name


def version(text: str) -> tuple[int, int, int]:
    """Major, minor and patch, without what comes after a dash. Raises ValueError."""
    found = _VERSION.fullmatch(text)
    if found is None:
        raise ValueError(f"{_elided(text)!r} is no version as 1.2.3")
    major, minor, patch = (int(part or 0) for part in found.groups())
    return major, minor, patch


def number(text: str) -> int:
    """Raises ValueError for what is no whole number of 64 bits, as upstream reads them."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{_elided(text)!r} is no whole number")
    value = int(text) if len(text) <= _LONGEST_NUMBER else _INT64
    if not -_INT64 <= value < _INT64:
        raise ValueError(f"{_elided(text)} does not fit into 64 bits")
    return value


def _elided(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def problems(data: Mapping[str, Any]) -> Iterator[RuleProblem]:
    """Everything wrong with one NodeFeatureRule, in the order of its fields."""
    for index, rule in enumerate((data.get("spec") or {}).get("rules") or ()):
        yield from _rule(rule, f"spec.rules[{index}]")


def _rule(rule: Mapping[str, Any], path: str) -> Iterator[RuleProblem]:
    for name, value in (rule.get("labels") or {}).items():
        yield from label_problems(name, value, f"{path}.labels")
    for field in ("labelsTemplate", "varsTemplate"):
        yield from _template(rule.get(field) or "", f"{path}.{field}")
    for name, value in (rule.get("annotations") or {}).items():
        yield from annotation_problems(name, value, f"{path}.annotations")
    for index, taint in enumerate(rule.get("taints") or ()):
        yield from taint_problems(taint["key"], f"{path}.taints[{index}].key")
    for name, value in (rule.get("extendedResources") or {}).items():
        yield from resource_problems(name, value, f"{path}.extendedResources")
    yield from _features(rule.get("matchFeatures") or (), f"{path}.matchFeatures")
    for index, way in enumerate(rule.get("matchAny") or ()):
        yield from _features(way.get("matchFeatures") or (), f"{path}.matchAny[{index}].matchFeatures")


def _template(source: str, path: str) -> Iterator[RuleProblem]:
    try:
        parse(source)
    except TemplateError as error:
        where = f" in line {error.line} of it" if error.line else ""
        cure = "docs/components/discovery.md lists what templates may use"
        yield RuleProblem("GP153", path, f"cannot be read: {error}{where}", cure)


def _features(terms: Any, path: str) -> Iterator[RuleProblem]:
    for index, term in enumerate(terms):
        here = f"{path}[{index}]"
        if term["feature"].count(".") != 1:
            yield RuleProblem(
                "GP154",
                f"{here}.feature",
                f"{term['feature']!r} is no feature",
                "write it as pci.device",
                term["feature"],
            )
        for name, expression in (term.get("matchExpressions") or {}).items():
            yield from _expression(expression, f"{here}.matchExpressions.{name}")
        if term.get("matchName"):
            yield from _expression(term["matchName"], f"{here}.matchName")


def _expression(expression: Mapping[str, Any], path: str) -> Iterator[RuleProblem]:
    operator, values, kind = expression["op"], expression.get("value") or [], expression.get("type") or ""
    least, most = VALUES[operator]
    if len(values) < least or (most is not None and len(values) > most):
        wanted = "no value" if most == 0 else f"{least} or more values" if most is None else f"exactly {least}"
        place = f"{path}.value" if values else path
        yield RuleProblem("GP150", place, f"has {len(values)} values; {operator} takes {wanted}", "", str(len(values)))
        return
    if kind and operator not in _NUMERIC:
        cure = f"it is for {', '.join(op for op in VALUES if op in _NUMERIC)}"
        yield RuleProblem("GP151", f"{path}.type", f"does not go with {operator}", cure, kind)
        return
    read: Callable[[str], Any] = str
    if operator in _NUMERIC:
        read = version if kind else number
    elif operator == "InRegexp":
        read = compile_regexp
    found = []
    for index, value in enumerate(values):
        try:
            found.append(read(value))
        except ValueError as error:
            code = "GP152" if operator == "InRegexp" else "GP151"
            what = f"{_elided(value)!r} is no regular expression: {error}" if operator == "InRegexp" else str(error)
            cure = "type: version compares versions" if read is number and _VERSION.fullmatch(value) else ""
            yield RuleProblem(code, f"{path}.value[{index}]", what, cure, value)
            return
    if most == 2 and found[0] >= found[1]:
        yield RuleProblem(
            "GP151", f"{path}.value", f"{values[0]} is not below {values[1]}", "write the lower one first"
        )


# -- names and values, of a rule and of what its templates made --------------------------------------------------------


def label_problems(name: str, value: str, path: str) -> Iterator[RuleProblem]:
    """A label that a Node may not have from a rule; `@feature.element` is judged once its value is known."""
    yield from _name(full_name(name), f"{path}.{name}", _LABEL_GROUPS)
    if value.startswith("@"):
        yield from _notation(value, f"{path}.{name}")
    elif not is_label_value(value):
        what = f"{value!r} is no value of a label"
        yield RuleProblem("GP155", f"{path}.{name}", what, "63 letters, digits, '-', '_' and '.' at most", value)


def annotation_problems(name: str, value: str, path: str) -> Iterator[RuleProblem]:
    yield from _name(full_name(name), f"{path}.{name}", _OTHER_GROUPS)
    if len(value.encode()) > ANNOTATION_BYTES:
        yield RuleProblem("GP155", f"{path}.{name}", f"is longer than {ANNOTATION_BYTES} bytes")


def taint_problems(key: str, path: str) -> Iterator[RuleProblem]:
    if "/" not in key:
        yield RuleProblem("GP154", path, f"{key} has no prefix", f"did you mean {names.FEATURE_PREFIX}{key}?", key)
    else:
        yield from _name(key, path, _OTHER_GROUPS)


def resource_problems(name: str, value: str, path: str) -> Iterator[RuleProblem]:
    yield from _name(full_name(name), f"{path}.{name}", _OTHER_GROUPS)
    if value.startswith("@"):
        yield from _notation(value, f"{path}.{name}")
        return
    try:
        amount = parse_quantity(value)
    except InvalidInput as error:
        yield RuleProblem("GP155", f"{path}.{name}", error.what, error.cure, value)
        return
    if amount < 0 or amount != int(amount):
        yield RuleProblem("GP155", f"{path}.{name}", f"{value} is no whole number of pieces", "", value)


def _notation(value: str, path: str) -> Iterator[RuleProblem]:
    if not _NOTATION.fullmatch(value):
        yield RuleProblem("GP155", path, f"{value} names no element", "write it as @kernel.config.LSM", value)


def _name(name: str, path: str, groups: tuple[str, ...]) -> Iterator[RuleProblem]:
    group, _, base = name.partition("/")
    if not base or not is_label_name(name):
        yield RuleProblem("GP154", path, f"{name} is no name with a prefix", f"write it as {PREFIX}/my-feature", name)
    elif _below(group, _KUBERNETES):
        if not _below(group, groups):
            yield RuleProblem("GP154", path, f"{group} belongs to Kubernetes", f"write it as {PREFIX}/{base}", name)
    elif _is_ours(name):
        yield RuleProblem("GP154", path, f"{name} is set by gpuplane itself", "choose another name", name)


def _is_ours(name: str) -> bool:
    """The names that the operator and the plugin keep; a rule that set them too would fight them for ever.

    The admission policies gpuplane-own-labels and gpuplane-discovery-master refuse the same names.

    NB: `nvidia.com/gpu.deploy.operands` is the administrator's, and a rule is one way to say it.
    """
    gate = name.startswith(names.DEPLOY_PREFIX) and name != names.DEPLOY_OPERANDS_LABEL
    return gate or name in _OURS or _below(name.partition("/")[0], _OUR_GROUPS)


def _below(group: str, groups: Iterable[str]) -> bool:
    """Return whether a prefix is one of `groups`, or a domain below one."""
    return any(group == one or group.endswith(f".{one}") for one in groups)
