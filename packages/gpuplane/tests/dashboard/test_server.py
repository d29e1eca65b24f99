"""`gpuplane dashboard` in a process of its own: who gets in, what is answered, and what a changed cluster sends."""

from __future__ import annotations

import asyncio
import gzip
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane.api.gpunode import GPUNode
from gpuplane.dashboard.server import POLICY
from packages.gpuplane.tests.cli.status_clusters import gpuplane, installed, report
from packages.gpuplane.tests.dashboard.scene import HTML, Started, dashboard, event, get
from tests.support.extender_world import World, gpu_pod
from tests.support.until import until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    async with installed(tmp_path) as made:
        await made.node("n1")
        await report(made, "n1", ready=True)
        yield made


@pytest.fixture
async def page(cluster: World, tmp_path: Path) -> AsyncIterator[Started]:
    async with dashboard(tmp_path) as started:
        yield started


async def test_without_the_key_nothing_is_answered(page: Started) -> None:
    for path in ("/", "/page/app.js", "/api/snapshot", "/api/changes", "/api/node/n1", "/?key=wrong", "/missing"):
        answer = await get(page, path, cookie=False)
        assert (answer.status, b"address that" in answer.body) == (403, True)
    answer = await get(page, f"/?key={page.key}", cookie=False)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"gpuplane-{page.port}={page.key};") and "HttpOnly" in cookie and "SameSite=lax" in cookie


async def test_another_site_that_resolves_to_this_machine_gets_nothing(page: Started) -> None:
    assert (await get(page, "/api/snapshot", host=f"evil.example:{page.port}")).status == 421
    assert (await get(page, "/api/snapshot", host="127.0.0.1")).status == 421
    assert (await get(page, "/api/snapshot", host=f"localhost:{page.port}")).status == 200


async def test_every_answer_forbids_scripts_and_files_of_others(page: Started) -> None:
    for path in ("/", "/node/n1", "/pod/ml/a", "/page/app.js", "/page/missing.js", "/api/node/missing"):
        headers = (await get(page, path)).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    assert "unsafe" not in POLICY and "http" not in POLICY


async def test_no_path_leads_to_other_files(page: Started) -> None:
    for path in ("/page/../server.py", "/page/..%2fserver.py", "/page/%2e%2e/server.py", "/page//etc/passwd"):
        assert (await get(page, path)).status == 404


async def test_the_snapshot_is_the_cluster(page: Started) -> None:
    answer = await get(page, "/api/snapshot")
    found = msgspec.json.decode(gzip.decompress(answer.body))["data"]
    assert found["cluster"] == "prod" and found["version"] == "0.0.7"
    assert found["nodes"]["n1"]["held"] == [0, 0]


async def next_change(reader: asyncio.StreamReader, part: str) -> dict[str, Any]:
    """The next change of a part of the document; others come with what is measured."""
    kind = ""
    async with asyncio.timeout(60):
        while True:
            line = (await reader.readline()).decode().strip()
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: ") and kind == "change":
                found: dict[str, Any] = msgspec.json.decode(line.removeprefix("data: "))
                if part in found:
                    return found


async def test_a_change_of_the_cluster_reaches_the_viewer(page: Started, cluster: World) -> None:
    version = msgspec.json.decode(gzip.decompress((await get(page, "/api/snapshot")).body))["version"]
    reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
    cookie = f"Cookie: gpuplane-{page.port}={page.key}"
    writer.write(
        f"GET /api/changes?after={version} HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n{cookie}\r\n\r\n".encode()
    )
    assert b"200" in await reader.readline()
    await cluster.client.patch(GPUNode, "n1", {"status": {"health": {"GPU-n1-1": "Xid 79: fallen off the bus"}}})
    assert (await next_change(reader, "nodes"))["nodes"] == {
        "n1": {"faults": {"1": "Xid 79: fallen off the bus"}, "lost": [1]}
    }
    # A viewer who disappears leaves the others theirs.
    writer.transport.abort()
    assert (await get(page, "/api/snapshot")).status == 200


