"""What `gpuplane up` says of the cluster that it started."""

from __future__ import annotations

from pathlib import Path

from gpulab.up import describe
from tinykube.cluster import ClusterHandle, ClusterSpec
from tinykube.kubelet.containers import Isolation, IsolationMode


def handle(containers: IsolationMode | None) -> ClusterHandle:
    return ClusterHandle("c", Path("/d"), Path("/k"), "https://127.0.0.1:1", ClusterSpec(), containers)


def test_json_says_how_containers_are_isolated_and_why_not_better() -> None:
    mode = IsolationMode(Isolation.USER, lacks="no subordinate ids: install uidmap")
    assert describe(handle(mode))["containers"] == {"isolation": "user", "lacks": "no subordinate ids: install uidmap"}
    assert describe(handle(None))["containers"] is None
    assert str(mode) == "user namespace, one user (no subordinate ids: install uidmap)"
