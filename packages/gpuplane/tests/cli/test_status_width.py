"""Every line of every page fits the window, and programs get whole lines."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane.api.gpunode import GPUNode, GPUNodeStatus, StageName
from gpuplane.cli.gpus_text import gpus_page
from gpuplane.cli.overview import overview as made
from gpuplane.cli.status_text import nodes_page
from gpuplane.cli.status_views import UpgradeView
from kubekit.errors import Terminal
from packages.gpuplane.tests.cli.status_objects import (
    NOW,
    asking,
    at,
    gpunode,
    overview,
    pod,
    screen,
    share,
    with_faults,
    without_headers,
)


@pytest.mark.parametrize("columns", [80, 120])
def test_people_get_lines_that_fit_and_programs_whole_ones(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    node = without_headers("bad")
    long = "no linux-headers-6.8.0-71 in the node's repositories " * 4
    stages = {**node.status.stages, "driver": msgspec.structs.replace(node.status.stages["driver"], message=long)}
    seen = overview([GPUNode(metadata=node.metadata, status=GPUNodeStatus(stages=stages))], [], {})
    monkeypatch.delenv("COLUMNS", raising=False)
    assert long.strip() in nodes_page("prod", seen, screen(), NOW)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = nodes_page("prod", seen, screen(), NOW).splitlines()
    assert columns - 20 < max(map(len, lines[-8:])) <= columns


LONG = "ip-10-0-123-234.eu-central-1.compute.internal.with.a.long.domain"


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        "Xid 79: fallen off the bus",
        "lost: it is on the PCI bus, and NVML does not list it",
        "fails the vectorAdd: element 13 of 50000 is 2.5094 and should be 3.5094",
    ],
)
def test_every_line_of_every_page_fits_eighty_columns(
    fault: str, ascii_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        with_faults(gpunode(LONG), fault, "Xid 48: double bit ECC error"),
        with_faults(gpunode("n2", failed=StageName.DEVICE_PLUGIN), fault),
        with_faults(gpunode("n3", gpus=1), fault),
        gpunode(f"n4.{LONG}", failed=StageName.CUDA),
        gpunode("n5"),
    ]
    model = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    named = tuple(msgspec.structs.replace(gpu, model=model, mig="enabled") for gpu in nodes[4].status.gpus)
    status = msgspec.structs.replace(nodes[4].status, gpus=named)
    nodes[4] = msgspec.structs.replace(nodes[4], status=status)
    name = "a-notebook-with-quite-a-long-name-7d9c8bf6c-x2x9p"
    pods = [pod(f"{name}-{node.metadata.name}", node.metadata.name, 1) for node in nodes[:4]]
    pods += [share(f"{name}-{at}", "n2", 30, 5, at) for at in (0, 1)]
    pods += [asking(name, "n5", f"nvidia.com/mig-{size}") for size in ("1g.24gb.me", "2g.48gb")]
    upgrades = {
        LONG: UpgradeView("upgrade-failed", at(0), f"the driver of {fault} could not be installed, so it is back " * 2),
        "n2": UpgradeView("pod-deletion-required", at(0), f"waits for ml/{name} to go"),
    }
    offered: dict[str, Any] = {node.metadata.name: {"nvidia.com/gpu": "2"} for node in nodes[:4]}
    offered["n5"] = {"nvidia.com/mig-1g.24gb.me": "800", "nvidia.com/mig-2g.48gb": "1000"}
    away = {"n3": "the node is not Ready: Kubelet stopped posting node status."}
    seen = made(nodes, pods, offered, away, upgrades, version="0.1.0-rc1")
    monkeypatch.setenv("COLUMNS", "80")
    told = screen(ascii_only)
    for page in (nodes_page(LONG, seen, told, NOW), gpus_page(seen, told), gpus_page(seen, told, wide=True)):
        lines = page.splitlines()
        assert max(map(len, lines)) <= 80, max(lines, key=len)
        words = " ".join(page.split())
        assert fault.split()[-1] in words and f"{fault.split()[0]} {fault.split()[1]}" in words


def test_an_error_fits_the_window_and_is_whole_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    cure = "gpuplane install --dry-run prints the manifests; gpuplane install applies them"
    for columns, longest in (("", 100), ("80", 80)):
        monkeypatch.setenv("COLUMNS", columns)
        told = screen()
        told.error(Terminal("gpuplane is not on this cluster", where="prod", cure=cure))
        lines = told.err.getvalue().splitlines()  # type: ignore[attr-defined]
        assert max(map(len, lines)) in range(longest - 20, longest + 1)
        assert " ".join(" ".join(lines).split()).endswith(f"cure {cure}")
        assert all(line.startswith(" " * 11) for line in lines[3:])
