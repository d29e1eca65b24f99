"""NVIDIA's programs, which the image brings to hosts that have none: the runtime of RuntimeClass `nvidia` and its hook.

They are built from NVIDIA's Go module and work with CDI only, so nothing of libnvidia-container is needed. A runtime's
program is a script around the binary `nvidia-container-runtime.real`, as in NVIDIA's own installation: it names the
configuration that lies next to it. A host with a runtime of NVIDIA's own retains that, and gets nothing from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuplane import names
from gpuplane.host import Before, Host, ManagedFile
from gpuplane.toolkit.facts import CDI_HOOK, CTK, REAL, RUNTIME, RUNTIMES, ToolkitFacts

IMAGE: Final = Path("/usr/lib/gpuplane/toolkit")  # where the image has them
# Name in the image -> name on a host.
_INSTALLED: Final = {RUNTIME: REAL, CTK: CTK, CDI_HOOK: CDI_HOOK}
CONFIG: Final = f"{names.TOOLKIT_DIR}/.config/nvidia-container-runtime/config.toml"
_SPEC: Final = f"{names.CDI_DIR}/nvidia.com-gpu.json"
_SCRIPT: Final = """\
#!/bin/sh
# Written by gpuplane. Without a specification there is no GPU to add: nothing keeps a container from starting.
[ -e /{spec} ] || exec {plain} "$@"
export NVIDIA_CTK_CONFIG_FILE_PATH=/{config}
exec /{real} "$@"
"""


def read(host: Host, programs: Mapping[str, str], given: frozenset[str]) -> dict[str, bytes]:
    """The programs for a host, file name -> content; empty where the host has a runtime of NVIDIA's own.

    Args:
        programs: those of NVIDIA's programs that the host has by itself.
        given: the names that an earlier run installed. Where no image is at hand they stay as they are.
    """
    if RUNTIME in programs:
        return {}
    found = {}
    for name, installed in _INSTALLED.items():
        try:
            found[installed] = (IMAGE / name).read_bytes()
        except FileNotFoundError:
            data = host.read(f"{names.TOOLKIT_DIR}/{installed}") if installed in given else None
            if data is not None:
                found[installed] = data
    return found if REAL in found else {}


def files(facts: ToolkitFacts, plain: str) -> list[ManagedFile]:
    """The files to install; `plain` is the runtime that starts containers without GPUs."""
    if not facts.shipped:
        return []
    text = _SCRIPT.format(spec=_SPEC, plain=plain, config=CONFIG, real=f"{names.TOOLKIT_DIR}/{REAL}")
    contents = {**facts.shipped, **dict.fromkeys(RUNTIMES.values(), text.encode())}
    return [
        # NB: a program of ours that was left for running containers is not what such a path returns to.
        ManagedFile(path=f"{names.TOOLKIT_DIR}/{name}", data=data, mode=0o755, before=Before())
        for name, data in contents.items()
        if name not in facts.programs
    ]
