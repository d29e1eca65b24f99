"""Limits of containers on this machine: whether it has them, and a program that takes memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tinykube.kubelet.containers.groups import ControlGroups

_WHY: Final = "; ".join(filter(None, ControlGroups.of_this_process(Path("/a-node-of-these-tests")).why.values()))
limited: Final = pytest.mark.skipif(bool(_WHY), reason=f"containers are not limited here: {_WHY}")
#: A program of Python that takes so many bytes as its argument says.
GREEDY: Final = (
    "import sys; print(sys.argv[1], flush=True); x = bytearray(int(sys.argv[1])); print('had it', flush=True)"
)
