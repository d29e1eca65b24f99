"""Kubernetes' own end-to-end specs pass on the embedded cluster, but for those of `not_passing.yaml`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpulab.kubernetes import binaries
from tests.e2e import judging, rung, suite
from tests.e2e.__main__ import choose
from tests.e2e.forms import as_form
from tests.e2e.ledger import Ledger
from tests.e2e.plan import Rules


def test_a_port_of_all_addresses_is_found() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert rung.taken((port,)) == [port]
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert rung.taken((server.getsockname()[1],)) == []


def test_a_machine_without_the_programs_of_an_image_has_its_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert rung.lacking().endswith("find no curl, dig: apt-get install curl bind9-dnsutils")


@pytest.mark.deadline(1500)
def test_kubernetes_own_specs(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if request.config.getoption("--cluster") != "real":
        pytest.skip("takes minutes: make test-kubernetes, or python -m tests.e2e")
    if not binaries.built(suite.SET):
        pytest.skip("the suite is not built: python -m tests.support.realkube")
    if what := rung.lacking():
        pytest.skip(what)
    listed = judging.not_passing()
    ledger = Ledger(tmp_path / "reports")
    with rung.cluster(tmp_path) as kubeconfig:
        names = choose(suite.list_specs(suite.AREAS, kubeconfig, tmp_path / "list"), everything=False)
        rung.measure(names, kubeconfig, ledger, listed, Rules(piece=len(names), listed_seconds=90.0))
    specs = judging.judge(names, ledger.specs)
    print(as_form("text", specs))
    assert specs
    assert judging.findings(specs, listed) == []
