"""Buy nodes on your laptop: the page's files and commands, and the commands that `up --cloud` prints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.support import pages
from tests.support.pages import PageShell
from tests.support.until import until

pytestmark = [
    pytest.mark.deadline(900),
    pytest.mark.skipif(not pages.ASKED_FOR, reason=pages.HOW_TO_ASK),
]
PAGE = "tasks/cloud.md"
PATIENCE_SECONDS: Final = 240.0
POLL_SECONDS: Final = 0.5  # each look is a command
UP, CONFIGS, APPLY, LOOK, TROUBLE, GONE, DOWN = pages.commands(PAGE)


@pytest.fixture
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageShell]:
    home = tmp_path_factory.mktemp("p")  # unix sockets lie below it, whose paths are short
    shell = PageShell(home)
    shell.environment |= {"COLUMNS": "80", "NO_COLOR": "1"}
    for name, text in pages.files(PAGE).items():
        (home / name).write_text(text)
    yield shell
    shell.down("gpuplane")


def printed(shell: PageShell) -> str:
    """Start the page's cluster; the commands that it prints, up to the bill."""
    done = shell.done(UP)
    assert max(map(len, (done.stdout + done.stderr).splitlines())) <= 80
    return done.stderr.partition("Try:\n")[2].partition("  gpuplane down")[0]


def bill(shell: PageShell) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shell.run("gpuplane cloud ls -o json"))["instances"]
    return found


async def test_nodes_are_bought_shared_replaced_and_given_back_as_the_page_says(shell: PageShell) -> None:
    async def another() -> bool:
        return any(one["id"] not in before for one in await asyncio.to_thread(bill, shell))

    async def all_ended() -> bool:
        return "now 0.0000 $/h" in await asyncio.to_thread(shell.run, "gpuplane cloud ls")

    assert "no instance was launched so far" in shell.run(printed(shell))
    shell.run(CONFIGS)
    shell.run(APPLY)
    looked = shell.run(LOOK)
    assert max(map(len, looked.splitlines())) <= 100  # kubectl's own columns
    assert sorted(one["pool"] for one in bill(shell)) == ["tenths", "whole"]
    assert {(one["machine"], one["capacityType"]) for one in bill(shell)} == {("g4dn.xlarge", "spot")}
    before = {one["id"] for one in bill(shell)}
    shell.run(TROUBLE)
    # The page's commands may end before: where the instance of the other pool is taken back, `train` never stops.
    await until(another, poll=POLL_SECONDS, seconds=PATIENCE_SECONDS, what="another instance", seen=lambda: bill(shell))
    shell.run(GONE)
    # A replacement of a drifted node may have been on its way when the page's command listed the claims.
    await until(all_ended, poll=POLL_SECONDS, seconds=PATIENCE_SECONDS, what="the end", seen=lambda: bill(shell))
    assert {one["state"] for one in bill(shell)} == {"terminated"}
    shell.run(DOWN)
    assert not list((shell.home / ".gpuplane/clusters").iterdir())
