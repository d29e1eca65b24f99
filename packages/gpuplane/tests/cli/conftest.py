"""Fixtures for tests of commands: an API server in this process, without controllers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tinykube.apiserver.identity import ADMIN, service_account_user
from tinykube.apiserver.server import ApiServer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """An API server that knows an administrator and an account without rights: the tokens `admin` and `nobody`."""
    server = await ApiServer.start(tmp_path / "pki")
    server.extensions.identity.add("admin", ADMIN)
    server.extensions.identity.add("nobody", service_account_user("ml", "nobody"))
    yield server
    await server.stop()
