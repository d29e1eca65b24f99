"""containerd: its configuration in the versions 1, 2 and 3.

Version 1 is edited in place. For 2 and 3 all that is ours is in a drop-in, and the main file gets one entry in
`imports`. containerd before 2.1 replaces whole plugin tables when it merges files, so the drop-in carries the whole CRI
table as it is without us, and ours in it; it has to be made again when somebody changes that table.

NB: the import is a glob that only our drop-in matches. A path without a glob that does not exist keeps containerd from
starting, and `conf.d/*.toml` would take in files that were lying there unused.
"""

from __future__ import annotations

import copy
import fnmatch
import functools
from collections.abc import Mapping
from typing import Any

from gpuplane.errors import InvalidInput
from gpuplane.toolkit import toml_edit as edit

CONFIG = "etc/containerd/config.toml"
DROP_IN = "etc/containerd/conf.d/99-nvidia.toml"
IMPORT = "/etc/containerd/conf.d/99-nvidia*.toml"
SOCKET = "run/containerd/containerd.sock"
_PLUGIN = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_DEEP_MERGE = (2, 1)  # from this containerd on, imported tables are merged key by key
_CDI_DIRS = ["/etc/cdi", "/var/run/cdi"]


def configure(
    main: str,
    others: Mapping[str, str],
    *,
    programs: Mapping[str, str],
    default: str | None,
    containerd: tuple[int, ...] = (),
) -> dict[str, str]:
    """The files that let containerd give out GPUs, path -> text.

    Args:
        main: the main file without our part; "" when there is none.
        others: what it imports, in order.
        programs: runtime name -> program.
        default: the runtime for containers that ask for none; None leaves that as it is.
        containerd: its version, () when unknown.

    Raises:
        InvalidInput: a file does not parse, or cannot be edited safely.
    """
    data = edit.parse(main, f"/{CONFIG}")
    version = data.get("version", 1) if data else 2
    if type(version) is not int or version not in _PLUGIN:
        raise InvalidInput(
            f"version {version!r} of the configuration is unknown", where=f"/{CONFIG}", cure="use version 2 or 3"
        )
    if version == 1:
        return {CONFIG: _in_place(main, data, programs, default)}
    if not data:
        main = edit.set_value(main, (), "version", version, f"/{CONFIG}")
    imports = data.get("imports", [])
    if not (isinstance(imports, list) and any(_covers(str(pattern)) for pattern in imports)):
        main = edit.add_element(main, "imports", IMPORT, f"/{CONFIG}")
    table = _cri_table(data, others, _PLUGIN[version], deep=containerd >= _DEEP_MERGE)
    _add_runtimes(table, programs, default)
    table["enable_cdi"] = True
    table.setdefault("cdi_spec_dirs", _CDI_DIRS)
    drop_in = edit.dump({"version": version, "plugins": {_PLUGIN[version]: table}})
    return {DROP_IN: f"# Written by gpuplane; the CRI table of {CONFIG} with GPU runtimes.\n{drop_in}", CONFIG: main}


@functools.lru_cache(maxsize=16)
def strip(text: str) -> str:
    """A main file without what `configure` put into it, whoever edited it since."""
    return edit.strip(text, {"imports": IMPORT})


def _covers(pattern: str) -> bool:
    return fnmatch.fnmatch(f"/{DROP_IN}", pattern)


def _cri_table(data: dict[str, Any], others: Mapping[str, str], plugin: str, *, deep: bool) -> dict[str, Any]:
    """The CRI plugin's table as containerd sees it without us."""
    table = _sub(data, "plugins", plugin)
    for path, text in others.items():
        imported = _sub(edit.parse(text, path), "plugins", plugin)
        if imported:
            table = _merged(table, imported) if deep else imported
    return copy.deepcopy(table)


def _add_runtimes(table: dict[str, Any], programs: Mapping[str, str], default: str | None) -> None:
    section = _own(table, "containerd")
    runtimes = _own(section, "runtimes")
    options = inherited(runtimes, section.get("default_runtime_name", "runc"), programs)
    for name, program in programs.items():
        own = copy.deepcopy(options)
        own.setdefault("runtime_type", "io.containerd.runc.v2")
        _own(own, "options")["BinaryName"] = program
        runtimes[name] = own
    if default is not None:
        section["default_runtime_name"] = default


def _own(table: dict[str, Any], key: str) -> dict[str, Any]:
    """The table under `key`, made when it is missing."""
    found = table.setdefault(key, {})
    if not isinstance(found, dict):
        raise InvalidInput(f"{key} is no table", where=f"/{CONFIG}", cure="repair the file; nothing was changed")
    return found


def inherited(runtimes: Mapping[str, Any], default: object, programs: Mapping[str, str]) -> dict[str, Any]:
    """The options that our runtimes take over: the default runtime's, or else runc's or crun's."""
    for name in (str(default), "runc", "crun"):
        found = runtimes.get(name)
        if name not in programs and isinstance(found, dict):
            return dict(found)
    return {}


def _in_place(main: str, data: dict[str, Any], programs: Mapping[str, str], default: str | None) -> str:
    where = f"/{CONFIG}"
    section = _sub(data, "plugins", "cri", "containerd")
    runtimes = _sub(section, "runtimes")
    options = inherited(runtimes, section.get("default_runtime_name", "runc"), programs)
    new: dict[str, Any] = {}
    for name, program in programs.items():
        if name not in runtimes:  # one that the administrator wrote stays as it is
            own = {"runtime_type": "io.containerd.runc.v2", **copy.deepcopy(options)}
            _own(own, "options")["BinaryName"] = program
            new[name] = own
    main = edit.set_value(main, ("plugins", "cri"), "enable_cdi", True, where)
    if default is not None:
        main = edit.set_value(main, ("plugins", "cri", "containerd"), "default_runtime_name", default, where)
    if new:
        main = edit.append_tables(main, {"plugins": {"cri": {"containerd": {"runtimes": new}}}}, where)
    return main


def _sub(data: Mapping[str, Any], *path: str) -> dict[str, Any]:
    at: Any = data
    for key in path:
        at = at.get(key) if isinstance(at, dict) else None
    return at if isinstance(at, dict) else {}


def _merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in more.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
