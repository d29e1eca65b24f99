"""Every error of an object at once, each with its place, a stable code and a cure.

Serves `gpuplane check` (with places in the file, see `gpuplane.api.manifests`) and admission. It judges by the same
schemas that the API server gets, so both say yes to the same objects; unknown fields, which the API server drops with a
warning, are errors here.

Invariant: what has no error here decodes into its Struct.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from gpuplane.api import components
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.effects import driver_without_effect, why_not, without_effect
from gpuplane.api.finding import Finding
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.gpuqueue import GPUQueue
from gpuplane.api.karpenter import AWSNodeTemplate, EC2NodeClass, NodePool, Provisioner
from gpuplane.api.karpenter_aws_checks import class_problems
from gpuplane.api.karpenter_checks import STATIC, pool_problems
from gpuplane.api.karpenter_crds import (
    DEFINITIONS,
    HOURS_OR_MINUTES,
    LABEL_KEY,
    LABEL_VALUE,
    NODES,
    SCHEDULE,
    SECONDS,
    SECONDS_OR_NEVER,
)
from gpuplane.api.marks import FieldRule
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.nodefeature import GROUP, NodeFeature, NodeFeatureRule
from gpuplane.api.nodefeature_checks import RuleProblem, problems
from gpuplane.api.nodeoverlay import NodeOverlay, overlay_problems
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.api.schema import Schema, rules_of, schema_of
from kubekit.api import quantity
from kubekit.api.meta import KubeObject
from kubekit.errors import InvalidInput

K = TypeVar("K", bound=KubeObject)

POOLS: Final = (Provisioner, NodePool)
CLASSES: Final = (AWSNodeTemplate, EC2NodeClass)
KARPENTER: Final = (*POOLS, NodeClaim, *CLASSES, NodeOverlay)
KINDS: Final[tuple[type[Any], ...]] = (
    *(ClusterPolicy, GPUNode, GPUQueue, NVIDIADriver, NodeFeature, NodeFeatureRule),
    *KARPENTER,
)
"""The kinds that can be checked."""

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def check_object(data: Any, kind: Any = None) -> list[Finding]:
    """All findings about one object, in the order of its fields. `kind`: what it must be, else what it says it is.

    An object of a group that is not ours has none.
    """
    if not isinstance(data, Mapping) or not data.get("kind") or not data.get("apiVersion"):
        if kind is None or not isinstance(data, Mapping):
            return [Finding(code="GP101", path="", message="is no object with apiVersion and kind", at="key")]
    elif kind is None:
        found = _kind_of(str(data["apiVersion"]), str(data["kind"]))
        if isinstance(found, Finding):
            return [found]
        kind = found
    if kind is None:
        return []
    wrong = [*_metadata(data), *_walk(_schema(kind), _known_rules(kind), data)]
    if kind is NodeFeatureRule and not wrong:
        wrong = [_of_rule(problem) for problem in problems(data)]
    if kind in KARPENTER and not wrong:
        wrong = _of_karpenter(kind, data)
    # An error is reported once; the warning that the field has no effect follows when the error is corrected.
    return wrong + [warning for warning in _warnings(kind, data) if not any(_same(warning, it) for it in wrong)]


def _of_rule(problem: RuleProblem) -> Finding:
    return Finding(
        code=problem.code,
        path=problem.path,
        message=problem.message,
        cure=problem.cure,
        at="value" if problem.shown else "key",
        shown=problem.shown,
    )


def _of_karpenter(kind: type[Any], data: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about rules of Karpenter's kinds."""
    found: Iterable[tuple[str, str]] = ()
    if kind in POOLS:
        found = pool_problems(data)
    elif kind in CLASSES:
        found = class_problems(data)
    elif kind is NodeOverlay:
        found = overlay_problems(msgspec.convert(data, NodeOverlay))
    return [
        Finding(code="GP140", path=path, message=message, severity="warning", at="key")
        if path == STATIC
        else Finding(code="GP132", path=path, message=message, at="key")
        for path, message in found
        if path != "metadata.name"  # GP103 is about it
    ]


def _same(warning: Finding, wrong: Finding) -> bool:
    """Return whether both are about one group of fields."""
    group = warning.path.rpartition(".")[0] or warning.path
    return wrong.path.startswith(group)


