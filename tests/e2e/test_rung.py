"""Kubernetes' own end-to-end specs pass on the embedded cluster, but for those of `not_passing.yaml`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpulab.kubernetes import binaries
from tests.e2e import judging, rung
from tests.e2e.suite import SET


def test_a_port_of_all_addresses_is_found() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert rung.taken((port,)) == [port]
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert rung.taken((server.getsockname()[1],)) == []


@pytest.mark.deadline(1500)
def test_kubernetes_own_specs(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if request.config.getoption("--cluster") != "real":
        pytest.skip("takes minutes: make test-kubernetes, or python -m tests.e2e")
    if not binaries.built(SET):
        pytest.skip("the suite is not built: python -m tests.support.realkube")
    if ports := rung.taken():
        pytest.skip(f"servers of pods find their ports taken by a program that listens on all addresses: {ports}")
    listed = judging.not_passing()
    with rung.cluster(tmp_path) as kubeconfig:
        specs = rung.measure(tmp_path / "reports", kubeconfig, listed)
    for row in judging.table(specs):
        print(f"{row.area}: {row.passed} of {row.of}")
    assert specs
    assert judging.findings(specs, listed) == []
