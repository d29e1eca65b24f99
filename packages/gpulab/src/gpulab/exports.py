"""The lines of a shell with which the printed next commands work as they are printed."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from gpuplane.cli.terminal import tilde


def exports(kubeconfig: Path) -> list[str]:
    """Return what a shell exports for a cluster's commands: its kubeconfig, and PATH where it lacks gpuplane.

    After `make demo` in a clone the program lies in the clone's environment only.
    """
    lines = [f"export KUBECONFIG={tilde(kubeconfig)}"]
    programs = Path(sysconfig.get_path("scripts"))
    if shutil.which("gpuplane") is None and shutil.which("gpuplane", path=str(programs)) is not None:
        lines.append(f"export PATH={tilde(programs)}:$PATH")
    return lines