def errors(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error"]


def decode(kind: type[K], data: Any) -> K:
    """`data` as a Struct. Raises InvalidInput with every finding."""
    found = errors(check_object(data, kind))
    if found:
        count = f"{len(found)} errors" if len(found) > 1 else "1 error"
        name = str((data.get("metadata") or {}).get("name", "")) if isinstance(data, Mapping) else ""
        raise InvalidInput(
            f"{kind.RESOURCE.kind} has {count}", where=name, findings=tuple(str(finding) for finding in found)
        )
    return msgspec.convert(data, kind)


def is_known(data: Mapping[str, Any]) -> bool:
    """Return whether an object is of a kind that can be checked."""
    place = (data.get("apiVersion"), data.get("kind"))
    return any((known.RESOURCE.api_version, known.RESOURCE.kind) == place for known in KINDS)


def _kind_of(api_version: str, kind: str) -> type[Any] | Finding | None:
    """The Struct, a finding when only its group is known, None for what is not ours."""
    group = api_version.partition("/")[0]
    ours = [known for known in KINDS if known.RESOURCE.group == group]
    for known in ours:
        if (known.RESOURCE.api_version, known.RESOURCE.kind) == (api_version, kind):
            return known
    if not ours:
        return None
    if (group, kind) == (GROUP, "NodeFeatureGroup"):
        return Finding(
            code="GP156",
            path="kind",
            message="NodeFeatureGroup is not evaluated, so its status would stay empty",
            cure="a NodeFeatureRule with the same matchFeatures can give the nodes a label",
            shown=_shown(kind),
        )
    same = next((known for known in ours if known.RESOURCE.kind == kind), None)
    if same in KARPENTER:
        return None  # an older version, which Karpenter serves, and gpuplane does not
    if same is not None:
        return Finding(
            code="GP102",
            path="apiVersion",
            message=f"{kind} has no version {api_version.partition('/')[2]}",
            cure=f"did you mean {same.RESOURCE.api_version}?",
            shown=_shown(api_version),
        )
    close = difflib.get_close_matches(kind, [known.RESOURCE.kind for known in ours], 1, 0.8)
    if not close:
        return None  # another product's kind in a group that we share
    return Finding(
        code="GP102",
        path="kind",
        message=f"there is no kind {kind} in {group}",
        cure=f"did you mean {close[0]}?",
        shown=_shown(kind),
    )


@cache
def _schema(kind: Any) -> Schema:
    made = next((served.schema for served in DEFINITIONS if served.kind is kind), None)
    schema = schema_of(kind) if made is None else _without_rules(made())
    schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": _ANYTHING}
    return schema


def _without_rules(schema: Any) -> Any:
    """Return a schema without its rules in CEL: those of Karpenter's kinds stand in Python in modules of their own."""
    if isinstance(schema, dict):
        return {key: _without_rules(part) for key, part in schema.items() if key != "x-kubernetes-validations"}
    return schema


@cache
def _known_rules(kind: Any) -> dict[str, FieldRule]:
    return rules_of(kind)


_ANYTHING: Final[Schema] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _metadata(data: Mapping[str, Any]) -> Iterator[Finding]:
    meta = data.get("metadata")
    if meta is None:
        yield Finding(code="GP103", path="metadata.name", message="the object has no name", at="key")
        return
    if not isinstance(meta, Mapping):
        return  # the walk says so
    name = meta.get("name")
    if name is None and not meta.get("generateName"):
        yield Finding(code="GP103", path="metadata.name", message="the object has no name", at="key")
    elif name is not None and not (isinstance(name, str) and len(name) <= 253 and _NAME.fullmatch(name)):
        cure = re.sub(r"[^a-z0-9.]+", "-", str(name).lower()).strip("-.")
        yield Finding(
            code="GP103",
            path="metadata.name",
            message=f"{name} is no name of an object",
            cure=f"did you mean {cure}?" if _NAME.fullmatch(cure) else "",
            shown=_shown(name),
        )
    for field in ("labels", "annotations"):
        pairs = meta.get(field)
        for key, value in (pairs or {}).items() if isinstance(pairs, Mapping) else ():
            if not isinstance(value, str):
                yield _wrong_type(f"metadata.{field}.{key}", "string", value, {})


# -- the walk ----------------------------------------------------------------------------------------------------------


def _walk(
    schema: Schema, rules: Mapping[str, FieldRule], value: Any, path: str = "", known: Schema | None = None
) -> Iterator[Finding]:
    top = known if known is not None else schema
    if value is None:
        # The API server takes a null for absent where it has a default.
        if not schema.get("nullable") and "default" not in schema:
            yield Finding(
                code="GP118",
                path=path,
                message="is null",
                cure="give it a value, or leave it out",
                at="key",
                shown="null",
            )
        return
    wanted = "int-or-string" if schema.get("x-kubernetes-int-or-string") else schema.get("type", "")
    if not _TYPES[wanted](value):
        yield _wrong_type(path, wanted, value, schema)
        return
    if isinstance(value, str):
        yield from _string(schema, value, path)
    elif isinstance(value, (int, float)) and value > schema.get("maximum", value):
        yield Finding(
            code="GP114",
            path=path,
            message=f"{value} is above {schema['maximum']}",
            cure=f"at most {schema['maximum']}",
            shown=_shown(value),
        )
    elif isinstance(value, (int, float)) and value < schema.get("minimum", value):
        yield Finding(
            code="GP114",
            path=path,
            message=f"{value} is below {schema['minimum']}",
            cure=f"at least {schema['minimum']}",
            shown=_shown(value),
        )
    elif isinstance(value, Mapping):
        yield from _object(schema, rules, value, path, top)
    elif isinstance(value, list):
        yield from _list(schema, rules, value, path, top)


def _object(
    schema: Schema, rules: Mapping[str, FieldRule], value: Mapping[str, Any], path: str, top: Schema
) -> Iterator[Finding]:
    properties: Mapping[str, Schema] = schema.get("properties") or {}
    others = schema.get("additionalProperties")
    failed = False
    for name, child in value.items():
        here = _join(path, str(name))
        if name in properties:
            found = list(_walk(properties[name], rules, child, here, top))
        elif others is not None:
            found = list(_walk(others, rules, child, here, top))
        elif schema.get("x-kubernetes-preserve-unknown-fields"):
            found = []
        else:
            found = [_unknown(str(name), here, properties, top)]
        failed = failed or bool(errors(found))
        yield from found
    for name in schema.get("required", ()):
        if name not in value:
            failed = True
            yield Finding(code="GP115", path=_join(path, name), message="is required", at="key")
    if len(value) > schema.get("maxProperties", len(value)):
        yield Finding(code="GP114", path=path, message=f"has more than {schema['maxProperties']} entries", at="key")
    if failed:
        return  # rules speak about fields that are right in themselves, as in the API server
    for rule in schema.get("x-kubernetes-validations", ()):
        known = rules[rule["rule"]]
        if not known.holds(value):
            yield Finding(code=known.code, path=_join(path, known.at), message=known.message, cure=known.cure, at="key")


def _list(
    schema: Schema, rules: Mapping[str, FieldRule], value: list[Any], path: str, top: Schema
) -> Iterator[Finding]:
    if len(value) > schema.get("maxItems", len(value)):
        yield Finding(code="GP114", path=path, message=f"has more than {schema['maxItems']} entries", at="key")
    if len(value) < schema.get("minItems", 0):
        yield Finding(code="GP114", path=path, message=f"has fewer than {schema['minItems']} entries", at="key")
    keys = schema.get("x-kubernetes-list-map-keys")
    seen: dict[str, int] = {}
    for index, item in enumerate(value):
        here = f"{path}[{index}]"
        yield from _walk(schema["items"], rules, item, here, top)
        if keys and isinstance(item, Mapping):
            identity = _shown([item.get(key) for key in keys])
            first = seen.setdefault(identity, index)
            if first != index:
                said = ", ".join(f"{key} {item.get(key)}" for key in keys)
                yield Finding(
                    code="GP116",
                    path=_join(here, keys[0]),
                    message=f"{said} stands in entry {first} already",
                    shown=_shown(item.get(keys[0])),
                )


def _string(schema: Schema, value: str, path: str) -> Iterator[Finding]:
    allowed = schema.get("enum")
    if allowed is not None and value not in allowed:
        words = [word for word in allowed if word]
        close = difflib.get_close_matches(value.lower(), [word.lower() for word in words], 1)
        meant = next((word for word in words if close and word.lower() == close[0]), "")
        yield Finding(
            code="GP112",
            path=path,
            message=f"{value or 'an empty text'} is not one of {', '.join(words)}",
            cure=f"did you mean {meant}?" if meant else "",
            shown=_shown(value),
        )
    length = len(value)
    if not schema.get("minLength", 0) <= length <= schema.get("maxLength", length):
        bound = f"more than {schema['maxLength']} characters" if value else "no character"
        yield Finding(code="GP114", path=path, message=f"has {bound}", shown=_shown(value))
    pattern = schema.get("pattern")
    if pattern and not re.search(pattern, value):
        yield Finding(code="GP113", path=path, message=f"{value!r} is not {_form(pattern)}", shown=_shown(value))
    if schema.get("format") == "date-time" and not _TIME.fullmatch(value):
        yield Finding(
            code="GP113", path=path, message=f"{value!r} is no time as 2026-01-31T12:00:00Z", shown=_shown(value)
        )


def _form(pattern: str) -> str:
    return {
        components.ABSOLUTE_PATH: "an absolute path",
        components.DURATION_PATTERN: "a duration as 15s or 1m30s",
        components.COUNT_OR_PERCENT: "a number or a percentage as 25%",
        components.IMAGE_PATTERN: "the name of an image",
        LABEL_KEY: "a key of labels and taints",
        LABEL_VALUE: "a value of labels and taints",
        SECONDS: "a duration as 30s or 1h30m",
        SECONDS_OR_NEVER: "a duration as 30s or 1h30m, or Never",
        HOURS_OR_MINUTES: "a duration in hours and minutes as 1h30m",
        NODES: "a number or a percentage from 0% to 100%",
        SCHEDULE: "a schedule of cron with five fields, or one such as @daily",
        quantity.PATTERN: "a quantity as 2, 500m or 5Gi",
    }.get(pattern, f"of the form {pattern}")


_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "int-or-string": lambda value: isinstance(value, (int, str)) and not isinstance(value, bool),
}
_WORDS: Final = {
    "object": "a group of fields",
    "array": "a list",
    "string": "a text",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "int-or-string": "a whole number or a text",
}


