"""The dashboard in Debian's Chromium: every page at 1,440 and 390 px, by keyboard, live, and with hostile names.

`GPUPLANE_PICTURES=1` writes the pictures of the documentation again.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuplane.api.gpunode import GPUNode
from packages.gpuplane.tests.dashboard.scene import ANSI, HTML, cluster, dashboard
from tests.support import browser
from tests.support.layouts import layout_changes

PICTURES = Path(__file__).resolve().parents[4] / "docs" / "pictures"
PICTURED = ("first", "node", "pod", "cost", "mine")
TOLERANCE = 3  # blocks of 16 x 16 pixels that touch; texts with ages do not count
AGAIN = "GPUPLANE_PICTURES=1 writes docs/pictures and layouts.json again; look at them"
LAYOUTS = Path(__file__).with_name("layouts.json")


async def lines(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(120):
        return (await process.stdout.readline()).decode().strip()


async def toured(folder: Path, python: Path) -> dict[str, Any]:
    """Return Chromium's findings about the scene: a GPU is lost meanwhile, and at the end the API server stops."""
    async with cluster(folder) as world, dashboard(folder) as started:
        script = Path(__file__).with_name("browse.py")
        pictures = folder / "none" if os.environ.get("GPUPLANE_PICTURES") else PICTURES
        process = await asyncio.create_subprocess_exec(
            *(str(python), str(script), started.address, str(folder), str(pictures)),
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 22,
        )
        try:
            assert await lines(process) == "ready"
            health = {"GPU-gpu-t-03-2": f"Xid 48: {HTML} {ANSI}"}
            await world.client.patch(GPUNode, "gpu-t-03", {"status": {"health": health}})
            assert await lines(process) == "changed"
            await world.server.stop()
            found: dict[str, Any] = json.loads(await lines(process))
            return found
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    python, folder = browser.python(), tmp_path_factory.mktemp("browser")
    found = asyncio.run(toured(folder, python))
    if os.environ.get("GPUPLANE_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        for name in PICTURED:
            for width in (1440, 390):
                shutil.copy(folder / f"{name}-{width}.png", PICTURES / f"{name}-{width}.png")
        write_layouts(found["tour"])
    return found


def layouts(seen: dict[str, Any]) -> dict[str, Any]:
    """Return the layout of each page that was visited."""
    return {name: page["layout"] for name, page in seen.items() if not name.startswith("tab-")}


def write_layouts(seen: dict[str, Any]) -> None:
    """Write the layouts of the pages that were visited; those of other pages stay."""
    before = json.loads(LAYOUTS.read_text()) if LAYOUTS.exists() else {}
    lines = (f"{json.dumps(name)}: {json.dumps(parts)}" for name, parts in sorted({**before, **layouts(seen)}.items()))
    LAYOUTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def moved(seen: dict[str, Any]) -> dict[str, list[str]]:
    """Return how the layouts of the pages that were visited differ from those of before, by page."""
    before = json.loads(LAYOUTS.read_text())
    found = {name: layout_changes(before.get(name, ()), parts) for name, parts in layouts(seen).items()}
    return {name: changes for name, changes in found.items() if changes}


def pages(seen: dict[str, Any]) -> dict[str, Any]:
    return {name: page for name, page in seen["tour"].items() if not name.startswith("tab-")}


def test_every_page_fits_its_width(seen: dict[str, Any]) -> None:
    assert {name for name, page in pages(seen).items() if page["wide"] > int(name.rpartition("-")[2])} == set()


def test_messages_of_html_and_ansi_are_text(seen: dict[str, Any]) -> None:
    found = seen["live"]
    for text in (found["needs"], found["node"]):
        assert HTML in text and "^[[31mred" in text
    assert HTML in found["node"].partition("Events")[2]
    assert (found["title"], found["images"]) == ("prod - gpuplane", 0)


def test_nothing_is_asked_of_others_and_nothing_is_complained_of(seen: dict[str, Any]) -> None:
    for tab in (seen["tour"]["tab-1440"], seen["tour"]["tab-390"], seen["keyboard"]):
        assert (tab["elsewhere"], tab["complaints"]) == ([], [])


def test_what_can_be_pressed_has_a_name(seen: dict[str, Any]) -> None:
    assert {name: page["unnamed"] for name, page in pages(seen).items() if page["unnamed"]} == {}


def test_the_first_page_says_what_is_held_what_fits_and_what_needs_a_person(seen: dict[str, Any]) -> None:
    text = seen["tour"]["first-1440"]["text"]
    for words in ("39.3 of 80 GPUs", "43 running", "8 GPUs ×1", "gpu-h-07", "ask 8 instead of 16 GPUs"):
        assert words in text


def test_the_first_page_says_how_busy_it_is_and_who_holds_gpus_without_use(seen: dict[str, Any]) -> None:
    text = seen["tour"]["first-1440"]["text"]
    for words in ("3 GPUs held idle", "67 of 80 GPUs measured", "ml/train-2-0 1 GPU, idle for", "no Prometheus"):
        assert words in text
    assert "49%" in seen["tour"]["node-1440"]["text"] and "not measured" in seen["tour"]["node-1440"]["text"]
    assert "92.0 of 100%" in seen["tour"]["placed-1440"]["text"]


def test_the_pages_of_nodes_and_pods_have_their_answers(seen: dict[str, Any]) -> None:
    node, waits, placed = (seen["tour"][f"{name}-1440"]["text"] for name in ("node", "pod", "placed"))
    assert "Xid 79: fallen off the bus" in node and "ml/serve-2-3-50" in node and "GPULost" in node
    assert "Links" in node and "GPU 0\tX\tPHB\tSYS\tSYS" in node
    assert "GPU 7\tNV18\tNV18" in seen["tour"]["broken-1440"]["text"]
    assert "drop the nodeSelector" in waits and "can ever run: yes" in waits
    assert "gpu-h-01" in placed and "holds 1 GPU" in placed


def test_the_page_of_costs_has_hours_and_says_what_is_missing(seen: dict[str, Any]) -> None:
    text = seen["tour"]["cost-1440"]["text"]
    for words in (
        "from 1 exporter",
        "not the last week",
        "Used h",
        "ml/Job/train-1",
        "unbooked",
        "total",
        "GPU hours have no price",
    ):
        assert words in text


def test_the_page_of_a_namespace_has_what_runs_and_what_fits(seen: dict[str, Any]) -> None:
    text = seen["tour"]["mine-1440"]["text"]
    for words in ("Others: default", "ml/train-2-0", "gpu-h-02/0 whole", "idle for", "92.0 of 100%", "8 GPUs ×1"):
        assert words in text


def test_a_filter_a_gpu_and_a_node_are_reached_by_keyboard(seen: dict[str, Any]) -> None:
    found = seen["keyboard"]
    assert "1 of 80 GPUs" in found["filtered"]
    assert found["url"] == "q=model%3AT4%20is%3Alost"
    assert found["chosen"].startswith("gpu-h-02/1") and "100% held" in found["chosen"]
    assert found["opened"].startswith("gpu-h-02")
    assert found["back"] == "model:T4 is:lost"
    [row] = found["rows"]
    assert "gpu-t-02" in row and "3: 50%" in row and "fallen off the bus" in row
    assert found["ground"] == "rgb(18, 23, 29)"  # that of the dark scheme


def test_the_ring_of_the_chosen_gpu_leaves_nothing_behind(seen: dict[str, Any]) -> None:
    without, first, second, again = seen["keyboard"]["rings"]
    assert without == again and len({without, first, second}) == 3


def test_a_change_is_drawn_and_old_data_are_called_old(seen: dict[str, Any]) -> None:
    found = seen["live"]
    assert (found["before"].split()[-1], found["after"].split()[-1]) == ("3", "4")
    assert " old: " in found["old"] and found["held"].startswith("39.3")


def test_the_pictures_of_the_documentation_are_what_the_pages_look_like(seen: dict[str, Any]) -> None:
    found = dict(seen["differences"])
    if os.environ.get("GPUPLANE_PICTURES"):
        pytest.skip("the pictures were written again")
    assert found.pop("another page") > TOLERANCE  # the comparison sees a difference
    assert set(found) == {f"{name}-{width}" for name in PICTURED for width in (1440, 390)}
    assert {name: part for name, part in found.items() if part > TOLERANCE} == {}, AGAIN


def test_the_parts_of_every_page_are_where_they_were(seen: dict[str, Any]) -> None:
    assert moved(seen["tour"]) == {}, AGAIN
