"""Measures the dashboard in Chromium, in the environment with Playwright: `browse_speed.py ADDRESS NODE GPU CHANGES`.

It prints a line of JSON for each part: what opening costs, frames while scrolling, then `{"ready": true}`; the caller
changes the GPU of that node after each such line, and the next line has the time at which its cell had changed.
Chromium has no GPU here: all that it draws, it draws on the processor.
"""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

from playwright.sync_api import BrowserContext, Page, sync_playwright

# The time at which the page had drawn its cells: two frames after the first with numbers and a canvas of their size.
DRAWN = """
window.drawn = new Promise((done) => {
  const look = () => {
    const canvas = document.querySelector(".cells canvas");
    if (document.querySelector(".cards") && canvas && canvas.height > 100) {
      requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())));
    } else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
});
"""
OPENED = """async () => {
  const complete = await window.drawn;
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  const [snapshot] = performance.getEntriesByType("resource").filter((one) => one.name.endsWith("/api/snapshot"));
  return { paint: paint.startTime, complete, snapshot: snapshot.encodedBodySize, height: document.body.scrollHeight };
}"""
# Scrolls by as much in each frame as a finger does, down and up again, and returns the times between the frames.
SCROLL = """(seconds) => new Promise((done) => {
  const times = [];
  let down = 40;
  const step = (now) => {
    times.push(now);
    const before = scrollY;
    scrollBy(0, down);
    if (scrollY === before) down = -down;
    if (now - times[0] < seconds * 1000) requestAnimationFrame(step);
    else done(times.slice(1).map((time, at) => time - times[at]));
  };
  requestAnimationFrame(step);
})"""
# Moves the pointer over the cells by 13 pixels in each frame.
HOVER = """(seconds) => new Promise((done) => {
  const canvas = document.querySelector(".cells canvas");
  const times = [];
  let at = 0;
  const step = (now) => {
    times.push(now);
    at += 13;
    const { left, top, width } = canvas.getBoundingClientRect();
    const place = { clientX: left + (at % width), clientY: top + (at % 600), bubbles: true };
    canvas.dispatchEvent(new MouseEvent("mousemove", place));
    if (now - times[0] < seconds * 1000) requestAnimationFrame(step);
    else done(times.slice(1).map((time, at) => time - times[at]));
  };
  requestAnimationFrame(step);
})"""
# Resolves with the time since the epoch, in seconds, at which the colours at the ring of a GPU's cell had changed.
CHANGED = """async ([name, index]) => {
  const { layout } = await import("/page/cells.js");
  const { data } = await (await fetch("/api/snapshot")).json();
  const canvas = document.querySelector(".cells canvas");
  const scale = devicePixelRatio;
  const cell = layout(data.nodes, canvas.width / scale).cells.find((one) => one.name === name && one.index === index);
  const [x, y] = [(cell.x - 1) * scale, (cell.y - 1) * scale];
  const pixels = () => canvas.getContext("2d").getImageData(x, y, 6, 6).data.join();
  const before = pixels();
  window.changed = new Promise((done) => {
    const look = () => {
      if (pixels() === before) requestAnimationFrame(look);
      else done((performance.timeOrigin + performance.now()) / 1000);
    };
    requestAnimationFrame(look);
  });
}"""
EMPTY = "<!doctype html><body style='height: 20000px; background: linear-gradient(#fff, #eee)'>"
SECONDS = 3


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def opened(context: BrowserContext, address: str) -> tuple[Page, dict[str, float]]:
    page = context.new_page()
    page.add_init_script(DRAWN)
    page.goto(address)
    facts: dict[str, float] = page.evaluate(OPENED)
    return page, facts


def frames(page: Page, script: str = SCROLL) -> dict[str, float]:
    """Return frames a second, and the times between two in milliseconds."""
    between: list[float] = sorted(page.evaluate(script, SECONDS))
    return {
        "rate": 1000 * len(between) / sum(between),
        "median": between[len(between) // 2],
        "p95": between[int(0.95 * len(between))],
        "longest": between[-1],
    }


def main(address: str, node: str, gpu: int, changes: int) -> None:
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        context = browser.new_context(viewport={"width": 1440, "height": 900})  # has the key in a cookie
        page, first = opened(context, address)
        again = [opened(context, address.partition("?")[0]) for _ in range(2)]
        for other, _ in again:
            other.close()
        say(opened=[first, *(facts for _, facts in again)])
        empty = browser.new_page(viewport={"width": 1440, "height": 900})
        empty.set_content(EMPTY)
        without = frames(empty)
        empty.close()
        page.bring_to_front()
        say(scrolled=frames(page), hovered=frames(page, HOVER), empty=without)
        page.evaluate("scrollTo(0, 0)")
        for _ in range(changes):
            page.evaluate(CHANGED, [node, gpu])
            say(ready=True)
            say(changed=page.evaluate("window.changed"))
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
