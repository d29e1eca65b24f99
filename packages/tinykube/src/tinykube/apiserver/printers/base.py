"""The interface of printers: the columns of one kind and how a row of it is made.

Column names, their order and the way values are written are kubectl's own, since scripts read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from kubekit.api.durations import age

Object = Mapping[str, Any]
NONE = "<none>"


class TableColumn(NamedTuple):
    """A column of `priority` 0 is always printed, 1 with `-o wide` only."""

    name: str
    priority: int = 0
    type: str = "string"
    format: str = ""
    description: str = ""


class Printer(NamedTuple):
    columns: tuple[TableColumn, ...]
    row: Callable[[Object, datetime], list[Any]]


def columns(text: str) -> tuple[TableColumn, ...]:
    """Columns from `NAME READY wide:IP restarts#`: `_` is a space, `wide:` a wide column, `#` an integer one, `?` a
    boolean one."""
    made = []
    for word in text.split():
        priority = 1 if word.startswith("wide:") else 0
        kind = {"#": "integer", "?": "boolean"}.get(word[-1], "string")
        name = word.removeprefix("wide:").rstrip("#?").replace("_", " ")
        made.append(TableColumn(name, priority, kind, "name" if name == "Name" else ""))
    return tuple(made)


def get(obj: Any, *path: str | int, default: Any = None) -> Any:
    """The value at `path`; `default` where anything on the way is missing or null."""
    for part in path:
        if isinstance(part, int):
            if not isinstance(obj, list) or len(obj) <= part:
                return default
        elif not isinstance(obj, Mapping) or part not in obj:
            return default
        obj = obj[part]
    return default if obj is None else obj


def name(obj: Object) -> str:
    return str(get(obj, "metadata", "name", default=""))


def created(obj: Object, now: datetime) -> str:
    return age(get(obj, "metadata", "creationTimestamp"), now)


def join(values: list[str], most: int | None = None) -> str:
    """`a,b,c` or `<none>`; more than `most` values end in `+ N more...`."""
    if not values:
        return NONE
    if most is not None and len(values) > most:
        return f"{','.join(values[:most])} + {len(values) - most} more..."
    return ",".join(values)


def labels_text(labels: Mapping[str, str]) -> str:
    return join([f"{key}={value}" for key, value in sorted(labels.items())])


def selector_text(selector: Any) -> str:
    """A label selector as `a=b,c in (d,e)`."""
    if not selector:
        return NONE
    parts = [f"{key}={value}" for key, value in sorted(get(selector, "matchLabels", default={}).items())]
    for rule in get(selector, "matchExpressions", default=[]):
        key, operator, values = rule["key"], rule["operator"], ",".join(sorted(rule.get("values") or []))
        if operator == "In":
            parts.append(f"{key} in ({values})")
        elif operator == "NotIn":
            parts.append(f"{key} notin ({values})")
        else:
            parts.append(key if operator == "Exists" else f"!{key}")
    return join(parts)


def containers_and_images(obj: Object, *path: str) -> list[str]:
    containers = get(obj, *path, "spec", "containers", default=[])
    return [
        join([c.get("name", "") for c in containers]).replace(NONE, ""),
        join([c.get("image", "") for c in containers]).replace(NONE, ""),
    ]


def bool_text(value: Any) -> str:
    return "true" if value else "false"
