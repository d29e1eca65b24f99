"""The pages of `simulate packing --html` and `simulate nodes --html` in Debian's Chromium, at 1,440 and 390 px.

`GPUPLANE_PICTURES=1` writes the pictures of the documentation again.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuplane.cli.main import main
from packages.gpuplane.tests.autoscaler.test_nodes_page import SHARES
from packages.gpuplane.tests.autoscaler.test_simulate_nodes import DEPLOYMENT, NODE_POOL, PROVISIONER, VALUES
from tests.support import browser

PICTURES = Path(__file__).resolve().parents[4] / "docs" / "pictures"
WRITES = bool(os.environ.get("GPUPLANE_PICTURES"))
WIDTHS = (1440, 390)
SCHEMES = {"packing": "light", "trace": "dark", "buy": "dark"}
MOST_DIFFERENT = 3  # blocks of 16 x 16 px that touch
CHANGING = "td:last-child, th:last-child, .facts dd:last-child"  # decisions a second, and the version
HOSTILE = '"<img src=x onerror=document.title=1>\\e[31m"'
COMPARED = ("opportunity", "fragmentation", "tightest")


def packing_files() -> None:
    """Write 54 nodes with 312 GPUs, and pods that request more, drawn at random from a seed; then pods with times."""
    chosen = random.Random(1)
    nodes = "".join(f"node-{at},64000,393216,8,H100\n" for at in range(24))
    nodes += "".join(f"small-{at},32000,196608,4,T4\n" for at in range(30))
    Path("nodes.csv").write_text(f"sn,cpu_milli,memory_mib,gpu,model\n{nodes}")
    shares = ((1, 150), (1, 300), (1, 300), (1, 480), (1, 550), (1, 700))
    sizes = (*shares, (1, 1000), (1, 1000), (2, 1000), (4, 1000), (8, 1000), (0, 0))
    rows = []
    for at in range(700):
        gpus, milli = chosen.choice(sizes)
        rows.append(f"pod-{at},{chosen.choice((4000, 8000, 12000))},8192,{gpus},{milli}")
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"
    Path("pods.csv").write_text("\n".join((head, *rows[:230], "")))
    now, stays = 0, []
    for row in rows:
        now += int(chosen.expovariate(1 / 300))
        stays.append(f"{row},{now},{now + int(chosen.expovariate(1 / 60_000))}")
    Path("trace.csv").write_text("\n".join((f"{head},creation_time,deletion_time", *stays, "")))


def nodes_files() -> None:
    """Write pools, and pods of three workloads, one with a name of HTML and ANSI."""
    Path("pools.yaml").write_text(f"{PROVISIONER}---\n{NODE_POOL}")
    Path("values.yaml").write_text(VALUES)
    parts = SHARES.replace("replicas: 3", "replicas: 20")
    hostile = SHARES.replace("name: part", f"name: {HOSTILE}").replace("core: 30", "core: 70")
    Path("pods.yaml").write_text("---\n".join((DEPLOYMENT, parts, hostile)))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return Chromium's findings about each page, by name, width and scheme."""
    browser.python()
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        packing_files()
        nodes_files()
        packing = ("simulate", "packing", "--nodes", "nodes.csv")
        nodes = ("simulate", "nodes", "--pools", "pools.yaml", "values.yaml")
        for words in (
            (*packing, "--pods", "pods.csv", "--compare", *COMPARED, "--html", "packing.html"),
            (*packing, "--trace", "trace.csv", "--compare", *COMPARED, "--html", "trace.html"),
            (*nodes, "--pods", "pods.yaml", "--html", "buy.html"),
        ):
            assert main(list(words)) == 0
    screens = {}
    for (page, scheme), width in itertools.product(SCHEMES.items(), WIDTHS):
        name = f"{page}-{width}-{scheme}"
        screens[name] = {
            "address": (folder / f"{page}.html").as_uri(),
            "width": width,
            "scheme": scheme,
            "picture": str(folder / f"{name}.png"),
            "changing": CHANGING,
        }
        if page == "packing":
            screens[name]["earlier"] = str(PICTURES / f"packing-{width}.png")
        if page == "trace":
            screens[name]["script"] = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
    found = dict(zip(screens, browser.look(list(screens.values()), folder), strict=True))
    if WRITES:
        for width in WIDTHS:
            shutil.copy(folder / f"packing-{width}-light.png", PICTURES / f"packing-{width}.png")
    return found


def test_every_page_fits_its_width_and_asks_for_nothing(seen: dict[str, dict[str, Any]]) -> None:
    for name, page in seen.items():
        assert page["wide"] <= int(name.split("-")[1]), name
        assert (page["elsewhere"], page["complaints"]) == ([], []), name


def test_pages_are_light_and_dark(seen: dict[str, dict[str, Any]]) -> None:
    grounds = {name.rpartition("-")[2]: page["ground"] for name, page in seen.items()}
    assert grounds == {"light": "rgb(245, 246, 248)", "dark": "rgb(18, 23, 29)"}


def test_the_page_of_a_packing_has_its_parts(seen: dict[str, dict[str, Any]]) -> None:
    for width in WIDTHS:
        page = seen[f"packing-{width}-light"]
        names = [name for name, *_ in page["layout"] if name.startswith("h")]
        assert names == [
            *("header", "h1 How full the GPUs are: 3 ways compared", "h2 Results"),
            *(
                "h2 Held by arrived",
                "h2 Behind a perfect packing",
                "h2 Power by a model of the GPUs",
                "h2 What was run",
            ),
        ]
        plots = [box for name, *box in page["layout"] if name == "div.plot"]
        assert len(plots) == 3 and all(wide > 0.8 * width - 60 and high == 300 for _, _, wide, high in plots)
        assert "gpuplane simulate packing --nodes nodes.csv" in page["text"]
        assert "random, seed 42" in page["text"] and "Arrived, percent of all GPUs" in page["text"]


def test_an_open_table_has_the_numbers_of_the_curves(seen: dict[str, dict[str, Any]]) -> None:
    page = seen["trace-390-dark"]
    tables = [box for name, *box in page["layout"] if name == "table"]
    assert len(tables) == 3 and all(high > 200 for *_, high in tables[1:])
    assert "Time since the first arrival, days\topportunity\tfragmentation\ttightest" in page["text"]


def test_names_of_html_and_ansi_are_text(seen: dict[str, dict[str, Any]]) -> None:
    for width in WIDTHS:
        text = seen[f"buy-{width}-dark"]["text"]
        assert "ml/<img src=x onerror=document.title=1>^[[31m" in text
        assert "What fewer pods would cost" in text and "Bill, dollars an hour" in text


def test_the_pictures_of_the_documentation_are_what_the_page_looks_like(seen: dict[str, dict[str, Any]]) -> None:
    if WRITES:
        pytest.skip("the pictures were written again")
    for width in WIDTHS:
        found = seen[f"packing-{width}-light"]["difference"]
        assert found is not None and found["blocks"] <= MOST_DIFFERENT, (
            f"docs/pictures/packing-{width}.png differs in {found}; GPUPLANE_PICTURES=1 writes it again"
        )
