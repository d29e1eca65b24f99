"""containerd: its configuration in the versions 1 to 4, of containerd itself and of k3s, rke2, k0s and microk8s.

Version 1, and a file whose strings another program fills in, is edited in place. Otherwise gpuplane's part is in a
drop-in, and the main file gets one entry in `imports`. containerd before 2.1 replaces whole plugin tables when it
merges files, so the drop-in carries the whole CRI table as it is without us, and ours in it; it has to be made again
when that table changes. A newer containerd gets gpuplane's part only.

Switched on is what is not on by itself: CDI came with 1.7, off, and is on since 2.0. Runtimes are written for the
programs that are there. Where nothing is left to write, nothing is written.
"""

from __future__ import annotations

import copy
import fnmatch
import functools
from collections.abc import Container, Mapping
from typing import Any

from gpuplane import names
from gpuplane.toolkit import template_edit, toml_strip
from gpuplane.toolkit import toml_edit as edit
from gpuplane.toolkit.places import Edit, RuntimePaths
from kubekit.errors import InvalidInput

PLUGIN = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
PLUGIN[4] = PLUGIN[3]  # containerd 2.3 moved its servers' tables only
_DEEP_MERGE = (2, 1)  # from this containerd on, imported tables are merged key by key
_CDI_IS_ON = (2, 0)
_KNOWS_CDI = (1, 7)  # before, NVIDIA's runtime reads the annotations that name devices, if containerd passes them on
_PASSED_ON = f"{names.CDI_ANNOTATION_PREFIX}*"
# containerd has this runtime by itself. Before 2.0 a table of runtimes takes its place, and CRI does not start without
# its default runtime.
_KEEPS_RUNC = (2, 0)
_RUNC = {"runc": {"runtime_type": "io.containerd.runc.v2"}}
_LINUX_V1 = "io.containerd.runtime.v1.linux"  # until containerd 1.7; its option for the program has a name of its own
CDI_DIRS = ["/etc/cdi", f"/{names.CDI_DIR}"]
BASE_TEMPLATE = '{{ template "base" . }}\n'


class _Wrong(Exception):
    """Something in the CRI table has a type of its own; `path` is where in it."""

    def __init__(self, what: str, path: tuple[str, ...]) -> None:
        super().__init__(f"{path[-1]} is no {what}")
        self.path = path


def configure(
    place: RuntimePaths,
    main: str,
    others: Mapping[str, str],
    *,
    effective: str | None = None,
    programs: Mapping[str, str],
    default: str | None,
    containerd: tuple[int, ...] = (),
) -> dict[str, str]:
    """The files that let containerd give out GPUs, path -> text; none where it does so already.

    Args:
        main: `place.config` without our part; "" when there is none.
        others: what is imported, in order.
        effective: the text of `place.effective`, where there is one.
        programs: runtime name -> program.
        default: the runtime for containers that ask for none; None leaves that as it is.
        containerd: its version, () when unknown.

    Raises:
        InvalidInput: a file does not parse, or cannot be edited safely.
    """
    where = f"/{place.effective if effective is not None else place.config}"
    shown = main if effective is None else _shown(place, effective, where)
    data = edit.parse(shown, where)
    version = data.get("version", 1) if data else 2
    if type(version) is not int or version not in PLUGIN:
        raise InvalidInput(
            f"version {version!r} of the configuration is unknown",
            where=edit.place_of(shown, ("version",), where),
            cure="use version 2, 3 or 4",
        )
    plugin = PLUGIN[version]
    deep = containerd >= _DEEP_MERGE or version == 4  # which only such a containerd reads
    table = _cri_table(data, others, plugin, deep=deep)
    try:
        ours = _ours(table, programs, default, containerd, place)
    except _Wrong as wrong:
        raise InvalidInput(
            str(wrong),
            where=edit.place_of(shown, ("plugins", plugin, *wrong.path), where),
            cure="repair it; nothing was changed",
        ) from None
    if not ours:
        return {}
    if version == 1 or place.edit is Edit.IN_PLACE:
        return {place.config: _in_place(main, plugin, table, ours, f"/{place.config}")}
    if place.edit is Edit.NONE or deep:
        table = ours  # merged into what is there, key by key
    else:
        table = edit.merged(table, ours)
    drop_in = _drop_in(place, version, plugin, table)
    if place.edit is Edit.NONE:
        return drop_in
    if not data:
        main = edit.set_value(main, (), "version", version, where)
    return {**drop_in, **_imported(place, main, shown, data)}


