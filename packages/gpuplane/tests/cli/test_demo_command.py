"""Messages of `gpuplane demo` when it is interrupted, or started twice."""

from __future__ import annotations

import asyncio
import io
from argparse import Namespace
from pathlib import Path
from shutil import disk_usage

import pytest

from gpulab.demo import command
from gpulab.demo.acts import Acts, DemoFailed
from gpulab.demo.story import Story
from gpulab.distribution import GPUPLANE
from gpuplane.cli.terminal import Console
from tinykube.cluster import ClusterSpec
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
    options = Namespace(timeout=1.0, progress="quiet", output="text", down=False, cloud=False, kubernetes="")
    with pytest.raises(asyncio.CancelledError):
        await command._demo(options, Console(io.StringIO(), said))
    assert (
        "The cluster is still up" in said.getvalue()
        and "export KUBECONFIG=" in said.getvalue()
        and "gpuplane down demo" in said.getvalue()
    )


async def test_a_demo_on_a_full_disk_is_refused_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path))
    free = disk_usage(tmp_path)._replace(free=20 << 20)
    monkeypatch.setattr("shutil.disk_usage", lambda path: free)
    options = Namespace(timeout=1.0, progress="quiet", output="text", down=False, cloud=False, kubernetes="")
    with pytest.raises(DemoFailed, match="20 MiB are free, the demo needs 50 MiB") as caught:
        await command._demo(options, Console(io.StringIO(), io.StringIO()))
    assert caught.value.where == str(tmp_path) and "GPUPLANE_HOME" in caught.value.cure


async def test_an_act_that_fills_the_disk_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path))
    free = disk_usage(tmp_path)._replace(free=4096)
    monkeypatch.setattr("shutil.disk_usage", lambda path: free)
    console = Console(io.StringIO(), io.StringIO())
    acts = Acts(ClusterSpec(name="demo"), Story(command.STEPS, lambda: 0.0), console, patience_seconds=1)
    (reason,) = await acts.reasons()
    assert "the disk is full" in reason.what and reason.where == str(tmp_path)


async def test_a_second_demo_is_refused_and_the_first_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path))
    options = Namespace(timeout=1.0, progress="quiet", output="text", down=False, cloud=False, kubernetes="")
    async with command_lock(GPUPLANE, tmp_path, lambda: None):
        with pytest.raises(DemoFailed, match="running already") as caught:
            await command._demo(options, Console(io.StringIO(), io.StringIO()))
    assert "GPUPLANE_HOME" in caught.value.cure
