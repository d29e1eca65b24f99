"""The chart by a real helm, built from its Go module."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from gpulab.kubernetes import binaries

CHART: Final = Path(__file__).parents[3] / "deploy/chart/gpuplane"


def helm(*arguments: str, code: int = 0, values: str = "", patience_s: float = 400.0) -> str:
    """Return the output of a helm command; `code` is the expected exit code, `values` the text of a values file.

    Raises Unavailable when there is no helm and none can be built.
    """
    program = binaries.build("helm") / "helm"
    more = ("-f", "-") if values else ()
    done = subprocess.run(
        [program, *arguments, *more],
        input=values or None,
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
    )
    assert done.returncode == code, f"helm {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr
