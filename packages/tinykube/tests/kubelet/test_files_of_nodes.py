"""Files on a simulated node that are no kubeconfig or no CDI specification: refused or skipped in words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kubekit.errors import InvalidInput
from tinykube.kubelet.kubelet import read_cluster
from tinykube.kubelet.runtimes.cdi import read_specs
from tinykube.scheduler import load as load_scheduler


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[" * 100_000, "is nested more than 100 deep"),
        (b"a: &a [*a]", "has aliases that stand for more"),
        (b"\xff", "is no UTF-8 text"),
        (b"a: !!int x", "this is no int"),
    ],
)
def test_attacks_on_readers(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=why):
        read_cluster(file)
    with pytest.raises(InvalidInput, match=why):
        load_scheduler(file)
    assert read_specs(tmp_path, ["/"]) == []
    (tmp_path / "file.json").write_bytes(content)
    assert read_specs(tmp_path, ["/"]) == []


def test_pipes_are_refused_and_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file.yaml")
    with pytest.raises(InvalidInput, match="it is a pipe"):
        read_cluster(tmp_path / "file.yaml")
    with pytest.raises(InvalidInput, match="it is a pipe"):
        load_scheduler(tmp_path / "file.yaml")
    assert read_specs(tmp_path, ["/"]) == []


@pytest.mark.parametrize("server", ["7", "https://[::1", "https://a:99999"])
def test_a_server_that_is_no_url_is_refused(tmp_path: Path, server: str) -> None:
    (tmp_path / "config").write_text(
        f"contexts: [{{name: a, context: {{cluster: c}}}}]\nclusters: [{{name: c, cluster: {{server: {server!r}}}}}]\n"
    )
    if server == "7":
        assert read_cluster(tmp_path / "config").host == "127.0.0.1"
        return
    with pytest.raises(InvalidInput, match="no usable kubeconfig"):
        read_cluster(tmp_path / "config")
