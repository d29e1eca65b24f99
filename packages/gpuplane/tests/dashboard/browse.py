"""Drives Chromium through the dashboard, in the environment with Playwright: `browse.py ADDRESS FOLDER`.

It writes a picture of each page at each width into FOLDER, and what it saw to stdout as JSON. Before the last part it
prints `ready`, and waits until the cluster that it is displaying changes; then until the API server is gone.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

WIDTHS = (1440, 390)
PAGES = {
    "first": "/",
    "node": "/node/gpu-t-02",
    "broken": "/node/gpu-h-07",
    "pod": "/pod/default/tune-42",
    "placed": "/pod/ml/train-1-0",
    "cost": "/cost?by=owner&since=7d",
    "mine": "/mine?ns=ml",
}
# GPUs are held and idle once two readings of the exporters were compared.
FIRST = "main:has(.waits .cure):has(.idlers li)"
COMPLETE = {
    "first": FIRST,
    "node": ".chart",
    "broken": ".chart",
    "pod": "pre",
    "placed": ".parts",
    "cost": ".costs td",
    "mine": ".running .parts",
}
MOST_DIFFERENT = 40  # of 255, by which a pixel may differ in a colour and still count as the same
COMPARE = """async ([one, other, most]) => {
  const pixels = async (data) => {
    const image = new Image();
    image.src = `data:image/png;base64,${data}`;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height);
    const pen = canvas.getContext("2d");
    pen.drawImage(image, 0, 0);
    return [image.width, image.height, pen.getImageData(0, 0, image.width, image.height).data];
  };
  const [wide, high, a] = await pixels(one);
  const [width, height, b] = await pixels(other);
  if (wide !== width || Math.abs(high - height) > 0.05 * high) return 1;
  const apart = (at) => [0, 1, 2].some((part) => Math.abs(a[at + part] - b[at + part]) > most);
  let different = 0;
  const end = Math.min(a.length, b.length);
  for (let at = 0; at < end; at += 4) {
    if (apart(at)) different += 1;
  }
  return different / (end / 4);
}"""


class Tab:
    """A page of its own context, with what it asked for and what it complained of."""

    def __init__(self, browser: Browser, address: str, width: int, scheme: str = "light") -> None:
        self.base = address.partition("/?")[0]
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        self.page: Page = context.new_page()
        self.asked: set[str] = set()
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.add(request.url))
        self.page.on("console", lambda message: self._complained(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address)

    def _complained(self, text: str) -> None:
        # Chromium breaks requests off when an interface of the machine comes or goes; the page asks again.
        if "net::ERR_NETWORK_CHANGED" not in text:
            self.complaints.append(text)

    def visit(self, name: str) -> None:
        self.page.goto(self.base + PAGES[name])
        self.page.wait_for_selector(COMPLETE[name])
        self.page.evaluate("document.fonts.ready")
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def seen(self) -> dict[str, Any]:
        elsewhere = sorted(url for url in self.asked if not url.startswith(self.base + "/"))
        self.page.close()
        return {"elsewhere": elsewhere, "complaints": list(self.complaints)}


def tour(browser: Browser, address: str, folder: Path) -> dict[str, Any]:
    """Visit every page at every width."""
    found: dict[str, Any] = {}
    for width in WIDTHS:
        tab = Tab(browser, address, width)
        for name in PAGES:
            tab.visit(name)
            tab.page.screenshot(path=folder / f"{name}-{width}.png", full_page=True)
            found[f"{name}-{width}"] = {
                "title": tab.page.title(),
                "text": tab.page.inner_text("main"),
                "wide": tab.page.evaluate("document.documentElement.scrollWidth"),
                "unnamed": tab.page.evaluate(
                    "[...document.querySelectorAll('button, a, canvas, input')].filter((one) => "
                    "!(one.textContent.trim() || one.getAttribute('aria-label') || one.labels?.length)).length"
                ),
            }
        found[f"tab-{width}"] = tab.seen()
    return found


def keyboard(browser: Browser, address: str) -> dict[str, Any]:
    """Filter, choose a GPU and open its node without a mouse; then back, and the same as a table."""
    tab = Tab(browser, address, 1440, "dark")
    page = tab.page
    page.wait_for_selector(".waits .cure")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("/")
    page.keyboard.type("model:T4 is:lost")
    found: dict[str, Any] = {
        "ground": ground,
        "filtered": page.inner_text(".cells h2"),
        "url": page.url.partition("?")[2],
    }
    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.tagName") != "CANVAS":
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    found["chosen"] = page.inner_text(".readout")
    page.keyboard.press("Enter")
    page.wait_for_selector(".chart")
    found["opened"] = page.inner_text("h1")
    page.go_back()
    page.wait_for_selector(".waits .cure")
    found["back"] = page.input_value("#words")
    page.click("summary")
    page.wait_for_selector(".cells tbody tr")  # the browser tells of an opened table a moment after the click
    found["rows"] = page.locator(".cells tbody tr").all_inner_texts()
    return {**found, **tab.seen()}


def paint(browser: Browser, address: str) -> float:
    """Return the seconds to the first paint with contents."""
    page = Tab(browser, address, 1440).page
    page.wait_for_selector(".cards")
    paints: float = page.evaluate(
        "performance.getEntriesByType('paint').find((one) => one.name === 'first-contentful-paint').startTime"
    )
    return paints / 1000


def live(browser: Browser, address: str) -> dict[str, Any]:
    """Watch a change of the cluster, and the API server's end."""
    page = Tab(browser, address, 1440).page
    page.wait_for_selector(".waits .cure")
    before = page.inner_text(".needs h2")
    print("ready", flush=True)
    page.wait_for_function("before => document.querySelector('.needs h2').innerText !== before", arg=before)
    found = {"before": before, "after": page.inner_text(".needs h2"), "needs": page.inner_text(".needs")}
    other = Tab(browser, address, 390).page
    other.goto(address.partition("/?")[0] + "/node/gpu-t-03")
    other.wait_for_selector(".chart")
    found |= {"node": other.inner_text("main"), "title": other.title(), "images": other.locator("main img").count()}
    print("changed", flush=True)
    page.wait_for_selector("#live.old", timeout=60_000)
    return {**found, "old": page.inner_text("#live"), "held": page.inner_text(".cards dd >> nth=0")}


def differences(browser: Browser, folder: Path, pictures: Path) -> dict[str, float]:
    """Return the part of pixels that differs from the picture of the documentation, by name."""
    page = browser.new_page()
    read = lambda path: base64.b64encode(path.read_bytes()).decode()  # noqa: E731
    found = {}
    for picture in sorted(pictures.glob("*-*.png")):
        fresh = folder / picture.name
        if fresh.exists():  # others are of pages that another test visits
            found[picture.stem] = page.evaluate(COMPARE, [read(picture), read(fresh), MOST_DIFFERENT])
    if "first-1440" in found:
        others = [read(pictures / "first-1440.png"), read(folder / "node-1440.png"), MOST_DIFFERENT]
        found["another page"] = page.evaluate(COMPARE, others)
    return found


def main(address: str, folder: Path, pictures: Path) -> None:
    with sync_playwright() as playwright:
        # Chromium has no sandbox for root, and a container has a small /dev/shm.
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        found: dict[str, Any] = {"paint": paint(browser, address)}
        found["tour"] = tour(browser, address, folder)
        found["keyboard"] = keyboard(browser, address)
        found["differences"] = differences(browser, folder, pictures)
        found["live"] = live(browser, address)
        browser.close()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
