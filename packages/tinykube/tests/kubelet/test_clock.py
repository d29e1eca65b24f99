"""A kubelet's time goes on evenly."""

from __future__ import annotations

import time

import pytest

from tinykube.kubelet.clock import RealClock


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_wall_clock_that_is_set_moves_no_deadline(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    clock, real = RealClock(), time.time
    before = clock.time()
    assert abs(before - real()) < 60
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    assert 0 <= clock.time() - before < 60
