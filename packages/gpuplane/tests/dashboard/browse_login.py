"""Logs in to the cluster's dashboard with Chromium: `browse_login.py ADDRESS TOKEN FOLDER`, which prints what it saw.

At each width: the log-in page, a wrong token, the token, the first page, Mine, and the way out.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, sync_playwright

WIDTHS = (1440, 390)
WIDE = "document.documentElement.scrollWidth"


def logged_in(browser: Browser, address: str, token: str, folder: Path, width: int) -> dict[str, Any]:
    """Return what one browser saw, whose certificate check is switched off."""
    context = browser.new_context(viewport={"width": width, "height": 900}, ignore_https_errors=True)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("#token")
    page.screenshot(path=folder / f"login-{width}.png", full_page=True)
    found: dict[str, Any] = {"redirected": page.url.removeprefix(address), "login": page.inner_text("main")}
    found["loginWide"] = page.evaluate(WIDE)
    page.fill("#token", "wrong")
    page.click("button")
    page.wait_for_selector("[role=alert]")
    found["refused"] = page.inner_text("[role=alert]")
    complaints: list[str] = []
    asked: set[str] = set()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.add(request.url))
    page.fill("#token", token)
    page.keyboard.press("Enter")
    page.wait_for_selector(".waits li .cure")
    page.wait_for_selector("#viewer button")
    page.screenshot(path=folder / f"limited-{width}.png", full_page=True)
    found |= {"first": page.inner_text("main"), "firstWide": page.evaluate(WIDE), "header": page.inner_text("header")}
    found["cookies"] = page.evaluate("document.cookie")
    page.click("nav a[href='/mine']")
    page.wait_for_selector(".running table")
    found["mine"] = page.inner_text("main")
    found |= without_data(context, address)
    page.click("#viewer button")
    page.wait_for_selector("#token")
    found["complaints"], found["asked"] = list(complaints), sorted(asked)
    page.goto(f"{address}/mine")
    page.wait_for_selector("#token")
    found["after"] = page.url.removeprefix(address)
    context.close()
    return found


def without_data(context: BrowserContext, address: str) -> dict[str, Any]:
    """Return what the page says while the dashboard gives no data, and once it does."""
    page = context.new_page()
    refusal = {"what": "the API server does not answer", "where": "", "cure": "try again <b>soon</b>"}
    page.route("**/api/snapshot", lambda route: route.fulfill(status=503, json=refusal))
    page.goto(address)
    page.wait_for_selector("#live.old")
    found = {"trouble": page.inner_text("#live")}
    page.unroute("**/api/snapshot")
    page.wait_for_selector("#live:text-is('live')")
    found["troubleOver"] = page.inner_text("#live")
    page.close()
    return found


def main(address: str, token: str, folder: Path) -> None:
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        found = {str(width): logged_in(browser, address, token, folder, width) for width in WIDTHS}
        browser.close()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
