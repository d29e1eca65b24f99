"""The pages of node pools and upgrades, and the last 24 hours of the first page, in Debian's Chromium.

At 1,440 and 390 px, light and dark, with hostile names.

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

from packages.gpuplane.tests.dashboard.scene import HTML, dashboard
from packages.gpuplane.tests.dashboard.scene_day import recorded
from packages.gpuplane.tests.dashboard.scene_pools import BROKEN, FULL, SPOT
from packages.gpuplane.tests.dashboard.test_browser import AGAIN, PICTURES, TOLERANCE, moved, write_layouts
from tests.support import browser

PAGES = {"pools": ["/pools", ".pools table"], "upgrades": ["/upgrades", ".upgrades .steps"], "day": ["/", ".day .busy"]}
# The hours of the day begin where the test does, so its pictures are never the same.
COMPARED = ("pools", "upgrades")
WIDTHS = (1440, 390)


async def toured(folder: Path) -> dict[str, Any]:
    """Return Chromium's findings about the pages."""
    async with recorded(folder), dashboard(folder, "--local") as started:
        script = Path(__file__).with_name("browse_pages.py")
        pictures = folder / "none" if os.environ.get("GPUPLANE_PICTURES") else PICTURES
        return await browser.tour(script, started.address, str(folder), str(pictures), json.dumps(PAGES))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    browser.python()  # skips before a cluster is started
    folder = tmp_path_factory.mktemp("pages")
    found = asyncio.run(toured(folder))
    if os.environ.get("GPUPLANE_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        for name in PAGES:
            for width in WIDTHS:
                shutil.copy(folder / f"{name}-{width}.png", PICTURES / f"{name}-{width}.png")
        write_layouts(compared(found["light"]))
    return found


def compared(seen: dict[str, Any]) -> dict[str, Any]:
    return {name: page for name, page in seen.items() if name.rpartition("-")[0] in COMPARED}


def pages(seen: dict[str, Any], scheme: str) -> dict[str, Any]:
    return {name: page for name, page in seen[scheme].items() if not name.startswith("tab-")}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_their_width_have_names_and_ask_nobody_else(seen: dict[str, Any], scheme: str) -> None:
    found = pages(seen, scheme)
    assert {name for name, page in found.items() if page["wide"] > int(name.rpartition("-")[2])} == set()
    assert {name: page["unnamed"] for name, page in found.items() if page["unnamed"]} == {}
    for width in WIDTHS:
        tab = seen[scheme][f"tab-{width}"]
        assert (tab["elsewhere"], tab["complaints"]) == ([], [])


def test_the_page_of_pools_says_what_a_node_costs_and_why_a_pool_does_not_grow(seen: dict[str, Any]) -> None:
    for width in WIDTHS:
        text = seen["light"][f"pools-{width}"]["text"]
        for words in (
            f"{FULL} does not grow",
            "at its limit: cpu 96 of 96",
            f"{BROKEN} does not grow",
            "tag one of the subnets",
            "sufficient p5.48xlarge capacity",
            "launching",
            "$19.42",
            "$77.68",
            f"{SPOT}-7f2c81aa90",
            "InsufficientCapacityError",
        ):
            assert words in text


def test_the_page_of_upgrades_has_each_node_with_its_step_and_the_rollout(seen: dict[str, Any]) -> None:
    for width in WIDTHS:
        text = seen["light"][f"upgrades-{width}"]["text"]
        for words in (
            "6 nodes",
            "1 waits for its turn",
            "1 failed",
            "replace the driver",
            "ml/train-2",
            "4 of 6",
            "5 ready",
        ):
            assert words in text


def test_the_first_page_has_the_last_24_hours_as_a_chart_and_as_a_table(seen: dict[str, Any]) -> None:
    for width in WIDTHS:
        page = seen["light"][f"day-{width}"]
        chart, rows = page["day"]["label"], page["day"]["rows"]
        assert "average of each hour, from the dashboard's store" in page["text"]
        assert chart.startswith("24 hours of GPUs. In the last hour ") and "The table below has every hour" in chart
        assert "up to 40 GPUs and 18 pods that waited" in page["text"]
        # An hour that began after the scene was made has no row yet.
        assert len(rows) in (23, 24) and page["day"]["bars"] >= 3 * 22
        # The hour in which most pods waited.
        assert ["40", "24", "0", "18"] in [row.split("\t")[1:] for row in rows]


def test_messages_of_html_are_text(seen: dict[str, Any]) -> None:
    for name in ("pools-1440", "upgrades-1440"):
        page = seen["light"][name]
        assert HTML in page["text"] and (page["title"], page["images"]) == ("prod - gpuplane", 0)
    assert "^[[31mred" in seen["light"]["pools-1440"]["text"]


def test_the_dark_scheme_is_dark(seen: dict[str, Any]) -> None:
    grounds = {scheme: {page["ground"] for page in pages(seen, scheme).values()} for scheme in ("light", "dark")}
    assert grounds == {"light": {"rgb(245, 246, 248)"}, "dark": {"rgb(18, 23, 29)"}}


def test_the_pictures_of_the_documentation_are_what_the_pages_look_like(seen: dict[str, Any]) -> None:
    if os.environ.get("GPUPLANE_PICTURES"):
        pytest.skip("the pictures were written again")
    found = compared(seen["differences"])
    assert set(found) == {f"{name}-{width}" for name in COMPARED for width in WIDTHS}
    assert {name: part for name, part in found.items() if part > TOLERANCE} == {}, AGAIN


def test_the_parts_of_every_page_are_where_they_were(seen: dict[str, Any]) -> None:
    assert moved(compared(seen["light"])) == {}, AGAIN
