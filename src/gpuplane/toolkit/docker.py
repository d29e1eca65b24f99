"""docker: `runtimes`, `default-runtime` and `features.cdi` in daemon.json; everything else, and its layout, is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuplane.errors import InvalidInput
from gpuplane.toolkit import json_edit as edit

CONFIG = "etc/docker/daemon.json"
SOCKET = "run/docker.sock"
_DEFAULT = ("default-runtime",)
_CDI = ("features", "cdi")


def configure(main: str, *, programs: Mapping[str, str], default: str | None) -> dict[str, str]:
    """daemon.json with our runtimes, path -> text; the arguments as for containerd.

    Raises:
        InvalidInput: the file does not parse, or has wrong types where ours belongs.
    """
    where = f"/{CONFIG}"
    for name, program in programs.items():
        main = edit.set_value(main, ("runtimes", name), _runtime(program), where)
    if default is not None:
        main = edit.set_value(main, _DEFAULT, default, where)
    return {CONFIG: edit.set_value(main, _CDI, True, where)}


def strip(text: str, before: str, programs: Mapping[str, str]) -> str:
    """A daemon.json without what `configure` put into it, whoever edited it since.

    Args:
        before: the file as it was before us; what we replaced comes back from there.
        programs: runtime name -> name of its program, wherever that lay.
    """
    where = f"/{CONFIG}"
    try:
        data, base = edit.parse(text, where), edit.parse(before, where)
    except InvalidInput:
        return text  # nobody can tell what is ours in it
    ours = [path for path, value in ((_DEFAULT, "nvidia"), (_CDI, True)) if _get(data, path) == value]
    ours += [("runtimes", name) for name, program in programs.items() if _is_ours(data, name, program)]
    for path in ours:
        if _get(base, path) == _get(data, path):
            continue
        if _get(base, path) is not None:
            text = edit.set_value(text, path, _get(base, path), where)
        else:
            text = edit.remove(text, path, where)
    for key in ("runtimes", "features"):
        if _get(edit.parse(text, where), (key,)) == {} and key not in base:
            text = edit.remove(text, (key,), where)
    return text


def _is_ours(data: Any, name: str, program: str) -> bool:
    found = str(_get(data, ("runtimes", name, "path")))
    return found.rpartition("/")[2] == program and _get(data, ("runtimes", name)) == _runtime(found)


def _runtime(program: str) -> dict[str, Any]:
    return {"path": program, "args": []}


def _get(data: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data