async def test_a_node_has_its_stages_gpus_holders_and_events(page: Started, cluster: World) -> None:
    await cluster.pod(gpu_pod("train", whole=2, nodeName="n1"))
    await event(cluster, "n1", "GPULost", HTML)

    async def held() -> bool:
        node = (await get(page, "/api/node/n1")).json
        return bool(node["holders"])

    await until(held, seconds=60)
    found = (await get(page, "/api/node/n1")).json
    assert len(found["stages"]) == 9
    assert found["holders"] == [{"pod": "default/train", "holds": "2 GPUs"}] and not found["known"]
    assert [(one["reason"], one["message"]) for one in found["events"]] == [("GPULost", HTML)]
    answer = await get(page, "/api/node/n2")
    assert answer.status == 404 and "n2" in answer.json["what"] and answer.json["cure"]


async def test_a_pod_is_explained_in_the_words_of_explain(page: Started, cluster: World, tmp_path: Path) -> None:
    await cluster.pod(gpu_pod("train", whole=3))
    found = (await get(page, "/api/pod/default/train")).json
    code, out, _ = await gpuplane(tmp_path, "explain", "default/train", "-o", "wide")
    assert code == 0 and found["text"].splitlines()[1:] == out.rstrip("\n").splitlines()[1:]
    assert found["cures"][0]["change"] == "ask 2 instead of 3 GPUs"
    assert [one["pod"] for one in (await get(page, "/api/waiting")).json] == ["default/train"]
    answer = await get(page, "/api/pod/default/trian")
    assert answer.status == 404 and "did you mean default/train" in answer.json["what"]


async def test_when_the_api_server_goes_the_state_says_so(page: Started, cluster: World) -> None:
    await cluster.server.stop()
    await until(lambda: state_of(page), seconds=60)
    assert (await get(page, "/api/snapshot")).status == 200
    answer = await get(page, "/api/pod/default/train")
    assert answer.status >= 500 and answer.json["what"]


async def state_of(page: Started) -> str:
    """Why the dashboard's data are old, empty while they are not."""
    version = msgspec.json.decode(gzip.decompress((await get(page, "/api/snapshot")).body))["version"]
    reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
    cookie = f"Cookie: gpuplane-{page.port}={page.key}"
    writer.write(
        f"GET /api/changes?after={version} HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n{cookie}\r\n\r\n".encode()
    )
    try:
        while not (line := await reader.readline()).startswith(b"data: "):
            assert line
        why: str = msgspec.json.decode(line.removeprefix(b"data: "))["why"]
        return why
    finally:
        writer.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_and_the_streams_of_its_viewers(page: Started, number: signal.Signals) -> None:
    version = msgspec.json.decode(gzip.decompress((await get(page, "/api/snapshot")).body))["version"]
    reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
    cookie = f"Cookie: gpuplane-{page.port}={page.key}"
    writer.write(
        f"GET /api/changes?after={version} HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n{cookie}\r\n\r\n".encode()
    )
    assert b"200" in await reader.readline()
    page.process.send_signal(number)
    _, told = await page.process.communicate()
    assert page.process.returncode == 0
    assert len(told.splitlines()) == 1 and b"Ctrl-C ends it" in told
    writer.close()


async def test_a_port_in_use_and_a_user_without_rights_are_errors(tmp_path: Path) -> None:
    async with installed(tmp_path) as world:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            code, out, err = await gpuplane(tmp_path, "dashboard", "--port", str(taken.getsockname()[1]))
        assert (code, out) == (1, "") and "in use" in err and "--port" in err
        (tmp_path / "config").write_text(world.kubeconfig("nobody"))
        arguments = (sys.executable, "-m", "gpuplane", "dashboard", "--kubeconfig", str(tmp_path / "config"))
        process = await asyncio.create_subprocess_exec(*arguments, stderr=asyncio.subprocess.PIPE)
        _, told = await process.communicate()
        assert process.returncode == 3 and b"Unauthorized" in told
