"""Output of `gpuplane up` about the cluster that it started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpulab.up import describe, image_directories
from kubekit.errors import InvalidInput, UsageError
from tinykube.cluster import ClusterHandle, ClusterSpec
from tinykube.kubelet.containers import Isolation, IsolationMode


def handle(containers: IsolationMode | None) -> ClusterHandle:
    return ClusterHandle("c", Path("/d"), Path("/k"), "https://127.0.0.1:1", ClusterSpec(), containers)


def test_json_says_how_containers_are_isolated_and_why_not_better() -> None:
    mode = IsolationMode(Isolation.USER, lacks="no subordinate ids: install uidmap")
    assert describe(handle(mode))["containers"] == {"isolation": "user", "lacks": "no subordinate ids: install uidmap"}
    assert describe(handle(None))["containers"] is None
    assert str(mode) == "user namespace, one user (no subordinate ids: install uidmap)"


def test_an_image_is_mapped_to_a_directory_or_to_this_python(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    assert image_directories([f"tensorflow/*={tmp_path}", "registry:5000/app:1=python"]) == {
        "tensorflow/*": str(tmp_path),
        "registry:5000/app:1": sys.prefix,
    }


@pytest.mark.parametrize("text", ["tensorflow", "=DIR", "tensorflow="])
def test_an_image_without_a_directory_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="names no directory"):
        image_directories([text])


def test_a_directory_without_programs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{tmp_path} has no bin"):
        image_directories([f"tensorflow/*={tmp_path}"])
    with pytest.raises(InvalidInput, match="has no bin"):
        ClusterSpec(images={"tensorflow/*": str(tmp_path)}).check(lambda name: None)
