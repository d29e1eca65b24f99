"""What `gpuplane demo` says when it is interrupted, or started twice."""

from __future__ import annotations

import asyncio
import io
from argparse import Namespace
from pathlib import Path

import pytest

from gpulab.demo import command
from gpulab.demo.acts import Acts, DemoFailed
from gpulab.distribution import GPUPLANE
from gpuplane.cli.terminal import Console
from tinykube.cluster.command_lock import command_lock


async def test_an_interrupted_demo_says_that_its_cluster_is_still_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path))

    async def interrupted(acts: Acts) -> None:
        spec = tmp_path / "clusters" / command.NAME / "cluster.json"
        spec.parent.mkdir(parents=True)
        spec.touch()
        raise asyncio.CancelledError

    monkeypatch.setattr(Acts, "play", interrupted)
    said = io.StringIO()
    options = Namespace(timeout=1.0, progress="quiet", output="text", down=False)
    with pytest.raises(asyncio.CancelledError):
        await command._demo(options, Console(io.StringIO(), said))
    assert "The cluster is still up" in said.getvalue() and "gpuplane down demo" in said.getvalue()


async def test_a_second_demo_is_refused_and_the_first_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path))
    options = Namespace(timeout=1.0, progress="quiet", output="text", down=False)
    async with command_lock(GPUPLANE, tmp_path, lambda: None):
        with pytest.raises(DemoFailed, match="running already") as caught:
            await command._demo(options, Console(io.StringIO(), io.StringIO()))
    assert "GPUPLANE_HOME" in caught.value.cure
