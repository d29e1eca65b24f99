"""The log-in page of the cluster's dashboard in Debian's Chromium, at 1,440 and 390 px, and what a tenant sees then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from packages.gpuplane.tests.dashboard.in_cluster import SECRET_POD, SECRET_SPACE, in_cluster, two_tenants
from tests.support import browser

WIDTHS = ("1440", "390")


async def toured(folder: Path) -> dict[str, Any]:
    """Return Chromium's findings with the token of a tenant."""
    async with two_tenants(folder) as world, in_cluster(world, folder) as page:
        script = Path(__file__).with_name("browse_login.py")
        return await browser.tour(script, f"https://127.0.0.1:{page.port}", "ml-user", str(folder))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    browser.python()  # skips before a cluster is started
    return asyncio.run(toured(tmp_path_factory.mktemp("login")))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_viewer_logs_in_and_out(seen: dict[str, Any], width: str) -> None:
    found = seen[width]
    assert (found["redirected"], found["after"]) == ("/login", "/login")
    assert "kubectl create token" in found["login"] and "does not accept this token" in found["refused"]
    assert "ml-user" in found["header"] and "Log out" in found["header"]
    assert found["cookies"] == "", "no script reads the cookie"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_pages_have_the_names_of_the_tenant_alone(seen: dict[str, Any], width: str) -> None:
    found = seen[width]
    assert "ml/large" in found["first"] and "ml/train" in found["mine"]
    assert "pods of other namespaces are counted without their names, and nodes have numbers" in found["first"]
    assert "2.5 of 8 GPUs" in found["first"] and "their states are left out" in found["first"]
    assert not [name for name in (SECRET_POD, SECRET_SPACE) if name in found["first"] + found["mine"]]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_without_data_says_why_and_what_to_do(seen: dict[str, Any], width: str) -> None:
    found = seen[width]
    assert found["trouble"] == "the API server does not answer: try again <b>soon</b>"
    assert found["troubleOver"] == "live"


@pytest.mark.parametrize("width", WIDTHS)
def test_they_fit_their_width_and_ask_nothing_of_others(seen: dict[str, Any], width: str) -> None:
    found = seen[width]
    assert found["loginWide"] <= int(width) and found["firstWide"] <= int(width)
    assert [url for url in found["asked"] if not url.startswith("https://127.0.0.1:")] == []
    assert not [url for url in found["asked"] if "ml-user" in url], "no token is in an address"
    assert found["complaints"] == []
