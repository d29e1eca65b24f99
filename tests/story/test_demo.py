"""`gpuplane demo`, whole, as the first thing that anybody runs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

PROMISED = {"tune": 30, "serve": 30, "nb": 20, "ci": 10}


async def gpuplane(home: Path, *words: str) -> tuple[int | None, bytes, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpuplane", *words),
        env=os.environ | {"HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, told = await process.communicate()
    return process.returncode, output, told.decode()


async def test_the_whole_story_is_told_with_what_was_measured(tmp_path: Path) -> None:
    try:
        code, output, told = await gpuplane(tmp_path, "demo", "-o", "json")
        assert code == 0, told
    finally:
        assert (await gpuplane(tmp_path, "down", "demo"))[0] == 0
    found = json.loads(output)
    assert set(found["bareToReadySeconds"]) == {"sim-1", "sim-2", "sim-3"}
    assert found["vectorAdd"]["verdict"] == "Test PASSED"
    pods = {pod["name"]: pod for pod in found["shared"]["pods"]}
    assert {name: pod["coreLimit"] for name, pod in pods.items()} == PROMISED
    # Not a timed test: on a busy machine a program may get less of a simulated GPU than it may have, never much more.
    assert all(0 < pod["corePercent"] <= PROMISED[name] + 5 for name, pod in pods.items()), pods
    assert {name: pod["refused"] for name, pod in pods.items()} == {"tune": 0, "serve": 0, "nb": 0, "ci": 1}
    assert found["waiting"]["canEverRun"] and found["waiting"]["cures"]
    assert "fails the vectorAdd" in found["broken"]["message"] and found["broken"]["disturbed"] == 0
