"""Find the maps, sets and lists of a component that still name an object that is gone: what grows without end."""

from __future__ import annotations

import asyncio
import gc
import types
from collections import deque
from typing import Any, Final

_CONTAINERS: Final = (dict, set, frozenset, list, tuple, deque)
_SKIPPED: Final = (
    asyncio.AbstractEventLoop,  # it leads to every test that runs, as tasks do
    asyncio.Task,
    type,
    types.ModuleType,
    types.FrameType,
    types.CodeType,
    str,
    bytes,
    int,
    float,
)


def remembered(names: set[str], root: object, *, bounded: tuple[type, ...] = ()) -> list[str]:
    """Return a line for each container with one of the names in a key or an item, of all that `root` leads to.

    Args:
        names: words between slashes, such as the name of a namespace in `namespace/pod`.
        bounded: types that remember a limited number of names, by design.
    """
    found, seen = [], {id(root)}
    waiting: list[tuple[object, str]] = [(root, type(root).__name__)]
    while waiting:
        holder, path = waiting.pop()
        if isinstance(holder, _CONTAINERS) and any(_is_named(names, item) for item in list(holder)):
            found.append(f"{path}: {type(holder).__name__} of {len(holder)}")
        for one, step in _below(holder):
            if id(one) not in seen and not isinstance(one, (*_SKIPPED, *bounded)):
                seen.add(id(one))
                waiting.append((one, f"{path}{step}"))
    return sorted(found)


def _below(holder: Any) -> list[tuple[object, str]]:
    """Return what an object leads to, and the step to it."""
    if isinstance(holder, dict):
        return [(value, f"[{key}]") for key, value in list(holder.items())]
    if isinstance(holder, types.FunctionType):
        return [(cell, "") for cell in holder.__closure__ or ()]
    fields = getattr(holder, "__dict__", None) or {}
    named = [(value, f".{name}") for name, value in fields.items()]
    return [*named, *((one, f" > {type(one).__name__}") for one in gc.get_referents(holder) if one is not fields)]


def _is_named(names: set[str], item: object) -> bool:
    if isinstance(item, str):
        return not names.isdisjoint(item.split("/"))
    return isinstance(item, tuple) and any(_is_named(names, part) for part in item)
