"""Fixtures of the host's tests."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here pulls the plug, so nothing has to reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
