"""Four notebooks on one GPU: the commands of the page, in their order, with a real Jupyter server in each pod."""

from __future__ import annotations

import re
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import jupyter, pages
from tests.support.notebooks import Kernel, ask, compute_beyond
from tests.support.pages import PageShell

pytestmark = [
    pytest.mark.deadline(900),
    pytest.mark.skipif(
        not pages.ASKED_FOR or jupyter.find() is None, reason=f"{pages.HOW_TO_ASK}; it installs Jupyter"
    ),
]
_, UP, LABEL, START, TOKEN, FORWARD, FIFTH, REMOVE = pages.commands(jupyter.PAGE)
[CELL] = [block.text.strip() for block in pages.blocks(jupyter.PAGE) if block.language == "python"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PageShell]:
    found = jupyter.find()
    assert found is not None
    (tmp_path / "notebook").symlink_to(found)
    for name, text in pages.files(jupyter.PAGE).items():
        (tmp_path / name).write_text(text)
    shell = PageShell(tmp_path)
    yield shell
    shell.down("notebooks")


def test_four_notebooks_share_a_gpu_as_the_page_says(shell: PageShell) -> None:
    shell.run(UP)
    shell.run(LABEL)
    assert shell.run(START).count("25%") >= 4, "status gpus lists the parts"
    token = shell.run(TOKEN).strip().removeprefix("token=")
    assert re.fullmatch("[0-9a-f]{48}", token)
    with shell.forward(FORWARD) as address:
        assert ask(address, "/api/status", token)["kernels"] == 0
        with pytest.raises(urllib.error.HTTPError, match="403"):
            ask(address, "/api/status", "wrong")
        kernel = Kernel(address, token)
        try:
            assert kernel.run(CELL).splitlines() == ["name, memory.total [MiB]", "Tesla P40, 5120 MiB"]
            assert kernel.run(compute_beyond(6 << 30)) == "[2.0, 4.0, 6.0, 8.0] 2\n", (
                "computed; 2 is CUDA_ERROR_OUT_OF_MEMORY"
            )
        finally:
            kernel.close()
    assert "waiting" in shell.run(FIFTH)
    shell.run(REMOVE)
    assert not (shell.home / ".gpuplane/clusters/notebooks").exists()
