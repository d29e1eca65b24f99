"""docker: `runtimes`, `default-runtime` and `features.cdi` in daemon.json; everything else, and its layout, stays.

NB: a docker that reloads its file takes the values in it, and retains its earlier values for the rest. So
it forgets a runtime, or a default, only by reading something else in its place (`between`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuplane import names
from gpuplane.toolkit import json_edit as edit
from gpuplane.toolkit.places import RuntimePaths
from kubekit.errors import InvalidInput

_DEFAULT = ("default-runtime",)
_CDI = ("features", "cdi")
_CDI_DIRS = ("cdi-spec-dirs",)
_OUR_DIR = f"/{names.CDI_DIR}"
_CDI_IS_ON = (28, 2)
STOCK = "runc"  # the runtime that docker has by itself
_TYPES: dict[tuple[str, ...], tuple[type, str]] = {
    ("runtimes",): (dict, "an object"),
    ("features",): (dict, "an object"),
    _DEFAULT: (str, "a string"),
    _CDI: (bool, "true or false"),
    _CDI_DIRS: (list, "an array"),
}


def configure(
    main: str, where: str, *, programs: Mapping[str, str], default: str | None, docker: tuple[int, ...] = ()
) -> str:
    """daemon.json with our runtimes; the arguments as for containerd, `docker` being docker's version.

    Raises:
        InvalidInput: the file does not parse, or has wrong types where ours belongs.
    """
    data = edit.parse(main, where)
    for path, (kind, words) in _TYPES.items():
        found = _get(data, path)
        if found is not None and not isinstance(found, kind):
            raise InvalidInput(
                f"{'.'.join(path)} is not {words}",
                where=edit.place_of(main, path, where),
                cure="repair it; nothing was changed",
            )
    for name, program in programs.items():
        main = edit.set_value(main, ("runtimes", name), _runtime(program), where)
    if default is not None:
        main = edit.set_value(main, _DEFAULT, default, where)
    if docker < _CDI_IS_ON or _get(data, _CDI) is False:
        main = edit.set_value(main, _CDI, True, where)
    dirs = _get(data, _CDI_DIRS)
    if dirs is not None and not {_OUR_DIR, "/run/cdi"}.intersection(map(str, dirs)):
        main = edit.set_value(main, _CDI_DIRS, [*dirs, _OUR_DIR], where)
    return main


def stock_program(place: RuntimePaths, text: str, others: Mapping[str, str], ours: frozenset[str]) -> str:
    """Return the program of the default runtime; "" where the file names none."""
    data = edit.parse(text, f"/{place.config}")
    name = str(_get(data, _DEFAULT) or STOCK)
    return "" if name in ours else str(_get(data, ("runtimes", name, "path")) or "")


def strip(text: str, before: str, programs: Mapping[str, str], where: str) -> str:
    """Return a daemon.json without the insertions of `configure`, also after edits by others.

    Args:
        before: the file as it was before us; what we replaced comes back from there.
        programs: runtime name -> name of its program, wherever that lay.
    """
    try:
        data, base = edit.parse(text, where), edit.parse(before, where)
    except InvalidInput:
        return text  # gpuplane's part cannot be recognised in it
    ours = [path for path, value in ((_DEFAULT, "nvidia"), (_CDI, True)) if _get(data, path) == value]
    ours += [("runtimes", name) for name, program in programs.items() if _is_ours(data, name, program)]
    for path in ours:
        if _get(base, path) == _get(data, path):
            continue
        if _get(base, path) is not None:
            text = edit.set_value(text, path, _get(base, path), where)
        else:
            text = edit.remove(text, path, where)
    dirs, base_dirs = _get(data, _CDI_DIRS), _get(base, _CDI_DIRS)
    if isinstance(dirs, list) and isinstance(base_dirs, list) and _OUR_DIR in dirs and _OUR_DIR not in base_dirs:
        text = edit.set_value(text, _CDI_DIRS, [item for item in dirs if item != _OUR_DIR], where)
    for key in ("runtimes", "features"):
        if _get(edit.parse(text, where), (key,)) == {} and key not in base:
            text = edit.remove(text, (key,), where)
    return text


def between(now: str, then: str, where: str) -> str:
    """Return what a running docker has to read on the way from `now` to `then`: `then`, and docker's defaults for the
    rest.

    Raises:
        InvalidInput: one of them does not parse, or has another type in the place of an object.
    """
    had, has = edit.parse(now, where), edit.parse(then, where)
    if "runtimes" in had and "runtimes" not in has:
        then = edit.set_value(then, ("runtimes",), {}, where)
    if _DEFAULT[0] in had and _DEFAULT[0] not in has:
        then = edit.set_value(then, _DEFAULT, STOCK, where)
    return then


def runtimes(text: str, where: str) -> tuple[frozenset[str], str]:
    """The runtimes that a docker with this file knows, and the default one. Raises InvalidInput: it does not parse."""
    data = edit.parse(text, where)
    named = data.get("runtimes")
    return frozenset((STOCK, *(named if isinstance(named, dict) else ()))), str(data.get(*_DEFAULT, STOCK))


def _is_ours(data: Any, name: str, program: str) -> bool:
    found = str(_get(data, ("runtimes", name, "path")))
    return found.rpartition("/")[2] == program and _get(data, ("runtimes", name)) == _runtime(found)


def _runtime(program: str) -> dict[str, Any]:
    return {"path": program, "args": []}


def _get(data: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data
