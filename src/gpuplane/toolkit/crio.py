"""cri-o: a drop-in with the runtimes. CDI it does by itself, so without NVIDIA's programs there is nothing to write.

NB: cri-o looks for every runtime's program when it starts, and releases before 1.30 do not start without it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from gpuplane.toolkit import toml_edit as edit
from gpuplane.toolkit.containerd import inherited

CONFIG = "etc/crio/crio.conf"
DROP_INS = "etc/crio/crio.conf.d"
DROP_IN = f"{DROP_INS}/99-nvidia.toml"
SOCKET = "run/crio/crio.sock"
UNIT = "crio"


def configure(
    main: str, others: Mapping[str, str], *, programs: Mapping[str, str], default: str | None
) -> dict[str, str]:
    """The drop-in, path -> text; the arguments as for containerd, `others` being the other drop-ins in order.

    Raises:
        InvalidInput: a file does not parse.
    """
    section: dict[str, Any] = {}
    runtimes: dict[str, Any] = {}
    for path, text in {f"/{CONFIG}": main, **others}.items():
        found = _sub(edit.parse(text, path), "crio", "runtime")
        section.update(found)
        runtimes.update(_sub(found, "runtimes"))
    options = inherited(runtimes, str(section.get("default_runtime", "")), programs)
    own: dict[str, Any] = {}
    if default is not None:
        own["default_runtime"] = default
    own["runtimes"] = {
        name: {**copy.deepcopy(options), "runtime_path": program, "runtime_type": "oci"}
        for name, program in programs.items()
    }
    return {DROP_IN: f"# Written by gpuplane.\n{edit.dump({'crio': {'runtime': own}})}"}


def _sub(data: Mapping[str, Any], *path: str) -> dict[str, Any]:
    at: Any = data
    for key in path:
        at = at.get(key) if isinstance(at, dict) else None
    return at if isinstance(at, dict) else {}
