"""The program of a chaos run's cluster: gpuplane, with each process started by `process.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import msgspec

from gpulab.distribution import GPUPLANE

CHAOS: Final = msgspec.structs.replace(
    GPUPLANE, command=(sys.executable, str(Path(__file__).resolve().with_name("process.py")))
)
