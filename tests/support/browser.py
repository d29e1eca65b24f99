"""Playwright for the tests of the dashboard, installed once: `python -m tests.support.browser`.

It lies outside the tree (`$XDG_CACHE_HOME/gpuplane/browser`), under the digest of its lock, and drives the machine's
Chromium: Debian's package.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = ROOT / "requirements-browser.lock"
TOUR_SECONDS: Final = 240
SCREENS: Final = ROOT / "tests" / "browser" / "screens.py"


def place() -> Path:
    """Return the directory in which Playwright is installed for this Python."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplane" / "browser"
    return cache / hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]


def python() -> Path:
    """Return the Python of an environment with Playwright. Skips the test without it or without Chromium."""
    if shutil.which("chromium") is None:
        pytest.skip("no Chromium: apt-get install chromium fonts-dejavu-core, as make test-kubernetes does")
    found = place()
    if not (found / ".installed").exists():
        pytest.skip("no Playwright: make test-kubernetes installs it, or python -m tests.support.browser")
    return found / "bin" / "python"


def look(screens: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return what Chromium finds of each `Screen` of tests/browser/screens.py. Skips the test as `python` does.

    Args:
        folder: for a file of its own.
    """
    jobs = folder / "screens.json"
    jobs.write_text(json.dumps(screens))
    done = subprocess.run([python(), SCREENS, jobs], check=True, stdout=subprocess.PIPE, text=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


async def tour(script: Path, *arguments: str) -> dict[str, Any]:
    """Return the JSON that a script prints which drives Chromium. Skips the test as `python` does."""
    process = await asyncio.create_subprocess_exec(
        *(str(python()), str(script), *arguments), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(TOUR_SECONDS):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(out)
    return found


def install() -> None:
    """Install what the lock pins, unless that was done. Raises CalledProcessError."""
    home, uv = place(), Path(sys.executable).with_name("uv")
    if (home / ".installed").exists():
        return
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, home], check=True)
    wanted = ("--require-hashes", "--python", home / "bin" / "python", "--requirement", LOCK)
    subprocess.run([uv, "pip", "install", "--quiet", *wanted], check=True)
    (home / ".installed").touch()


if __name__ == "__main__":
    install()