def _wrong_type(path: str, wanted: str, value: Any, schema: Schema) -> Finding:
    cure = ""
    match value:
        case bool() if wanted == "string":
            # YAML reads on, off, yes and no as booleans.
            words = schema.get("enum") or ()
            meant = next((word for word in words if word in (("on", "yes") if value else ("off", "no"))), None)
            cure = f'write "{meant or str(value).lower()}", with quotes'
        case int() | float() if wanted in ("string", "int-or-string"):
            cure = f'write "{value}", with quotes'
        case str() if wanted == "boolean" and value.lower() in ("true", "false", "yes", "no", "on", "off"):
            cure = f"write {'true' if value.lower() in ('true', 'yes', 'on') else 'false'}, without quotes"
        case str() if wanted in ("integer", "number") and re.fullmatch(r"-?\d+", value):
            cure = f"write {value}, without quotes"
        case _ if wanted == "array" and not isinstance(value, Mapping):
            cure = f"write [{_shown(value)}]"
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list"}
    given = kinds.get(type(value), "a group of fields")
    return Finding(
        code="GP111", path=path, message=f"must be {_WORDS[wanted]}, is {given}", cure=cure, shown=_shown(value)
    )


def _unknown(name: str, path: str, properties: Mapping[str, Schema], top: Schema) -> Finding:
    cure = ""
    by_lower = {known.lower(): known for known in properties}
    plain = re.sub(r"[-_]", "", name).lower()
    if plain in by_lower:
        cure = f"did you mean {by_lower[plain]}?"
    elif close := difflib.get_close_matches(name.lower(), by_lower, 1, 0.7):
        cure = f"did you mean {by_lower[close[0]]}?"
    elif elsewhere := _find(name, top):
        cure = f"there is {elsewhere}"
    return Finding(code="GP110", path=path, message="is unknown", cure=cure, at="key", shown=name)


