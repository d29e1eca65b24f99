"""The comparison of pictures sees what a person sees, and not the way in which another machine draws letters."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import browser

PAGE = """<!doctype html><meta charset="utf-8"><title>t</title>
<style>body { font: 15px "DejaVu Sans"; margin: 0 } .card { border: 1px solid #ccc; padding: 12px; margin: 10px }
  canvas { background: #2f9e64; width: 400px; height: 30px }</style>
<header>gpuplane</header><main><h1>Cluster</h1>
<section class="card"><h2>Held</h2><p>39.3 of 80 GPUs are held by pods of four namespaces in this cluster</p>
<button>copy the command</button></section>
<section class="card" id="cells"><canvas></canvas><p>idle for <span>5m</span> and <i>14:05</i></p></section>
<section class="card" id="last"><h2>Waits</h2>
<p>ml/tune-42 waits for 40% of a GPU and 12 GiB of its memory</p></section>
</main>"""
MOST = 3  # blocks
DIFFERENT = {
    "a button less": "document.querySelector('button').style.visibility = 'hidden'",
    "a paragraph less": "document.querySelector('p').style.visibility = 'hidden'",
    "another colour": "document.querySelector('canvas').style.background = '#e8590c'",
    "a part of the canvas": "document.querySelector('canvas').style.width = '340px'",
    "a section elsewhere": "document.querySelector('#last').style.marginLeft = '60px'",
    "text that overlaps": "document.querySelector('#last p').style.marginTop = '-30px'",
    "another ground": "document.body.style.background = '#e4e4e4'",
}
ALIKE = {
    "nothing": "",
    "a later time": "document.querySelector('span').textContent = '17 h'",
    "a later hour": "document.querySelector('i').textContent = '23:59'",
    "a pixel": "document.querySelector('#last').style.marginLeft = '11px'",
    "grey letters": "document.body.style.opacity = '0.999'",
}
OTHERWISE_DRAWN = ("--font-render-hinting=none", "--disable-lcd-text", "--disable-font-subpixel-positioning")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the findings of each changed page, compared with the original page."""
    folder = tmp_path_factory.mktemp("screens")
    (folder / "page.html").write_text(PAGE)
    page = {"address": (folder / "page.html").as_uri(), "width": 800, "scheme": "light"}
    first = str(folder / "first.png")
    screens = [{**page, "picture": first}]
    changed = {**DIFFERENT, **ALIKE, **dict.fromkeys(OTHERWISE_DRAWN, "")}
    for number, (name, script) in enumerate(changed.items()):
        flags = [name] if name in OTHERWISE_DRAWN else []
        picture = str(folder / f"{number}.png")
        screens.append({**page, "picture": picture, "earlier": first, "script": script, "flags": flags})
    return dict(zip(("as it is", *changed), browser.look(screens, folder), strict=True))


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_a_person_sees_is_a_difference(compared: dict[str, dict[str, Any]], name: str) -> None:
    assert compared[name]["difference"]["blocks"] > MOST


@pytest.mark.parametrize("name", [*ALIKE, *OTHERWISE_DRAWN])
def test_other_letters_and_times_are_no_difference(compared: dict[str, dict[str, Any]], name: str) -> None:
    assert compared[name]["difference"]["blocks"] <= MOST, compared[name]["difference"]


def test_the_layout_has_the_parts_in_their_order(compared: dict[str, dict[str, Any]]) -> None:
    parts = compared["as it is"]["layout"]
    assert [name for name, *_ in parts] == [
        *("header", "main", "h1 Cluster"),
        *("section.card", "h2 Held", "button", "section.card", "canvas", "section.card", "h2 Waits"),
    ]
    assert parts[3][1] == 10 and parts[3][3] == 780
