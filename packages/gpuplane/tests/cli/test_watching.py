"""`gpuplane status --watch`: what a terminal, a pipe and a program get of each change, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.cli.status_reading import Follower
from kubekit.api.core import Deployment
from kubekit.kube import TooManyRequests
from packages.gpuplane.tests.cli.status_clusters import followed, gpuplane, installed, report
from tests.support.extender_world import World, gpu_pod
from tests.support.terminals import on_terminal, plain


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    async with installed(tmp_path) as made:
        yield made


async def test_watching_draws_no_more_than_the_window_shows(cluster: World, tmp_path: Path) -> None:
    for number in range(12):
        await cluster.node(f"n{number:02}", gpus=1)
        await report(cluster, f"n{number:02}", ready=False)
    arguments = ("status", "--watch", "--kubeconfig", str(tmp_path / "config"))
    async with on_terminal(*arguments, columns=70, lines=16) as terminal:
        await terminal.until(lambda: "12 need you" in plain(terminal.text))
        await report(cluster, "n00", ready=True)
        await terminal.until(lambda: "11 of 12 need you" in plain(terminal.text))
        await terminal.until(lambda: len(terminal.frames()[-1]) == 15)
    for frame in terminal.frames()[:-1]:
        assert len(frame) == 15
        assert max(map(len, frame)) <= 70
    assert any("lines more in a higher window" in line for line in terminal.frames()[0])


@pytest.mark.parametrize("kind", ["pipe", "dumb terminal"])
async def test_watching_without_a_terminal_prints_a_line_for_each_change(
    cluster: World, tmp_path: Path, kind: str
) -> None:
    await cluster.node("n1")
    await report(cluster, "n1", ready=False)
    arguments = ("status", "--watch", "--kubeconfig", str(tmp_path / "config"))
    if kind == "dumb terminal":
        async with on_terminal(*arguments, TERM="dumb") as terminal:
            await terminal.until(lambda: "n1" in terminal.text)
            await report(cluster, "n1", ready=True)
            await terminal.until(lambda: terminal.text.count("n1 ") == 2)
        assert "\x1b" not in terminal.text
        return
    async with followed(*arguments) as line:
        assert (await line()).startswith("n1   ")
        await report(cluster, "n1", ready=True)
        assert "ready" in await line()


async def test_a_pipe_gets_the_causes_of_changes_and_the_pods_that_wait(cluster: World, tmp_path: Path) -> None:
    await cluster.node("n1", gpus=1)
    await report(cluster, "n1", ready=True)
    fault = "Xid 79: fallen off the bus"
    async with followed("status", "gpus", "--watch", "--kubeconfig", str(tmp_path / "config")) as line:
        assert [(await line()).split()[0] for _ in range(2)] == ["n1", "n1/0"]
        await cluster.pod(gpu_pod("serve", whole=1, nodeName="n1"))
        assert await line() == "n1/0   default/serve whole"
        await cluster.client.patch(GPUNode, "n1", {"status": {"health": {"GPU-n1-0": fault}}})
        assert (await line()).endswith(f"ready   GPU 0: {fault}; default/serve holds it")
        assert await line() == f"n1/0   ✗ {fault}   default/serve whole"
        await cluster.set_ready("n1", ready=False)
        assert f"the node is not Ready: Test; GPU 0: {fault}" in await line()
        await cluster.pod(gpu_pod("late", whole=1))
        assert await line() == "default/late   waits for GPUs   gpuplane explain default/late"
        await cluster.client.delete(GPUNode, "n1")
        assert await line() == "n1   gone"


async def test_watching_refuses_labels_that_the_server_refuses(cluster: World, tmp_path: Path) -> None:
    for words in ((), ("--watch",), ("--wait",)):
        code, out, err = await gpuplane(tmp_path, "status", "-l", "a in b", *words)
        assert (code, out) == (1, "") and "unable to parse requirement" in err, words


async def test_watching_goes_on_while_the_api_server_cannot_say_whether_there_is_an_operator(
    cluster: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.node("n1")
    await report(cluster, "n1", ready=False)
    await cluster.client.delete(Deployment, "gpu-operator", names.OPERATOR_NAMESPACE)
    follower = Follower(cluster.client)
    try:
        await follower.start()
        assert follower.seen().unattended
        get = cluster.client.get

        async def away(kind: Any, *arguments: Any) -> Any:
            if kind is Deployment:
                raise TooManyRequests("try later")
            return await get(kind, *arguments)

        monkeypatch.setattr(cluster.client, "get", away)
        await report(cluster, "n1", ready=True)
        async with asyncio.timeout(60):
            while not follower.seen().nodes[0].ready:
                await follower.changed()
    finally:
        await follower.aclose()


async def test_documents_of_a_watch_in_yaml_are_apart(cluster: World, tmp_path: Path) -> None:
    await cluster.node("n1")
    await report(cluster, "n1", ready=False)
    async with followed("status", "-w", "-o", "yaml", "--kubeconfig", str(tmp_path / "config")) as line:
        assert await line() == "---"
        await report(cluster, "n1", ready=True)
        text = ""
        while not (found := await line()).startswith("---"):
            text += found + "\n"
    assert yaml.safe_load(text)["kind"] == "Status"
