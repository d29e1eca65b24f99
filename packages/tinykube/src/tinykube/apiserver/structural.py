"""Structural schemas of custom resources: pruning, defaulting and validation, worded as Kubernetes words it.

A schema is compiled once (`Structural`) and then walks objects. Validation never stops at the first finding; rules in
CEL run where the plain schema holds, as in Kubernetes. On updates, what did not change is not held against the writer
(ratcheting), so a schema that became stricter does not lock old objects.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from kubekit.api.formats import valid_format
from kubekit.api.regexes import regex
from tinykube.apiserver.celrules import CelRule, compile_rules
from tinykube.apiserver.failure import Cause
from tinykube.apiserver.quickcheck import Check, quick

_MISSING: Final = object()
_TYPES: Final[dict[str, Any]] = {"object": dict, "array": list, "string": str, "boolean": bool}
_ROOT_FIELDS: Final = frozenset({"apiVersion", "kind", "metadata"})
_BLOCKING: Final = frozenset(
    (
        "FieldValueRequired",
        "FieldValueTypeInvalid",
        "FieldValueNotSupported",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueNotFound",
    )
)


def json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def shown(value: Any) -> str:
    """A value in an error message: JSON, strings quoted."""
    return msgspec.json.encode(value).decode()


class Structural:
    """One place of a schema, compiled. `root` marks the object itself or an embedded one."""

    def __init__(self, schema: Mapping[str, Any], *, root: bool = False) -> None:
        get = schema.get
        self.type: str = get("type", "")
        self.nullable = bool(get("nullable"))
        self.int_or_string = bool(get("x-kubernetes-int-or-string"))
        self.preserve = bool(get("x-kubernetes-preserve-unknown-fields"))
        self.embedded = root or bool(get("x-kubernetes-embedded-resource"))
        self.default = get("default", _MISSING)
        self.properties = {name: Structural(child) for name, child in (get("properties") or {}).items()}
        extra = get("additionalProperties")
        self.values = Structural(extra) if isinstance(extra, Mapping) else None
        self.any_key = bool(extra) and self.values is None
        items = get("items")
        self.items = Structural(items) if isinstance(items, Mapping) else None
        self.list_type: str = get("x-kubernetes-list-type", "atomic")
        self.keys: tuple[str, ...] = tuple(get("x-kubernetes-list-map-keys") or ())
        self.rules: tuple[CelRule, ...] = compile_rules(get("x-kubernetes-validations") or ())
        self.required: tuple[str, ...] = tuple(get("required") or ())
        self.enum: list[Any] | None = get("enum")
        self.pattern: str = get("pattern") or ""
        self.format: str = get("format") or ""
        self.bounds = {key: schema[key] for key in _BOUNDS if schema.get(key) is not None}
        self.exclusive = (bool(get("exclusiveMinimum")), bool(get("exclusiveMaximum")))
        self.junctors = {
            word: [Structural(child) for child in schema[word]] for word in ("allOf", "anyOf", "oneOf") if get(word)
        }
        self.negated = Structural(schema["not"]) if get("not") else None
        self._quick: Check | None = None
        children = [*self.properties.values(), *(s for s in (self.values, self.items) if s is not None)]
        self.has_rules: bool = bool(self.rules) or any(child.has_rules for child in children)
        self.has_defaults: bool = any(c.default is not _MISSING or c.has_defaults for c in children)

    def _child(self, name: str) -> Structural | None:
        return self.properties.get(name) or self.values

    # -- pruning ----------------------------------------------------------------------------------------------------
    def prune(self, value: Any, old: Any = None) -> list[str]:
        """Drops what the schema does not know, in place; returns the paths of what was dropped.

        Parts that equal their `old` are not looked through: they were when they were stored.
        """
        dropped: list[str] = []
        if isinstance(value, list):
            if self.items is not None:
                for index, item in enumerate(value):
                    if isinstance(item, (dict, list)):
                        dropped += [_below(f"[{index}]", path) for path in self.items.prune(item)]
        elif isinstance(value, dict):
            known = old if isinstance(old, dict) else {}
            for name, item in tuple(value.items()):
                if self.embedded and name in _ROOT_FIELDS:
                    continue
                child = self.properties.get(name) or self.values
                if child is None:
                    if not self.preserve and not self.any_key:
                        del value[name]
                        dropped.append(name)
                elif isinstance(item, (dict, list)):
                    before = known.get(name)
                    if before is None or before != item:
                        dropped += [_below(name, path) for path in child.prune(item, before)]
        return dropped

    # -- defaults ---------------------------------------------------------------------------------------------------
    def fill(self, value: Any) -> None:
        """Sets defaults, in place. A null where none may stand counts as absent."""
        if not self.has_defaults:
            return
        if isinstance(value, list):
            if self.items is not None:
                for item in value:
                    self.items.fill(item)
        elif isinstance(value, dict):
            for name, child in self.properties.items():
                if value.get(name, _MISSING) is None and not child.nullable and child.default is not _MISSING:
                    del value[name]
                if name not in value and child.default is not _MISSING:
                    value[name] = copy.deepcopy(child.default)
                if name in value:
                    child.fill(value[name])
            if self.values is not None:
                for name in value.keys() - self.properties.keys():
                    self.values.fill(value[name])

    # -- validation -------------------------------------------------------------------------------------------------
    def validate(self, value: Any, old: Any = None, scale: Sequence[Cause] = ()) -> list[Cause]:
        """Every finding; CEL rules run only when nothing is missing or of a wrong type.

        `scale` are the findings of the fields that the subresource `scale` names.
        """
        if self._quick is None:
            self._quick = quick(self)
        causes = [] if self._quick(value) else list(self.check(value, "", old))
        causes += scale
        if not self.has_rules:
            return causes
        # Findings of the check of metadata block as well.
        nameless = isinstance(metadata := value.get("metadata"), dict) and not metadata.get("name")
        if nameless or any(cause.reason in _BLOCKING for cause in causes):
            text = (
                "some validation rules were not checked because the object was invalid; "
                "correct the existing errors to complete validation"
            )
            return [*causes, Cause("FieldValueInvalid", f"Invalid value: null: {text}", "<nil>")]
        return causes + list(self.check_rules(value, "", old))

    def check(self, value: Any, path: str, old: Any = None) -> Iterator[Cause]:
        """The findings of the plain schema below `path`."""
        if old is not None and old == value:
            return
        if value is None and self.nullable:
            return
        if not self._type_holds(value):
            if self.int_or_string:
                wanted = "integer,string"
            else:
                wanted = self.type
            found = json_type(value)
            if self.format and isinstance(value, float):  # NB: the words are those of a check of the format
                wanted, found = self.format, "float64"
            text = f'Invalid value: "{found}": {_in(path)} must be of type {wanted}: "{found}"'
            yield Cause("FieldValueTypeInvalid", text, path)
            if wanted == "int32":
                yield from self._check_number(value, path)
            return
        if self.enum is not None and value not in self.enum:
            allowed = ", ".join(shown(item) for item in self.enum)
            text = f"Unsupported value: {shown(value)}: supported values: {allowed}"
            yield Cause("FieldValueNotSupported", text, path)
        if isinstance(value, str):
            yield from self._check_string(value, path)
        elif isinstance(value, dict):
            yield from self._check_object(value, path, old)
        elif isinstance(value, list):
            yield from self._check_list(value, path, old)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield from self._check_number(value, path)
        yield from self._check_junctors(value, path)

    def _type_holds(self, value: Any) -> bool:
        if self.int_or_string:
            return isinstance(value, (int, str)) and not isinstance(value, bool)
        match self.type:
            case "":
                return True
            case "integer":
                return (isinstance(value, int) and not isinstance(value, bool)) or (
                    isinstance(value, float) and value.is_integer()
                )
            case "number":
                return isinstance(value, (int, float)) and not isinstance(value, bool)
            case other:
                return isinstance(value, _TYPES.get(other, object))

    def _check_string(self, value: str, path: str) -> Iterator[Cause]:
        # NB: of these three a real server reports the first only.
        if (most := self.bounds.get("maxLength")) is not None and len(value) > most:
            yield Cause("FieldValueTooLong", f"Too long: may not be more than {most} bytes", path)
        elif (least := self.bounds.get("minLength", 0)) > len(value):
            yield _invalid(path, value, f"{_in(path)} should be at least {least} chars long")
        elif self.pattern and regex(self.pattern).search(value) is None:
            yield _invalid(path, value, f"{_in(path)} should match '{self.pattern}'")
        if self.format and not valid_format(self.format, value):
            text = f"Invalid value: {shown(value)}: {_in(path)} must be of type {self.format}: {shown(value)}"
            yield Cause("FieldValueTypeInvalid", text, path)

    def _check_number(self, value: float, path: str) -> Iterator[Cause]:
        low, high = self.bounds.get("minimum"), self.bounds.get("maximum")
        if self.format == "int32" and (value % 1 or not -(2**31) <= value < 2**31):
            text = f"Checked value must be of type integer with format int32 in {path}"
            yield Cause("FieldValueInvalid", f'Invalid value: "": {text}', "<nil>")
        if step := self.bounds.get("multipleOf"):
            yield from _check_step(value, step, path)
        if low is not None and (value < low or (self.exclusive[0] and value == low)):
            word = "greater than" if self.exclusive[0] else "greater than or equal to"
            yield _invalid(path, value, f"{_in(path)} should be {word} {low}")
        if high is not None and (value > high or (self.exclusive[1] and value == high)):
            word = "less than" if self.exclusive[1] else "less than or equal to"
            yield _invalid(path, value, f"{_in(path)} should be {word} {high}")
        if self.format == "int64" and not -(2**63) <= value < 2**63:
            text = f"Invalid value: {shown(value)}: {_in(path)} must be of type {self.format}: {shown(value)}"
            yield Cause("FieldValueTypeInvalid", text, path)

    def _check_object(self, value: dict[str, Any], path: str, old: Any) -> Iterator[Cause]:
        missing = [name for name in self.required if name not in value or self._absent(name, value[name])]
        for name in missing:
            yield Cause("FieldValueRequired", "Required value", _join(path, name))
        if (least := self.bounds.get("minProperties", 0)) > len(value):
            yield _invalid(path, len(value), f"{_in(path)} should have at least {least} properties")
        if (most := self.bounds.get("maxProperties")) is not None and len(value) > most:
            yield Cause("FieldValueTooMany", f"Too many: {len(value)}: must have at most {most} items", path)
        before = old if isinstance(old, dict) else {}
        for name, item in value.items():
            if self.embedded and name == "metadata":
                continue
            child = self._child(name)
            if child is not None and name not in missing:
                yield from child.check(item, _join(path, name), before.get(name))

    def _absent(self, name: str, value: Any) -> bool:
        """Return whether a field is a null where none may stand."""
        child = self._child(name)
        return value is None and child is not None and not child.nullable

    def _check_list(self, value: list[Any], path: str, old: Any) -> Iterator[Cause]:
        if (least := self.bounds.get("minItems", 0)) > len(value):
            yield _invalid(path, len(value), f"{_in(path)} should have at least {least} items")
        if (most := self.bounds.get("maxItems")) is not None and len(value) > most:
            yield Cause("FieldValueTooMany", f"Too many: {len(value)}: must have at most {most} items", path)
        if self.list_type in ("set", "map"):
            yield from self._check_distinct(value, path)
        if self.items is not None:
            for index, (item, before) in enumerate(zip(value, self._old_items(value, old), strict=True)):
                yield from self.items.check(item, f"{path}[{index}]", before)

    def _check_distinct(self, value: list[Any], path: str) -> Iterator[Cause]:
        seen: set[str] = set()
        for index, item in enumerate(value):
            key = self._key(item) if self.list_type == "map" else item
            text = shown(key)
            if text in seen:
                yield Cause("FieldValueDuplicate", f"Duplicate value: {text}", f"{path}[{index}]")
            seen.add(text)

    def _key(self, item: Any) -> dict[str, Any]:
        return {key: item.get(key) for key in self.keys} if isinstance(item, dict) else {}

    def _old_items(self, value: list[Any], old: Any) -> list[Any]:
        """For each item the old one with the same keys, in a list map; otherwise none."""
        if self.list_type != "map" or not isinstance(old, list):
            return [None] * len(value)
        before = {shown(self._key(item)): item for item in old}
        return [before.get(shown(self._key(item))) for item in value]

    def _check_junctors(self, value: Any, path: str) -> Iterator[Cause]:
        for child in self.junctors.get("allOf", ()):
            yield from child.check(value, path)
        for word, alternatives in self.junctors.items():
            if word == "allOf":
                continue
            results = [list(child.check(value, path)) for child in alternatives]
            holding = sum(not causes for causes in results)
            where = f'"{path}"'
            if not holding:
                text = f"{where} must validate " + (
                    "one and only one schema (oneOf). Found none valid"
                    if word == "oneOf"
                    else "at least one schema (anyOf)"
                )
                yield _of_whole(text)
                yield from min(results, key=len)
            elif word == "oneOf" and holding > 1:
                text = f"{where} must validate one and only one schema (oneOf). Found {holding} valid alternatives"
                yield _of_whole(text)
        if self.negated is not None and not list(self.negated.check(value, path)):
            yield _of_whole(f'"{path}" must not validate the schema (not)')

    def check_rules(self, value: Any, path: str, old: Any = None) -> Iterator[Cause]:
        """The findings of the rules in CEL below `path`."""
        if not self.has_rules or value is None or (old is not None and old == value):
            return
        for rule in self.rules:
            yield from rule.check(value, old, path, self.type)
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for name, item in value.items():
                if child := self._child(name):
                    here = _join(path, name) if name in self.properties else f"{path}[{name}]"
                    yield from child.check_rules(item, here, before.get(name))
        elif isinstance(value, list) and self.items is not None and self.items.has_rules:
            for index, (item, earlier) in enumerate(zip(value, self._old_items(value, old), strict=True)):
                yield from self.items.check_rules(item, f"{path}[{index}]", earlier)


_BOUNDS: Final = (
    "minLength", "maxLength", "minimum", "maximum", "multipleOf",
    "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip


def _below(place: str, path: str) -> str:
    return place + path if path.startswith("[") else f"{place}.{path}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _in(path: str) -> str:
    return f"{path} in body" if path else "in body"


def _check_step(value: float, step: float, path: str) -> Iterator[Cause]:
    """NB: for an integer a real server takes the integral part of the step."""
    if isinstance(value, int):
        step = int(step)
        if step <= 0:
            yield _invalid(path, value, f"factor MultipleOf declared for {path} must be positive: {step}")
            return
    if value % step:
        yield _invalid(path, value, f"{_in(path)} should be a multiple of {step}")


def of_status_alone(causes: Iterable[Cause]) -> list[Cause]:
    """The findings of a write of the status alone: messages name the fields within the status."""
    return [
        msgspec.structs.replace(cause, message=cause.message.replace(f": {cause.field} in body", f": {inner} in body"))
        if (inner := cause.field.removeprefix("status.")) != cause.field
        else cause
        for cause in causes
    ]


def _of_whole(text: str) -> Cause:
    """A finding that a real server reports without the place and the value."""
    return Cause("FieldValueInvalid", f'Invalid value: "": {text}', "<nil>")


def _invalid(path: str, value: Any, message: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {shown(value)}: {message}", path)
