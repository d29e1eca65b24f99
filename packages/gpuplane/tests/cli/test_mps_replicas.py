"""Replicas by MPS have a part of the memory: `status gpus` draws it, and `explain` names it."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.api.offers import shared_by_mps
from gpuplane.cli.explain_text import page
from gpuplane.cli.gpus_text import gpus_page
from gpuplane.cli.overview import overview
from gpuplane.cli.status_views import Overview
from gpuplane.cli.terminal import Console
from kubekit.api.core import Node, Pod
from packages.gpuplane.tests.cli import explained_clusters as built

SHARED = f"{names.GPU_RESOURCE}.shared"


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setenv("COLUMNS", "80")
    return Console(io.StringIO(), io.StringIO(), colour="never")


@pytest.fixture
def cluster() -> built.Cluster:
    """A T4 that four replicas by MPS share, of which ml/a holds one; and two T4 with time slices."""
    made = built.Cluster()
    made.node("mps", 1, devices={SHARED: 4}, labels={names.MPS_LABEL: "true"})
    made.node("turns", 2, devices={names.GPU_RESOURCE: 8}, labels={names.MPS_LABEL: "false"})
    made.pod("a", limits={SHARED: 1}, on="mps")
    return made


def status(cluster: built.Cluster) -> Overview:
    nodes = [msgspec.convert(raw, Node) for raw in cluster.nodes]
    return overview(
        cluster.gpunodes,
        [msgspec.convert(raw, Pod) for raw in cluster.pods],
        {node.metadata.name: node.status.allocatable for node in nodes},
        by_mps=[node.metadata.name for node in nodes if shared_by_mps(node.metadata.labels)],
    )


def test_status_draws_the_memory_of_a_replica(cluster: built.Cluster, screen: Console) -> None:
    seen = status(cluster)
    assert " 0  AAAAA░░░░░░░░░░░░░░░  aaaaa░░░░░░░░░░░░░░░  A ml/a 1 MPS replica" in gpus_page(seen, screen)
    assert seen.fits == {"MPS replica": 3, "replica": 8}


@pytest.mark.parametrize("lost", [False, True])
def test_explain_names_the_memory_of_a_replica(cluster: built.Cluster, screen: Console, lost: bool) -> None:
    if lost:
        cluster.nodes[0]["status"]["allocatable"] = {}
        cluster.gpunodes[0].status.health["GPU-mps-0"] = "Xid 79"
    text = page(cluster.explain(cluster.pods[0]), screen)
    assert text.startswith("ml/a   on mps for 6m, holds 1 MPS replica")
    assert " main        mps/0   T4      1 MPS replica, 3.75 GiB   GPU-mps-0" in text
    assert "replica" in page(cluster.explain(cluster.pod("t", limits={names.GPU_RESOURCE: 1}, on="turns")), screen)


def test_a_pod_that_waits_for_one_is_told_so(cluster: built.Cluster) -> None:
    def reason(pod: dict[str, Any]) -> str:
        return cluster.explain(pod).node_reasons[-1].reason

    assert reason(cluster.pod("p", limits={SHARED: 4})) == "4 MPS replicas asked, 3 free"
    assert reason(cluster.pod("q", limits={names.GPU_RESOURCE: 9})) == "9 replicas asked, 8 free"
