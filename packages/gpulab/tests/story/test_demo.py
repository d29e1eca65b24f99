"""`gpuplane demo`, whole, as a new user runs it first."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from simgpu import STATE_PATH, Faults

PROMISED = {"tune": 30, "serve": 30, "nb": 20, "ci": 10}
# Variables that users have in their shells, and that must have no effect.
SHELL = {
    "CUDA_VISIBLE_DEVICES": "",
    "GPUPLANE_IMAGE": "registry.example/other",
    "GPUPLANE_LIMITS": "/nonexistent",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "KUBECONFIG": "/nonexistent",
    "KUBERNETES_SERVICE_HOST": "192.0.2.1",
    "LD_LIBRARY_PATH": "/nonexistent",
    "NVIDIA_VISIBLE_DEVICES": "none",
    "PYTHONWARNINGS": "error",
    "SIMGPU_DEV": "/nonexistent",
    "SIMHOST_ROOT": "/nonexistent",
}


# `gpuplane` whose demo has its first and its last machine only.
TWO_MACHINES = """
from gpulab.demo import command
from gpuplane.cli.main import main
four = command.node_specs
command.node_specs = lambda *arguments, **more: four(*arguments, **more)[::3]
raise SystemExit(main())
"""


async def gpuplane(
    home: Path, *words: str, program: Sequence[str] = ("-m", "gpuplane")
) -> tuple[int | None, bytes, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *program, *words),
        env=os.environ | SHELL | {"HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, told = await process.communicate()
    return process.returncode, output, told.decode()


async def test_the_whole_story_is_told_with_what_was_measured(tmp_path: Path) -> None:
    home = tmp_path / "a home"
    home.mkdir()
    try:
        code, output, told = await gpuplane(home, "demo", "-o", "json")
        assert code == 0, told
    finally:
        assert (await gpuplane(home, "down", "demo"))[0] == 0
    found = json.loads(output)
    assert set(found["bareToReadySeconds"]) == {"sim-1", "sim-2", "sim-3"}
    assert found["vectorAdd"]["verdict"] == "Test PASSED"
    pods = {pod["name"]: pod for pod in found["shared"]["pods"]}
    assert {name: pod["coreLimit"] for name, pod in pods.items()} == PROMISED
    assert {name: pod["refused"] for name, pod in pods.items()} == {"tune": 0, "serve": 0, "nb": 0, "ci": 1}
    assert found["waiting"]["canEverRun"] and found["waiting"]["cures"]
    assert "fails the vectorAdd" in found["broken"]["message"] and found["broken"]["disturbed"] == []
    assert [promise["name"] for promise in found["promises"] if not promise["kept"]] == []


async def test_a_machine_that_never_gets_ready_ends_the_demo_with_its_reason(tmp_path: Path) -> None:
    words = ("demo", "--timeout", "20s", "--progress", "plain")
    demo = asyncio.create_task(gpuplane(tmp_path, *words, program=("-c", TWO_MACHINES)))
    try:
        node = tmp_path / ".gpuplane/clusters/demo/nodes/sim-1"
        while not (node / "machine.json").exists() and not demo.done():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
        with Faults(node / "root" / STATE_PATH) as faults:
            faults.wrong_results(0)
        code, output, told = await demo
    finally:
        await gpuplane(tmp_path, "down", "demo")
    assert code == 1 and "✓ the whole story" not in output.decode() + told
    assert "✗ nine stages, each machine its own way: not done after 20s: GPU 0 fails the vectorAdd" in told
    assert "gpunode/sim-1, stage cuda" in told and " ✗ prepare " in told
