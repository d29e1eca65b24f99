"""The fenced blocks of the documentation's pages: what a test runs is what a reader copies."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.support import find_kubectl

DOCS = Path(__file__).resolve().parents[2] / "docs"
ASKED_FOR = os.environ.get("GPUPLANE_TEST_PAGES") == "1"
HOW_TO_ASK = "runs a page of the documentation: make test-kubernetes asks for it with GPUPLANE_TEST_PAGES=1"
PATIENCE_SECONDS: Final = 400.0  # the commands of a block have limits of their own: two of two minutes
_FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, its title (the name of a file; "" for none) and its text."""

    language: str
    title: str
    text: str


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, in their order."""
    return [Block(*found) for found in _FENCE.findall((DOCS / page).read_text(encoding="utf-8"))]


def commands(page: str) -> list[str]:
    """The blocks of commands."""
    return [block.text for block in blocks(page) if block.language == "bash"]


def files(page: str) -> dict[str, str]:
    """The files that a page shows, by name."""
    return {block.title: block.text for block in blocks(page) if block.title}


class PageShell:
    """A reader's shell: what one block sets, the next ones have."""

    def __init__(self, home: Path) -> None:
        self.home = home
        path = f"{Path(sys.executable).parent}:{find_kubectl.find().parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "HOME": str(home), "GPUPLANE_HOME": str(home / ".gpuplane"), "PATH": path}
        (home / "state").touch()

    def script(self, text: str) -> list[str]:
        return ["bash", "-e", "-c", f"set -a; source ./state\n{text}\ndeclare -px | grep -v ' BASH' > state"]

    def done(self, text: str) -> subprocess.CompletedProcess[str]:
        """Run commands that must succeed."""
        done = subprocess.run(
            self.script(text),
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done

    def run(self, text: str) -> str:
        """Return what commands print, which must succeed."""
        return self.done(text).stdout

    @contextlib.contextmanager
    def forward(self, text: str) -> Iterator[str]:
        """Runs port-forward on a free port of this machine; yields the address."""
        words = self.script(text.replace("$POD 8888", "$POD :8888"))
        with subprocess.Popen(
            words, cwd=self.home, env=self.environment, stdout=subprocess.PIPE, text=True, process_group=0
        ) as process:
            assert process.stdout is not None
            try:
                found = re.search(r"127\.0\.0\.1:\d+", process.stdout.readline())
                assert found is not None
                yield found[0]
            finally:
                os.killpg(process.pid, 15)

    def down(self, cluster: str) -> None:
        """Stop the page's cluster, if it runs."""
        words = [sys.executable, "-m", "gpuplane", "down", cluster]
        subprocess.run(words, env=self.environment, capture_output=True, check=False)