def stock_program(place: RuntimePaths, text: str, others: Mapping[str, str], ours: frozenset[str]) -> str:
    """Return the program of the runtime whose options ours take over; "" where it has no name."""
    data = edit.parse(_shown(place, text, f"/{place.config}"), f"/{place.config}")
    version = data.get("version", 1)
    table = _cri_table(data, others, PLUGIN.get(version, PLUGIN[2]), deep=version == 4)
    runtime = inherited(
        _sub(table, "containerd", "runtimes"), _sub(table, "containerd").get("default_runtime_name"), ours
    )
    options = _sub(runtime, "options")
    return str(options.get("BinaryName") or options.get("Runtime") or "")


def strip(place: RuntimePaths, text: str) -> str:
    """Return a main file without the insertions of `configure`, also after edits by others."""
    if place.edit is Edit.TEMPLATE:
        return template_edit.strip(text, "imports", place.imports, f"/{place.config}")
    return _strip(place.imports, text, f"/{place.config}")


@functools.lru_cache(maxsize=16)
def _strip(imports: str, text: str, where: str) -> str:
    return toml_strip.strip(text, {"imports": imports}, where)


def _drop_in(place: RuntimePaths, version: int, plugin: str, table: dict[str, Any]) -> dict[str, str]:
    text = edit.dump({"version": version, "plugins": {plugin: table}})
    source = place.effective or place.config
    about = f"the CRI table of {source} with GPU runtimes" if place.edit is not Edit.NONE else "merged into k0s's own"
    return {place.drop_in: f"# Written by gpuplane; {about}.\n{text}"}


def _imported(place: RuntimePaths, main: str, shown: str, data: Mapping[str, Any]) -> dict[str, str]:
    """The main file with our entry in `imports`, unless an entry covers the drop-in already."""
    imports = data.get("imports", [])
    covered = isinstance(imports, list) and any(_covers(str(pattern), place) for pattern in imports)
    if place.edit is not Edit.TEMPLATE:
        return {place.config: main if covered else edit.add_element(main, "imports", place.imports, f"/{place.config}")}
    # NB: what is effective is older than a template that was edited since the last start.
    own = template_edit.array(main, "imports")
    if own is None and covered:
        return {}
    if own is None and "imports" in data:
        raise InvalidInput(
            "it sets imports, and a template cannot be edited safely",
            where=f"/{place.config}",
            cure=f'add "{place.imports}" to its imports',
        )
    if any(_covers(str(pattern), place) for pattern in own or ()):
        return {place.config: main}
    return {
        place.config: template_edit.add_element(main or BASE_TEMPLATE, "imports", place.imports, f"/{place.config}")
    }


def _shown(place: RuntimePaths, text: str, where: str) -> str:
    """The effective configuration without our import; one that people wrote, as a cure says, stays."""
    return _strip(place.imports, text, where) if edit.MARK in text else text


def _covers(pattern: str, place: RuntimePaths) -> bool:
    base = place.config.rpartition("/")[0]
    return fnmatch.fnmatch(f"/{place.drop_in}", pattern if pattern.startswith("/") else f"/{base}/{pattern}")


def _cri_table(data: dict[str, Any], others: Mapping[str, str], plugin: str, *, deep: bool) -> dict[str, Any]:
    """The CRI plugin's table as containerd sees it without us."""
    table = _sub(data, "plugins", plugin)
    for path, text in others.items():
        imported = _sub(edit.parse(text, path), "plugins", plugin)
        if imported:
            table = edit.merged(table, imported) if deep else imported
    return copy.deepcopy(table)


