"""A newcomer's first hour, command by command: try it, run a pod, share a GPU in three ways, take it off again."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support import pages
from tests.support.pages import PageShell

pytestmark = [
    pytest.mark.deadline(900),
    pytest.mark.skipif(not pages.ASKED_FOR, reason=pages.HOW_TO_ASK),
]
_, UP, OTHER, INSTALL, TOP, RUN, DOWN = pages.commands("tasks/try-it.md")
(VECTOR_ADD,) = (text for text in pages.commands("tasks/install.md") if "cuda-vectoradd" in text)
SLICES, MPS, SHARES, METRICS, _ = pages.commands("tasks/share.md")
UNINSTALL, _ = pages.commands("tasks/uninstall.md")


@pytest.fixture
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageShell]:
    home = tmp_path_factory.mktemp("p")  # unix sockets lie below it, whose paths are short
    shell = PageShell(home)
    for name, text in (pages.files("tasks/install.md") | pages.files("tasks/share.md")).items():
        (home / name).write_text(text)
    (home / "train.py").write_text("print('trained')\n")
    yield shell
    for name in ("gpuplane", "other"):
        shell.down(name)


def test_the_pages_for_a_first_hour_run_as_they_are_printed(shell: PageShell) -> None:
    shell.run(UP)
    listed = shell.run(OTHER)
    rows = [line.split()[:3] for line in listed.splitlines()]
    assert ["gpuplane", "running", "3"] in rows and ["other", "running", "2"] in rows
    assert len(shell.run(INSTALL).splitlines()) >= 4
    assert "Test PASSED" in shell.run(VECTOR_ADD)
    shell.run(SLICES)
    shell.run(MPS)
    shell.run(SHARES)
    metrics = shell.run(METRICS)
    assert 'req_of_gpu_memory="total"} 5120' in metrics and 'pod_name="part-card"' in metrics
    assert "no GPU is shared here" in shell.run(TOP)  # of sim-1; the share is on sim-2
    assert "default/part-card:gpu" in shell.run(TOP.replace("sim-1", "sim-2"))
    assert "trained" in shell.run(RUN)
    shell.run("kubectl delete pod part-card cuda-vectoradd --now")
    shell.run(UNINSTALL)
    nodes = json.loads(shell.run("kubectl get nodes -o json"))["items"]
    offered = [node["status"]["allocatable"].get("nvidia.com/gpu", "0") for node in nodes]
    assert offered == ["0", "0", "0"]  # as a kubelet leaves it
    shell.run(DOWN)
    assert not list((shell.home / ".gpuplane/clusters").iterdir())
