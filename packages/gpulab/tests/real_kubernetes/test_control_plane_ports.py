"""Two control planes that begin at the same moment choose different ports, before either of them listens."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

from gpulab.kubernetes.control_plane import ControlPlane


def test_control_planes_that_begin_together_have_ports_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # of the record of networks
    ports: list[int] = []
    before = random.getstate()
    for number in range(4):
        random.seed(1)
        ports += ControlPlane(tmp_path / str(number)).state.ports.values()
    random.setstate(before)
    assert len(set(ports)) == len(ports)