def _ours(
    table: dict[str, Any],
    programs: Mapping[str, str],
    default: str | None,
    containerd: tuple[int, ...],
    place: RuntimePaths,
) -> dict[str, Any]:
    """Return the entries that the CRI table needs besides its own."""
    merging = place.edit is Edit.NONE  # the merged text has our part in it already
    ours: dict[str, Any] = {}
    by_itself = containerd >= _CDI_IS_ON and "enable_cdi" not in table
    if merging or not (table.get("enable_cdi") is True or by_itself):
        ours["enable_cdi"] = True
    found = table.get("cdi_spec_dirs")
    if found is not None and not (isinstance(found, list) and all(isinstance(item, str) for item in found)):
        raise _Wrong("array of strings", ("cdi_spec_dirs",))
    if not merging and "enable_cdi" in ours and found is None:
        ours["cdi_spec_dirs"] = CDI_DIRS
    elif not merging and found is not None and not set(found) & {CDI_DIRS[1], "/run/cdi"}:
        ours["cdi_spec_dirs"] = [*found, CDI_DIRS[1]]
    section = _table(table, ("containerd",))
    runtimes = _table(section, ("containerd", "runtimes"))
    new = {
        name: own
        for name, program in programs.items()
        if (own := _runtime(runtimes, section.get("default_runtime_name"), programs, program, containerd))
        and (merging or not _is_kept(runtimes.get(name), own, place))
    }
    if new:
        lost = {} if runtimes or merging or containerd >= _KEEPS_RUNC else copy.deepcopy(_RUNC)
        ours["containerd"] = {"runtimes": {**lost, **new}}
    if default is not None and (merging or section.get("default_runtime_name") != default):
        ours.setdefault("containerd", {})["default_runtime_name"] = default
    return ours


def _is_kept(found: object, own: dict[str, Any], place: RuntimePaths) -> bool:
    """Return whether a runtime of this name stays as it is: k3s finds the programs by itself, and in place nothing is
    lost.
    """
    return found is not None and (found == own or place.edit in (Edit.TEMPLATE, Edit.IN_PLACE))


def _runtime(
    runtimes: Mapping[str, Any],
    default: object,
    programs: Mapping[str, str],
    program: str,
    containerd: tuple[int, ...],
) -> dict[str, Any]:
    own = copy.deepcopy(inherited(runtimes, default or "runc", programs))
    own["runtime_type"] = own.get("runtime_type") or _RUNC["runc"]["runtime_type"]
    key = "Runtime" if own["runtime_type"] == _LINUX_V1 else "BinaryName"
    own["options"] = {**_table(own, ("containerd", "runtimes", "options")), key: program}
    if () < containerd < _KNOWS_CDI:
        passed = own.get("container_annotations", [])
        if not isinstance(passed, list):
            raise _Wrong("array of strings", ("containerd", "runtimes", "container_annotations"))
        own["container_annotations"] = [*passed, *([] if _PASSED_ON in passed else [_PASSED_ON])]
    return own


def inherited(runtimes: Mapping[str, Any], default: object, programs: Container[str]) -> dict[str, Any]:
    """The options that our runtimes take over: the default runtime's, or else runc's or crun's."""
    for name in (str(default), "runc", "crun"):
        found = runtimes.get(name)
        if name not in programs and isinstance(found, dict):
            return dict(found)
    return {}


def _in_place(main: str, plugin: str, table: Mapping[str, Any], ours: dict[str, Any], where: str) -> str:
    path = ("plugins", plugin)
    for key in ("enable_cdi", "cdi_spec_dirs"):
        # NB: with CDI on its directories are the usual ones by themselves
        if key in ours and (key != "cdi_spec_dirs" or key in table):
            main = edit.set_value(main, path, key, ours[key], where)
    section = ours.get("containerd", {})
    if "default_runtime_name" in section:
        name = section["default_runtime_name"]
        main = edit.set_value(main, (*path, "containerd"), "default_runtime_name", name, where)
    if "runtimes" in section:
        tables = {"plugins": {plugin: {"containerd": {"runtimes": section["runtimes"]}}}}
        main = edit.append_tables(main, tables, where)
    return main


def _table(data: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The table at the last part of `path`, which is the whole way to it."""
    found = data.get(path[-1], {})
    if not isinstance(found, dict):
        raise _Wrong("table", path)
    return found


def _sub(data: Mapping[str, Any], *path: str) -> dict[str, Any]:
    at: Any = data
    for key in path:
        at = at.get(key) if isinstance(at, dict) else None
    return at if isinstance(at, dict) else {}
