"""`gpuplane status` and `install` on a terminal: widths, live tables, what comes next, and no commands of users."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from gpuplane import names
from gpuplane.cli.forms import as_document
from gpuplane.cli.run import LogFormatter
from gpuplane.cli.terminal import COLOURS, Console, clipped, harmless
from kubekit.api.core import Deployment, Node
from kubekit.errors import Terminal
from packages.gpuplane.tests.cli.status_clusters import gpuplane, installed, report
from tests.support.extender_world import World, gpu_pod
from tests.support.terminals import on_terminal, plain

LOST = "lost: it is on the PCI bus, and NVML does not list it"
WRONG = "fails the vectorAdd: element 13 of 50000 is 2.5094 and should be 3.5094"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    async with installed(tmp_path) as made:
        yield made


@pytest.mark.parametrize("what", ["nodes", "gpus"])
async def test_everything_fits_eighty_columns(cluster: World, tmp_path: Path, what: str) -> None:
    name = "ip-10-0-123-234.eu-central-1.compute.internal"
    for node in ("a", name):
        await cluster.node(node, gpus=4)
    await report(cluster, "a", ready=True)
    await report(cluster, name, ready=False)
    for node in ("a", name):
        await cluster.set_gpus(node, 4, health={f"GPU-{node}-{at}": why for at, why in enumerate((LOST, WRONG), 2)})
    state = {names.UPGRADE_STATE_LABEL: "upgrade-failed"}
    await cluster.client.patch(Node, name, {"metadata": {"labels": state}})
    for number in range(3):
        await cluster.pod(gpu_pod(f"a-notebook-with-quite-a-long-name-7d9c8bf6c-{number}", (20, 4), nodeName="a"))
    async with on_terminal("status", what, "--kubeconfig", str(tmp_path / "config"), lines=60) as terminal:
        await terminal.process.wait()
        await terminal.until(lambda: len(terminal.text) > 300)
    lines = plain(terminal.text).splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert any(line.strip().startswith("a ") or "4 GPUs" in line for line in lines)
    assert LOST in " ".join(plain(terminal.text).split())


async def test_an_error_fits_eighty_columns(cluster: World, tmp_path: Path) -> None:
    await cluster.client.delete(Deployment, "gpu-operator", names.OPERATOR_NAMESPACE)
    async with on_terminal("status", "--kubeconfig", str(tmp_path / "config")) as terminal:
        assert await terminal.process.wait() == 1
        await terminal.until(lambda: "applies them" in " ".join(terminal.text.split()))
    assert max(map(len, plain(terminal.text).splitlines())) <= 80


async def test_waiting_shows_one_live_table_with_counts_and_ends_with_the_next_command(
    cluster: World, tmp_path: Path
) -> None:
    for name in ("n1", "n2"):
        await cluster.node(name)
    await report(cluster, "n1", ready=True)
    await report(cluster, "n2", ready=False)
    async with on_terminal("status", "--wait", "--kubeconfig", str(tmp_path / "config")) as terminal:
        await terminal.until(lambda: " 1 of 2 GPU nodes ready\n n2" in plain(terminal.text))
        await report(cluster, "n2", ready=True)
        assert await terminal.process.wait() == 0
        await terminal.until(lambda: "Next:" in terminal.text)
    assert terminal.text.rstrip().splitlines()[-1] == "Next: gpuplane status gpus lists every GPU with its holders"
    drawn, _, page = terminal.text.rpartition("\x1b[J")
    assert "all ready" in plain(page) and "1 of 2 GPU nodes ready" in drawn


async def test_waiting_that_runs_out_clears_the_table_and_says_what_comes_next(cluster: World, tmp_path: Path) -> None:
    for name in ("n1", "n2"):
        await cluster.node(name)
    await report(cluster, "n1", ready=True)
    await report(cluster, "n2", ready=False)
    ends = ["✗ 1 of 2 GPU nodes ready after 1 s", "Next: gpuplane status --wait goes on waiting"]
    wait = ("status", "--wait", "--timeout", "1s", "--kubeconfig", str(tmp_path / "config"))
    async with on_terminal(*wait) as terminal:
        assert await terminal.process.wait() == 1
        await terminal.until(lambda: "Next:" in terminal.text)
    drawn, _, page = terminal.text.rpartition("\x1b[J")
    assert " 1 of 2 GPU nodes ready\n n2" in plain(drawn)
    assert "1 of 2 need you" in page and plain(page).splitlines()[-2:] == ends
    assert plain(page).count("1 of 2 GPU nodes ready") == 1, "the table is gone"
    code, out, err = await gpuplane(tmp_path, "status", "--wait", "--timeout", "1s", "-o", "json")
    assert (code, json.loads(out)["kind"], err.splitlines()[-2:]) == (1, "Status", ends)


async def test_a_cluster_that_does_not_answer_in_time_is_no_cluster_without_gpus(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = {
            "current-context": "prod",
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
        }
        (tmp_path / "config").write_text(json.dumps(config))
        code, out, err = await gpuplane(tmp_path, "status", "--wait", "--timeout", "1s")
    assert (code, out) == (3, "")
    assert "the cluster did not answer within 1 s" in err


async def test_installing_draws_counts_then_the_nodes_and_ends_with_the_next_command(
    cluster: World, tmp_path: Path
) -> None:
    await cluster.node("n1")
    await report(cluster, "n1", ready=False)
    await cluster.client.delete(Deployment, "gpu-operator", names.OPERATOR_NAMESPACE)  # it has another selector
    arguments = ("install", "--wait", "--kubeconfig", str(tmp_path / "config"))
    async with on_terminal(*arguments) as terminal:
        await terminal.until(lambda: " 0 of 1 GPU node ready\n n1" in plain(terminal.text))
        await report(cluster, "n1", ready=True)
        assert await terminal.process.wait() == 0
        await terminal.until(lambda: "Next:" in terminal.text)
    counts = re.findall(r"(\d+) of (\d+) objects   \w+", plain(terminal.text))
    [total] = {all for _, all in counts}
    assert [int(done) for done, _ in counts] == list(range(1, int(total) + 1))
    _, _, page = terminal.text.rpartition("\x1b[J")
    assert f"✓ {total} objects applied\n" in plain(terminal.text) and "all ready" in page
    assert page.rstrip().splitlines()[-1] == "Next: gpuplane status gpus lists every GPU with its holders"
    await report(cluster, "n1", ready=False)
    code, out, err = await gpuplane(tmp_path, "install", "--wait", "--timeout", "5s")
    assert code == 1 and "1 of 1 need you" in out
    assert f"✓ Deployment {names.OPERATOR_NAMESPACE}/gpu-operator\n" in err
    assert err.splitlines()[-2:] == [
        "✗ 0 of 1 GPU node ready after 5 s",
        "Next: gpuplane status --wait goes on waiting",
    ]


async def test_what_users_write_gives_no_commands_to_a_terminal(cluster: World, tmp_path: Path) -> None:
    await cluster.node("n1")
    await report(cluster, "n1", ready=True)
    evil = {names.GPU_POLICY_ANNOTATION: "\x1b]0;title\x07\x1b[2J\x9b31mA100"}
    await cluster.pod(gpu_pod("late", whole=1, metadata={"name": "late", "annotations": evil}))
    async with on_terminal("explain", "late", "--kubeconfig", str(tmp_path / "config")) as terminal:
        assert await terminal.process.wait() == 0
        await terminal.until(lambda: "^[]0;title^G^[[2J" in terminal.text)
    assert not {"\x1b]", "\x1b[2J", "\x07", "\x9b"} & set(re.findall(r"\x1b\]|\x1b\[2J|\x07|\x9b", terminal.text))


def test_control_characters_are_written_out_and_our_colours_stay() -> None:
    screen = Console(io.StringIO(), io.StringIO(), colour="always")
    painted = "".join(screen.paint(colour, colour) for colour in COLOURS)
    assert harmless(f"{painted}\n\tü█") == f"{painted}\n\tü█"
    assert harmless("a\x1b[8mb\x1bc\r\x00\x7f\x9b") == "a^[[8mb^[c^M^@^?\\x9b"


EVIL = "\x1b]0;title\x07\x1b[31mred\x9b2J\x7f"
WRITTEN_OUT = "^[]0;title^G^[[31mred\\x9b2J^?"


@pytest.mark.parametrize("colour", ["auto", "never"])
def test_pipes_and_logs_get_no_commands_either(colour: str) -> None:
    """A terminal may display them later; nothing of ours is coloured there, so no colour is left."""
    out, err = io.StringIO(), io.StringIO()
    screen = Console(out, err, colour=colour)
    screen.print(EVIL)
    screen.say(EVIL)
    screen.error(Terminal(EVIL, where=EVIL, cure=EVIL))
    assert out.getvalue() == f"{WRITTEN_OUT}\n"
    assert err.getvalue().count(WRITTEN_OUT) == 4
    record = logging.LogRecord("gpuplane", logging.INFO, "", 0, "pod=%s", (EVIL,), None)
    assert LogFormatter("%(name)s %(message)s").format(record) == f"gpuplane pod={WRITTEN_OUT}"


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_documents_have_no_control_characters_and_the_same_content(form: str) -> None:
    out = io.StringIO()
    Console(out, io.StringIO()).print(as_document("Page", {"text": f"{EVIL}\x85\x00ü"}, form))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out.getvalue())
    assert yaml.safe_load(out.getvalue())["text"] == f"{EVIL}\x85\x00ü"
    if form == "json":
        assert json.loads(out.getvalue())["text"] == f"{EVIL}\x85\x00ü"


def test_a_window_shows_the_head_and_the_end() -> None:
    lines = [str(number) for number in range(10)]
    assert clipped(lines, 80, 10) == lines
    assert clipped(lines, 80, 4) == ["0", "    7 lines more in a higher window", "8", "9"]
    assert clipped(["\x1b[31mabcdef\x1b[0m"], 3, 5) == ["\x1b[31mabc\x1b[0m"]
