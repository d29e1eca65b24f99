"""A cache of its own, and only a Go and an installer that are shell scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_go import FakeTools


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTools:
    made = FakeTools(tmp_path / "tools")
    (made.folder / "bin").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{made.folder / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made
