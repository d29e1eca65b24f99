"""Drives Chromium through pages that stay as they are: `browse_pages.py ADDRESS FOLDER PICTURES PAGES`.

PAGES is JSON: name -> [path, selector of the complete page]. A picture of each at each width goes to FOLDER, those of
the dark scheme with `-dark`; what was seen goes to stdout as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from browse import WIDTHS, Tab, differences
from playwright.sync_api import Browser, Page, sync_playwright

UNNAMED = (
    "[...document.querySelectorAll('button, a, canvas, input, svg[role=img]')].filter((one) => "
    "!(one.textContent.trim() || one.getAttribute('aria-label') || one.labels?.length)).length"
)


def day(page: Page) -> dict[str, Any]:
    """Return label, number of bars and rows of the table of the chart of 24 hours; nothing without it."""
    if not page.locator("svg.day").count():
        return {}
    page.click(".history summary")
    page.wait_for_selector(".history tbody tr", state="visible")
    return {
        "label": page.get_attribute("svg.day", "aria-label"),
        "bars": page.locator("svg.day rect").count(),
        "rows": page.locator(".history tbody tr").all_inner_texts(),
    }


def visited(browser: Browser, address: str, folder: Path, pages: dict[str, list[str]], scheme: str) -> dict[str, Any]:
    """Visit every page at every width in one colour scheme."""
    found: dict[str, Any] = {}
    ending = "" if scheme == "light" else f"-{scheme}"
    for width in WIDTHS:
        tab = Tab(browser, address, width, scheme)
        for name, (path, complete) in pages.items():
            tab.page.goto(tab.base + path)
            tab.page.wait_for_selector(complete)
            layout = tab.picture(folder / f"{name}-{width}{ending}.png")
            found[f"{name}-{width}"] = {
                "layout": layout,
                "text": tab.page.inner_text("main"),
                "wide": tab.page.evaluate("document.documentElement.scrollWidth"),
                "unnamed": tab.page.evaluate(UNNAMED),
                "images": tab.page.locator("main img").count(),
                "title": tab.page.title(),
                "day": day(tab.page),
                "ground": tab.page.evaluate("getComputedStyle(document.body).backgroundColor"),
            }
        found[f"tab-{width}"] = tab.seen()
    return found


def main(address: str, folder: Path, pictures: Path, pages: dict[str, list[str]]) -> None:
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        found = {scheme: visited(browser, address, folder, pages, scheme) for scheme in ("light", "dark")}
        found["differences"] = differences(browser, folder, pictures)
        browser.close()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
