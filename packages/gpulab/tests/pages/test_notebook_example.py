"""The notebook of the GPU operator's users on the embedded cluster, as printed: a whole GPU behind a node port."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import jupyter, pages
from tests.support.notebooks import Kernel, ask, compute_beyond
from tests.support.pages import PageShell
from tests.support.until import until

PRINTED = Path(__file__).parents[5] / "shared" / "manifests" / "gpu-operator" / "notebook-example.yaml"
pytestmark = [
    pytest.mark.deadline(900),
    pytest.mark.skipif(
        not pages.ASKED_FOR or jupyter.find() is None, reason=f"{pages.HOW_TO_ASK}; it installs Jupyter"
    ),
    pytest.mark.skipif(not PRINTED.exists(), reason="no shared manifests beside this checkout"),
]
UP = 'gpuplane up --detach --name example --node gpu-1=t4-ubuntu22 --image "tensorflow/*=$HOME/notebook"'
ADDRESS = "127.0.0.1:30001"  # the node port of the manifest


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PageShell]:
    found = jupyter.find()
    assert found is not None
    (tmp_path / "notebook").symlink_to(found)
    shell = PageShell(tmp_path)
    yield shell
    shell.down("example")


async def test_the_printed_notebook_answers_on_its_node_port_and_computes_on_its_gpu(shell: PageShell) -> None:
    async def told(*lines: str) -> str:
        return await asyncio.to_thread(shell.run, "\n".join(lines))

    async def token() -> str:
        found = re.search("token=([0-9a-f]{48})", await told("kubectl logs tf-notebook"))
        return found[1] if found else ""

    await told(UP, "export KUBECONFIG=~/.gpuplane/example.kubeconfig", "gpuplane install --wait")
    await told(f"kubectl apply -f {PRINTED}", "kubectl wait pod/tf-notebook --for=condition=Ready --timeout=240s")
    key = await until(token, what="the notebook prints its token", seconds=240.0)

    async def status() -> Any:
        return await asyncio.to_thread(ask, ADDRESS, "/api/status", key)

    assert (await until(status, what="the node port answers", ignored=OSError, seconds=240.0))["kernels"] == 0
    kernel = await asyncio.to_thread(Kernel, ADDRESS, key)
    try:
        computed = await asyncio.to_thread(kernel.run, compute_beyond(20 << 30))
        assert computed == "[2.0, 4.0, 6.0, 8.0] 2\n", "computed; 2 is CUDA_ERROR_OUT_OF_MEMORY on a T4's 15 GiB"
    finally:
        await asyncio.to_thread(kernel.close)
