"""A process of the embedded cluster of a chaos run: `python tests/chaos/process.py COMPONENT ARGUMENTS`.

It is what `gpuplane run` starts, with two seams: its wall clock is off by the number of seconds in `CONTROL/clock`, and
the API server has the faults of `CONTROL/api`. CONTROL is the directory that `GPUPLANE_CHAOS` names.
"""

from __future__ import annotations

import datetime
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

CONTROL: Final = "GPUPLANE_CHAOS"
CLOCK, API = "clock", "api"
_LOOK_SECONDS: Final = 0.5


class ShiftedClock:
    """The wall clock, off by what the file says; looked at twice a second."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._real = time.time
        self._seconds = 0.0
        self._looked = 0.0

    def time(self) -> float:
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            try:
                self._seconds = float(self._file.read_text())
            except (OSError, ValueError):
                self._seconds = 0.0
        return self._real() + self._seconds

    def wall(self, _: object = None) -> str:
        """UTC as RFC 3339 with microseconds."""
        return datetime.datetime.fromtimestamp(self.time(), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def main() -> None:
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    control = Path(os.environ[CONTROL])
    clock = ShiftedClock(control / CLOCK)
    time.time = clock.time  # first of all: defaults of arguments bind it
    from kubekit.kube.clock import SystemClock

    # Modules as plain objects: their names are replaced.
    clocks: Any = SystemClock
    clocks.wall = clock.wall
    distribution: Any = importlib.import_module("gpulab.distribution")
    distribution.GPUPLANE = importlib.import_module("tests.chaos.distribution").CHAOS
    if sys.argv[1] == "cluster":
        from tests.chaos.api_faults import FaultyServer

        server: Any = importlib.import_module("tinykube.apiserver.server")
        rest = server.Rest
        server.Rest = lambda registry: FaultyServer(rest(registry), control / API)
    from gpuplane.cli.main import run

    sys.argv[1:1] = ["run"]
    run()


if __name__ == "__main__":
    main()
