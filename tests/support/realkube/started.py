"""A control plane for the time of a test; the test is skipped where this machine can have none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpulab.kubernetes.unavailable import Unavailable


@contextlib.contextmanager
def started(plane: ControlPlane) -> Iterator[ControlPlane]:
    try:
        plane.start(print)
    except Unavailable as problem:
        pytest.skip(f"no real cluster: {problem}")
    try:
        yield plane
    finally:
        plane.stop()
