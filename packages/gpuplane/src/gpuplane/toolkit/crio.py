"""cri-o: a drop-in with the runtimes. CDI it does by itself, so without NVIDIA's programs there is nothing to write.

NB: cri-o looks for every runtime's program when it starts, and releases before 1.30 do not start without it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from gpuplane.toolkit import toml_edit as edit
from gpuplane.toolkit.containerd import CDI_DIRS, inherited
from gpuplane.toolkit.places import RuntimePaths
from kubekit.errors import InvalidInput


def configure(
    place: RuntimePaths, main: str, others: Mapping[str, str], *, programs: Mapping[str, str], default: str | None
) -> dict[str, str]:
    """The drop-in, path -> text, if there is anything to write; the arguments as for containerd, `others` being the
    other drop-ins in order.

    Raises:
        InvalidInput: a file does not parse.
    """
    section, runtimes = _merged(place, main, others)
    options = inherited(runtimes, str(section.get("default_runtime", "")), programs)
    own: dict[str, Any] = {}
    dirs = section.get("cdi_spec_dirs")
    if dirs is not None and not isinstance(dirs, list):
        raise InvalidInput(
            "cdi_spec_dirs is no array of strings", where=f"/{place.config}", cure="repair it; nothing was changed"
        )
    if dirs is not None and not {CDI_DIRS[1], "/run/cdi"}.intersection(map(str, dirs)):
        own["cdi_spec_dirs"] = [*dirs, CDI_DIRS[1]]
    if default is not None:
        own["default_runtime"] = default
    if programs:
        own["runtimes"] = {
            name: {**copy.deepcopy(options), "runtime_path": program, "runtime_type": _type(options)}
            for name, program in programs.items()
        }
    if not own:
        return {}
    return {place.drop_in: f"# Written by gpuplane.\n{edit.dump({'crio': {'runtime': own}})}"}


def _type(options: Mapping[str, Any]) -> str:
    """The type of a runtime with these options. `pod` stays: its monitor is conmon-rs, which no other type starts."""
    return "pod" if options.get("runtime_type") == "pod" else "oci"


def stock_program(place: RuntimePaths, main: str, others: Mapping[str, str], ours: frozenset[str]) -> str:
    """Return the program of the runtime whose options ours take over; "" where it has no name."""
    section, runtimes = _merged(place, main, others)
    return str(inherited(runtimes, str(section.get("default_runtime", "")), ours).get("runtime_path", ""))


def _merged(place: RuntimePaths, main: str, others: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The section of runtimes and its runtimes, as cri-o sees them without us."""
    section: dict[str, Any] = {}
    runtimes: dict[str, Any] = {}
    for path, text in {f"/{place.config}": main, **others}.items():
        found = _sub(edit.parse(text, path), "crio", "runtime")
        section.update(found)
        runtimes.update(_sub(found, "runtimes"))
    return section, runtimes


def _sub(data: Mapping[str, Any], *path: str) -> dict[str, Any]:
    at: Any = data
    for key in path:
        at = at.get(key) if isinstance(at, dict) else None
    return at if isinstance(at, dict) else {}
