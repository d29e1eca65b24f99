"""Pictures and layouts of pages in Chromium, and how they differ from earlier ones.

It runs in the environment with Playwright (`tests.support.browser`), and imports nothing of gpuplane. Pictures are
compared by the mean colours of blocks of 16 pixels, and not where a text changes with the time; so the way in which
letters are drawn makes no difference, a part of the page that is missing, moved or of another colour does.

`python screens.py JOBS`: JOBS is a file with a list of `Screen` in JSON; what was found is printed as JSON.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final, NotRequired, TypedDict

from playwright.sync_api import Browser, Page, Playwright, sync_playwright

SCRIPT: Final = Path(__file__).with_suffix(".js").read_text()
FLAGS: Final = ("--no-sandbox", "--disable-dev-shm-usage")  # no sandbox for root, a small /dev/shm in a container


class Screen(TypedDict):
    """A page to look at. `picture` is the file to write. `earlier` is a picture to compare it with, `changing` selects
    elements that are left out of that. `script` changes the page before; `flags` are of another browser.
    """

    address: str
    width: int
    scheme: str
    picture: str
    earlier: NotRequired[str]
    changing: NotRequired[str]
    script: NotRequired[str]
    flags: NotRequired[list[str]]


class Seen(TypedDict):
    """The findings of one page. `elsewhere` are the addresses of other servers that the page requested."""

    text: str
    wide: int
    ground: str
    layout: list[list[Any]]
    elsewhere: list[str]
    complaints: list[str]
    difference: dict[str, Any] | None


def launch(playwright: Playwright, *flags: str) -> Browser:
    return playwright.chromium.launch(executable_path=shutil.which("chromium"), args=[*FLAGS, *flags])


def settle(page: Page) -> None:
    """Return when the fonts are there and what is laid out is drawn."""
    page.evaluate("document.fonts.ready")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def layout(page: Page) -> list[list[Any]]:
    """Return name, left, top, width and height of each part of a page, in its order."""
    found: list[list[Any]] = page.evaluate(f"{SCRIPT}.layout()")
    return found


def changing(page: Page, selector: str = "") -> list[list[float]]:
    """Return the boxes of texts that change with the time, and of the elements that are selected."""
    found: list[list[float]] = page.evaluate(f"(selector) => {SCRIPT}.changing(selector)", selector)
    return found


def difference(page: Page, one: Path, other: Path, masks: list[list[float]]) -> dict[str, Any]:
    """Return the largest area in which two pictures differ: its number of blocks of 16 x 16 pixels, and its box.

    Args:
        page: any page that has no policy against images of its own.
        masks: boxes whose contents do not count.
    """
    pictures = [base64.b64encode(path.read_bytes()).decode() for path in (one, other)]
    found: dict[str, Any] = page.evaluate(f"(given) => {SCRIPT}.difference(given)", [*pictures, masks])
    return found


def look(browser: Browser, screen: Screen) -> Seen:
    """Open a page, write its picture, and compare it."""
    context = browser.new_context(
        viewport={"width": screen["width"], "height": 900},
        color_scheme=screen["scheme"],  # type: ignore[arg-type]
    )
    page, asked, complaints = context.new_page(), set[str](), list[str]()
    page.on("request", lambda request: asked.add(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(screen["address"])
    if "script" in screen:
        page.evaluate(screen["script"])
    settle(page)
    picture = Path(screen["picture"])
    page.screenshot(path=picture, full_page=True)
    masks = changing(page, screen.get("changing", ""))
    seen: Seen = {
        "text": page.inner_text("body"),
        "wide": page.evaluate("document.documentElement.scrollWidth"),
        "ground": page.evaluate("getComputedStyle(document.body).backgroundColor"),
        "layout": layout(page),
        "elsewhere": sorted(asked - {screen["address"]}),
        "complaints": complaints,
        "difference": None,
    }
    if "earlier" in screen and Path(screen["earlier"]).exists():
        seen["difference"] = difference(context.new_page(), Path(screen["earlier"]), picture, masks)
    context.close()
    return seen


def main(jobs: Path) -> None:
    found = []
    with sync_playwright() as playwright:
        browsers: dict[tuple[str, ...], Browser] = {}
        for screen in json.loads(jobs.read_text()):
            flags = tuple(screen.get("flags", ()))
            if flags not in browsers:
                browsers[flags] = launch(playwright, *flags)
            found.append(look(browsers[flags], screen))
        for browser in browsers.values():
            browser.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
