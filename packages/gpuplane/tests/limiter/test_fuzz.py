"""Random calls with wrong arguments from several threads, under sanitizers: no crash, no race, no byte too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from packages.gpuplane.tests.limiter import sanitized

MIB = 1 << 20


@pytest.fixture(scope="module", params=sanitized.SANITIZERS)
def fuzzer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sanitized.compiled("fuzz", request.param, tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls_break_nothing(machine, fuzzer: Path, seed: int) -> None:
    share = machine.share("fuzz", memory_bytes=48 * MIB, context_bytes=MIB, core=100)
    # Everything was given back, and the ledger says so.
    assert sanitized.run(machine, share, fuzzer, str(seed), "4000") == "0\n"
