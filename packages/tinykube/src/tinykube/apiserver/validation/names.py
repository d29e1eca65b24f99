"""Validates names, labels and selectors, in the API server's words."""

from __future__ import annotations

import re
from typing import Any, Final

from tinykube.apiserver.failure import Cause, invalid_value, required

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


def qualified(key: str) -> str | None:
    """Return the error of a label or annotation key, None if it is valid."""
    if key.count("/") > 1:
        return (
            f"a valid label key must {QUALIFIED_TEXT.removeprefix('name part must ')} with an optional DNS subdomain "
            "prefix and '/' (e.g. 'example.com/MyName')"
        )
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or len(prefix) > 253 or not SUBDOMAIN.match(prefix)):
        return f"prefix part {SUBDOMAIN_TEXT}"
    if len(name) > 63:
        return "name part must be no more than 63 bytes"
    return None if QUALIFIED.match(name) else QUALIFIED_TEXT


def validate_labels(labels: Any, field: str) -> list[Cause]:
    if not isinstance(labels, dict):
        return [invalid_value(field, labels, "must be an object of strings")]
    causes: list[Cause] = []
    for key, value in labels.items():
        wrong = qualified(key)
        if wrong:
            causes.append(invalid_value(field, key, wrong))
        if not isinstance(value, str):
            causes.append(invalid_value(field, value, "must be a string"))
        elif len(value) > 63:
            causes.append(invalid_value(field, value, "must be no more than 63 bytes"))
        elif value and not QUALIFIED.match(value):
            causes.append(invalid_value(field, value, VALUE_TEXT))
    return causes


def dns_label(name: Any, field: str) -> list[Cause]:
    if not name:
        return [required(field)]
    if not isinstance(name, str) or len(name) > 63 or not DNS_LABEL.match(name):
        return [invalid_value(field, name, LABEL_TEXT)]
    return []


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
            text = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            causes.append(Cause("FieldValueForbidden", text, f"{where}.values"))
        wrong = qualified(str(term.get("key") or ""))
        if wrong:
            causes.append(invalid_value(f"{where}.key", str(term.get("key")), wrong))
    return causes
