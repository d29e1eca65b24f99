"""Measures how long pods wait for bought nodes on the simulated cloud, beyond machines' boot and preparation.

    python benchmarks/cloud.py

Two pods wait, two unlike nodes are bought; the figures are those of `gpuplane demo --cloud`. Beyond the boot are the
decision with the launch, where the batch of pods alone waits a second for more of them, and the time from the GPUs that
the last node advertises to the last pod that runs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from figures import show

RUNS = 3
GOAL_SECONDS = 2.0
DEMO = (sys.executable, "-m", "gpuplane", "demo", "--cloud", "--down", "-q", "-o", "json")


def told() -> dict[str, Any]:
    """Return what one demo measured; a promise that it did not keep ends the benchmark."""
    found: dict[str, Any] = json.loads(subprocess.run(DEMO, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuplane-") as home:
        os.environ["GPUPLANE_HOME"] = home
        runs = [told() for _ in range(RUNS)]

    def median(*names: str) -> float:
        return float(statistics.median(sum(run[name] for name in names) for run in runs))

    show("two pods: pending to running, all", median("runningSeconds"), "s")
    show("  pending to launched", median("launchedSeconds"), "s")
    show("  GPUs advertised to running", median("placedSeconds"), "s")
    show("beyond the boot", median("launchedSeconds", "placedSeconds"), "s", goal=GOAL_SECONDS)
    show("scaled to zero until nothing is left", median("goneSeconds"), "s")


if __name__ == "__main__":
    main()
