"""A real cluster for the whole folder; where this machine cannot have one, each test says why and is skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from realkube.binaries import Unavailable
from realkube.control_plane import ControlPlane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, API server, controller manager and scheduler, real ones; no machine yet."""
    plane = ControlPlane(tmp_path_factory.mktemp("k") / "plane")
    try:
        plane.start(print)
    except Unavailable as problem:
        pytest.skip(f"no real cluster: {problem}")
    try:
        yield plane
    finally:
        plane.stop()
