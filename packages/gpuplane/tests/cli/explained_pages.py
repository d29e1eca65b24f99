"""The page of an explanation, and its cures."""

from __future__ import annotations

import io
from typing import Any

import pytest

from gpuplane import names
from gpuplane.cli.explain_text import page
from gpuplane.cli.terminal import Console

SHARE = {names.VCUDA_CORE: 40, names.VCUDA_MEMORY: 48}


def drawn(explanation: Any, monkeypatch: pytest.MonkeyPatch, width: int = 100) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    text = page(explanation, Console(io.StringIO(), io.StringIO(), colour="never"))
    assert all(len(line) <= width for line in text.splitlines()), text
    return text


def changes(explanation: Any) -> dict[str, str]:
    return {cure.change: cure.place for cure in explanation.cures}
