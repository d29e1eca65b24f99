"""Jupyter for the tests of notebooks, installed once as the documentation says: `python -m tests.support.jupyter`.

It lies outside the tree (`$XDG_CACHE_HOME/gpuplane/jupyter`), so that it is installed once for all clones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import pages

PAGE = "tasks/notebooks.md"


def home() -> Path:
    """The home directory in which the page's first commands were run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplane" / "jupyter"


def find() -> Path | None:
    """The virtual environment with Jupyter; None before it is installed."""
    place = home() / "notebook"
    return place if (place / "bin/jupyter-notebook").exists() else None


def install() -> None:
    """Run the page's first block of commands, unless that was done. Raises CalledProcessError."""
    if find() is None:
        home().mkdir(parents=True, exist_ok=True)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run(
            ["bash", "-e", "-c", pages.commands(PAGE)[0]],
            env={**os.environ, "HOME": str(home()), "PATH": path},
            check=True,
        )


if __name__ == "__main__":
    install()
    print(find())
