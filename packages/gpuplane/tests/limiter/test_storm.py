"""Captures in random order from several threads, under sanitizers: no race, no spoilt capture, and the limit holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from packages.gpuplane.tests.limiter import sanitized

PERCENT = 30


@pytest.fixture(scope="module", params=sanitized.SANITIZERS)
def storm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sanitized.compiled("storm", request.param, tmp_path_factory.mktemp("storm"))


@pytest.mark.parametrize("kind", ["orderly", "wild"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_captures_breaks_nothing(machine, storm: Path, kind: str, seed: int) -> None:
    ran = sanitized.run(machine, machine.share("storm", core=PERCENT), storm, kind, str(seed), "2", str(PERCENT))
    assert int(ran) > 0
