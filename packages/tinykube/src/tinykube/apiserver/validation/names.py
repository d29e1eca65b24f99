"""Validates names, labels and selectors, in the API server's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from tinykube.apiserver.failure import Cause, forbidden_value, invalid_value, required

_LABEL_PATTERN: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN_PATTERN: Final = rf"{_LABEL_PATTERN}(\.{_LABEL_PATTERN})*"
DNS_LABEL: Final = re.compile(rf"^{_LABEL_PATTERN}$")
SUBDOMAIN: Final = re.compile(rf"^{_SUBDOMAIN_PATTERN}$")
DNS_1035: Final = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
QUALIFIED: Final = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")

SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
DNS_1035_TEXT: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
QUALIFIED_TEXT: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
CONFIG_KEY_TEXT: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


@lru_cache(maxsize=4096)
def qualified(key: str) -> tuple[str, ...]:
    """Return the errors of a label or annotation key, none if it is valid."""
    if key.count("/") > 1:
        return (
            f"a valid label key must {QUALIFIED_TEXT.removeprefix('name part must ')} with an optional DNS subdomain "
            "prefix and '/' (e.g. 'example.com/MyName')",
        )
    prefix, slash, name = key.rpartition("/")
    errors = []
    if slash and not prefix:
        errors.append("prefix part must be non-empty")
    elif slash and (len(prefix) > 253 or not SUBDOMAIN.match(prefix)):
        errors.append(f"prefix part {SUBDOMAIN_TEXT}")
    if not name:
        errors.append("name part must be non-empty")
    elif len(name) > 63:
        errors.append("name part must be no more than 63 bytes")
    if not QUALIFIED.match(name):
        errors.append(QUALIFIED_TEXT)
    return tuple(errors)


def qualified_name(value: Any, where: str) -> Iterator[Cause]:
    """A check of a key: `name`, or `domain/name`."""
    yield from (invalid_value(where, value, error) for error in qualified(value))


def label_value(value: Any, where: str) -> Iterator[Cause]:
    if len(value) > 63:
        yield invalid_value(where, value, "must be no more than 63 bytes")
    if value and not QUALIFIED.match(value):
        yield invalid_value(where, value, VALUE_TEXT)


def validate_labels(labels: Any, field: str) -> list[Cause]:
    if not isinstance(labels, dict):
        return [invalid_value(field, labels, "must be an object of strings")]
    causes: list[Cause] = []
    for key, value in labels.items():
        causes += [invalid_value(field, key, error) for error in qualified(key)]
        if not isinstance(value, str):
            causes.append(invalid_value(field, value, "must be a string"))
        elif value and (len(value) > 63 or not QUALIFIED.match(value)):
            causes += label_value(value, field)
    return causes


def dns_label(value: Any, where: str) -> Iterator[Cause]:
    if len(value) > 63:
        yield invalid_value(where, value, "must be no more than 63 characters")
    if not DNS_LABEL.match(value):
        yield invalid_value(where, value, LABEL_TEXT)


def dns_subdomain(value: Any, where: str) -> Iterator[Cause]:
    if len(value) > 253:
        yield invalid_value(where, value, "must be no more than 253 characters")
    if not SUBDOMAIN.match(value):
        yield invalid_value(where, value, SUBDOMAIN_TEXT)


def port_name(value: Any, where: str) -> Iterator[Cause]:
    """A name of a port, as the registry of services has it."""
    if len(value) > 15:
        yield invalid_value(where, value, "must be no more than 15 characters")
    if not re.fullmatch(r"[-a-z0-9]+", value):
        yield invalid_value(where, value, "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search(r"[a-z]", value):
        yield invalid_value(where, value, "must contain at least one letter (a-z)")
    if "--" in value:
        yield invalid_value(where, value, "must not contain consecutive hyphens")
    if value.startswith("-") or value.endswith("-"):
        yield invalid_value(where, value, "must not begin or end with a hyphen")


def config_key(value: Any, where: str) -> Iterator[Cause]:
    """A key of a ConfigMap or Secret."""
    if len(value) > 253:
        yield invalid_value(where, value, "must be no more than 253 characters")
    if not re.fullmatch(r"[-._a-zA-Z0-9]+", value):
        yield invalid_value(where, value, CONFIG_KEY_TEXT)
    elif value in (".", ".."):
        yield invalid_value(where, value, f"must not be '{value}'")
    elif value.startswith(".."):
        yield invalid_value(where, value, "must not start with '..'")


_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def validate_selector(selector: Any, field: str) -> list[Cause]:
    """A `metav1.LabelSelector`."""
    if not isinstance(selector, dict):
        return [invalid_value(field, selector, "must be an object")]
    causes = validate_labels(selector.get("matchLabels") or {}, f"{field}.matchLabels")
    for index, term in enumerate(selector.get("matchExpressions") or ()):
        where = f"{field}.matchExpressions[{index}]"
        operator = term.get("operator")
        if operator not in _OPERATORS:
            causes.append(invalid_value(f"{where}.operator", str(operator), "not a valid selector operator"))
        if operator in ("In", "NotIn") and not term.get("values"):
            causes.append(required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
        if operator in ("Exists", "DoesNotExist") and term.get("values"):
            text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            causes.append(forbidden_value(f"{where}.values", text))
        causes += qualified_name(str(term.get("key") or ""), f"{where}.key")
    return causes
