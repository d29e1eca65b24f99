"""Measures how long a user waits: for --help, for `up` until kubectl is answered, for the whole demo.

python benchmarks/startup.py
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import show

GPUPLANE = [sys.executable, "-m", "gpuplane"]
HELP_RUNS, UP_RUNS, DEMO_RUNS = 15, 5, 3


def timed(*words: str) -> tuple[float, str]:
    """Seconds and standard output of one command; its failure ends the benchmark."""
    began = time.monotonic()
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return time.monotonic() - began, done.stdout


def up_until_kubectl() -> float:
    """From the command to the first answer that kubectl prints; the REST path alone where there is no kubectl."""
    took, out = timed(*GPUPLANE, "up", "--name", "bench", "--detach", "-q", "-o", "json")
    try:
        if kubectl := shutil.which("kubectl"):
            took += timed(kubectl, "--kubeconfig", json.loads(out)["kubeconfig"], "get", "namespaces")[0]
    finally:
        timed(*GPUPLANE, "down", "bench")
    return took


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuplane-") as home:
        os.environ["GPUPLANE_HOME"] = str(Path(home))
        helps = [timed(*GPUPLANE, "--help")[0] for _ in range(HELP_RUNS)]
        show("gpuplane --help", statistics.median(helps) * 1000, "ms", goal=150)
        ups = [up_until_kubectl() for _ in range(UP_RUNS)]
        show("up until kubectl get is answered", statistics.median(ups), "s", goal=2)
        demos = [timed(*GPUPLANE, "demo", "--down", "-q", "-o", "json") for _ in range(DEMO_RUNS)]
        show("demo, whole command", statistics.median(seconds for seconds, _ in demos), "s", goal=20)
        ready = [max(json.loads(out)["bareToReadySeconds"].values()) for _, out in demos]
        show("  three machines from bare to ready", statistics.median(ready), "s")


if __name__ == "__main__":
    main()