def _find(name: str, schema: Schema, path: str = "") -> str:
    """The shortest path at which a field of this name exists."""
    found = []
    for key, child in (schema.get("properties") or {}).items():
        here = _join(path, key)
        if key == name and path:
            found.append(here)
        elif below := _find(name, child, here):
            found.append(below)
    return min(found, key=len, default="")


def _warnings(kind: type[Any], data: Mapping[str, Any]) -> Iterator[Finding]:
    if kind is NVIDIADriver and isinstance(data.get("spec"), Mapping):
        for path, value, why in driver_without_effect(data["spec"]):
            yield Finding(
                code="GP140",
                path=f"spec.{path}",
                message="has no effect in this release",
                cure=why,
                severity="warning",
                at="key",
                shown=_shown(value),
            )
    if kind is not ClusterPolicy:
        return
    spec = data.get("spec")
    for path, value in without_effect(spec) if isinstance(spec, Mapping) else ():
        yield Finding(
            code="GP140",
            path=f"spec.{path}",
            message="has no effect in this release",
            cure=why_not(path),
            severity="warning",
            at="key",
            shown=_shown(value),
        )


def _join(path: str, name: str) -> str:
    if not name:
        return path
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except TypeError:  # dates and the like, which YAML makes and JSON has not
        return str(value)
