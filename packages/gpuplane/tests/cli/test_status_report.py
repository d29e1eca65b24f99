"""`gpuplane.status()` for Python and notebooks: what its answer says, in text and in HTML."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gpuplane
from gpuplane.cli.overview import overview as made
from gpuplane.cli.status_html import status_html
from gpuplane.cli.status_report import StatusReport
from kubekit.errors import KubekitError
from packages.gpuplane.tests.cli.status_clusters import installed, report
from packages.gpuplane.tests.cli.status_objects import NOW, gpunode, overview, pod, without_headers
from tests.support import jupyter

HOSTILE = '<img src=x onerror="1">\x1b[31m'


class Tables(HTMLParser):
    """Checks that elements nest; collects the rows of tables, all text, and what a browser would fetch or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.active: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.active += [name for name, _ in attrs if name in ("src", "href") or name.startswith("on")]
        self.active += [tag] if tag in ("script", "img", "style", "link") else []
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data


def test_the_html_has_models_troubles_and_pods_that_wait() -> None:
    nodes = [gpunode("n1", sick=True), without_headers("n2")]
    seen = overview(nodes, [pod("a", "n1", 1), pod("b", "", 1)], {"n1": 1})
    page = Tables(status_html("prod", seen, NOW))
    assert page.active == []
    assert "prod · 2 GPU nodes, 2 GPUs · 1 of 2 GPUs held, 50% · 1 running, 1 waiting" in page.text
    assert "✗ 2 of 2 need you" in page.text and "read at 2" in page.text
    heads = [row[0] for row in page.rows]
    assert heads == [
        "Model",
        "L4",
        "not seen yet",
        "What needs you",
        "n1: ready",
        "n2: driver",
        "Pod that waits",
        "ml/b",
    ]
    assert "Xid 79: fallen off the bus" in page.rows[4][2]
    assert page.rows[5][2].startswith("its GPUs not advertised\nno linux-headers") and "repoConfig" in page.rows[5][3]


def test_names_do_not_become_markup_or_commands_of_a_terminal() -> None:
    seen = overview([without_headers("n1")], [], {})
    node = msgspec.structs.replace(seen.nodes[0], what=HOSTILE, cure=HOSTILE)
    answer = StatusReport(HOSTILE, msgspec.structs.replace(seen, nodes=(node,)), NOW)
    page = Tables(answer._repr_html_())
    assert page.active == [] and page.text.count('<img src=x onerror="1">^[[31m') == 3
    assert "\x1b" not in repr(answer) and "^[[31m" in repr(answer)


def test_long_lists_are_counted() -> None:
    waiting = [pod(f"p{at}", "", 1) for at in range(30)]
    page = Tables(status_html("prod", overview([gpunode("n1")], waiting, {"n1": 2}), NOW))
    assert len([row for row in page.rows if row[0].startswith("ml/p")]) == 20
    assert "and 10 more" in page.text


def test_a_cluster_without_nodes_has_no_tables() -> None:
    page = Tables(status_html("prod", made([], [], {}), NOW))
    assert page.rows == [] and "0 GPU nodes, 0 GPUs" in page.text


async def test_the_cluster_is_read_where_a_loop_runs(tmp_path: Path) -> None:
    async with installed(tmp_path) as world:
        await world.node("n1", 2)
        await report(world, "n1", ready=False)

        def ask() -> StatusReport:
            async def cell() -> StatusReport:
                return gpuplane.status(kubeconfig=str(tmp_path / "config"))  # as in a cell: the loop runs

            return asyncio.run(cell())

        answer = await asyncio.to_thread(ask)
    assert repr(answer).startswith(f"{answer.cluster}   1 GPU node   2 GPUs   gpuplane 0.0.7")
    assert "the compiler of this node's kernel is missing" in repr(answer)
    assert answer.to_dict()["nodes"][0]["name"] == "n1" and answer.seen.nodes[0].stage == "driver"
    assert "install the compiler that made the kernel" in Tables(answer._repr_html_()).text


def test_a_cluster_that_cannot_be_asked_is_an_error_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(KubekitError, match="missing"):
        gpuplane.status(kubeconfig=tmp_path / "missing")


def test_the_package_is_imported_without_the_command(tmp_path: Path) -> None:
    code = "import sys, gpuplane; print([name for name in sys.modules if name.startswith(('gpuplane.', 'msgspec'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


KERNEL = """
import json, sys
from jupyter_client.manager import KernelManager
manager = KernelManager()
manager.kernel_spec.argv[0] = sys.argv[1]
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=100)
found = {}
def seen(message):
    if message["msg_type"] == "execute_result":
        found["data"] = message["content"]["data"]
    if message["msg_type"] == "error":
        found["error"] = message["content"]["evalue"]
client.execute_interactive(sys.argv[2], timeout=100, output_hook=seen)
client.stop_channels()
manager.shutdown_kernel(now=True)
print(json.dumps(found))
"""


async def test_a_cell_of_jupyter_displays_the_tables(tmp_path: Path) -> None:
    place = jupyter.find()
    if place is None:
        pytest.skip("no Jupyter: python -m tests.support.jupyter installs it, as make test-kubernetes does")
    [modules] = place.glob("lib/python*/site-packages")
    async with installed(tmp_path) as world:
        await world.node("n1", 2)
        await report(world, "n1", ready=True)
        cell = f"import gpuplane\ngpuplane.status(kubeconfig={str(tmp_path / 'config')!r})"
        # The kernel is of this environment, which has gpuplane; Jupyter's modules are those of its own.
        process = await asyncio.create_subprocess_exec(
            *(str(place / "bin" / "python"), "-c", KERNEL, sys.executable, cell),
            stdout=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(modules)},
        )
        printed, _ = await process.communicate()
    found: dict[str, Any] = json.loads(printed)
    assert "error" not in found, found
    assert "1 GPU node" in found["data"]["text/plain"]
    page = Tables(found["data"]["text/html"])
    assert page.active == [] and page.rows[0][0] == "Model"
