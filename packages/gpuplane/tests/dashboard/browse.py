"""Drives Chromium through the dashboard, in the environment with Playwright: `browse.py ADDRESS FOLDER`.

It writes a picture of each page at each width into FOLDER, and what it saw to stdout as JSON. Before the last part it
prints `ready`, and waits until the cluster that it is displaying changes; then until the API server is gone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tests" / "browser"))

import screens

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
# Besides texts with ages: sums of hours and what is read of them grow while the tests run.
CHANGING = {"cost": ".costs td, .costs th"}


# The cells of two nodes, drawn without a ring, with one on each of two cells, and without it again.
RINGS = """async () => {
  const { Cells } = await import("/page/cells.js");
  const box = document.createElement("div");
  box.style.width = "600px";
  const canvas = box.appendChild(document.createElement("canvas"));
  document.body.append(box);
  const cells = new Cells(canvas, { chosen() {}, open() {} });
  const node = { model: "T4", held: [0, 30, 100, 50], lost: [3], faults: { 3: "Xid 79" } };
  cells.show({ "gpu-1": node, "gpu-2": { ...node, waits: "driver" } }, (name) => name === "gpu-1");
  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  await frame();
  const found = [canvas.toDataURL()];
  for (const at of [0, 7, -1]) {
    cells.choose(cells.place.cells[at] || null, true);
    await frame();
    found.push(canvas.toDataURL());
  }
  box.remove();
  return found;
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

    def picture(self, path: Path, changing: str = "") -> list[list[Any]]:
        """Write a picture of the page as it is, and a mask of the texts that change with the time; return its layout.

        Args:
            changing: selects elements that change besides texts with ages.
        """
        screens.settle(self.page)
        self.page.screenshot(path=path, full_page=True)
        path.with_suffix(".json").write_text(json.dumps(screens.changing(self.page, changing)))
        return screens.layout(self.page)

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
            layout = tab.picture(folder / f"{name}-{width}.png", CHANGING.get(name, ""))
            found[f"{name}-{width}"] = {
                "layout": layout,
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
    found["rings"] = page.evaluate(RINGS)
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


def differences(browser: Browser, folder: Path, pictures: Path) -> dict[str, Any]:
    """Return the number of blocks of the largest area that differs from the picture of the documentation, by name."""
    page = browser.new_page()
    found: dict[str, Any] = {}
    for picture in sorted(pictures.glob("*-*.png")):
        fresh = folder / picture.name
        if fresh.exists():  # others are of pages that another test visits
            masks = json.loads(fresh.with_suffix(".json").read_text())
            area = screens.difference(page, picture, fresh, masks)
            found[picture.stem] = area["blocks"]
            if area["blocks"]:
                print(f"{picture.stem}: {area}", file=sys.stderr)
    if "first-1440" in found:
        others = pictures / "first-1440.png", folder / "node-1440.png"
        found["another page"] = screens.difference(page, *others, [])["blocks"]
    return found


def main(address: str, folder: Path, pictures: Path) -> None:
    with sync_playwright() as playwright:
        browser = screens.launch(playwright)
        found: dict[str, Any] = {"paint": paint(browser, address)}
        found["tour"] = tour(browser, address, folder)
        found["keyboard"] = keyboard(browser, address)
        found["differences"] = differences(browser, folder, pictures)
        found["live"] = live(browser, address)
        browser.close()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
