"""Scenarios that any cluster must show alike; what they saw is compared with what a real one showed (`expected/`)."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from packages.tinykube.tests.conformance import differences
from tests.support.anycluster import scenario as transcripts
from tests.support.anycluster.choice import EMBEDDED, Cluster
from tests.support.anycluster.player import PLAYED, Player, playing

RECORDED_VERSION = "1.36"
HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def player(cluster: Cluster) -> Iterator[Player]:
    with playing(cluster.kubeconfig, "scenarios") as running:
        yield running


class Scenario(transcripts.Scenario):
    """The scenario that a test of this folder receives."""

    def node(self, base: str, *, labels: Any = None, taints: Any = None, capacity: Any = None) -> str:
        """A played node, ready; its name. It has the label `run` of this scenario."""
        name = self.name(base)
        marks = {PLAYED: "scenarios", "run": self.suffix, "kubernetes.io/hostname": name, **(labels or {})}
        node = {"metadata": {"name": name, "labels": marks}, "spec": {"taints": taints or []}}
        self.made("/api/v1/nodes", {**node, "status": {"capacity": capacity or {}}})

        def ready(found: Any) -> bool:
            conditions = (found.get("status") or {}).get("conditions") or ()
            kept = [taint["key"] for taint in found["spec"].get("taints") or ()]
            return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions) and (
                "node.kubernetes.io/not-ready" not in kept
            )

        self.until(f"/api/v1/nodes/{name}", ready)
        return name

    def pod(self, name: str, *, labels: Any = None, **spec: Any) -> Any:
        """A pod that runs on this scenario's nodes only."""
        spec = {"containers": [{"name": "main", "image": "busybox"}], "nodeSelector": {"run": self.suffix}, **spec}
        metadata = {"name": name, **({"labels": labels} if labels else {})}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.fixture
def here(cluster: Cluster, player: Player, request: pytest.FixtureRequest) -> Iterator[Scenario]:
    """Yield a scenario. At its end, its records must equal a real cluster's, except for the listed differences."""
    if request.node.get_closest_marker("alone") and cluster.kind not in ("embedded", "real"):
        pytest.skip("counts on being alone in the cluster")
    scenario = Scenario(cluster.kubeconfig, cluster.jane, secrets.token_hex(3))
    scenario.normal.names[cluster.run] = "RUN"
    namespace = {"metadata": {"name": scenario.namespace}}
    scenario.made("/api/v1/namespaces", namespace)
    account = f"/api/v1/namespaces/{scenario.namespace}/serviceaccounts/default"
    scenario.until(account, lambda found: found)  # pods are refused before it is there
    try:
        yield scenario
        if not request.node.stash.get(FAILED, False):
            compare(scenario, cluster, request)
    finally:
        scenario.end()


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if call.when == "call":
        item.stash[FAILED] = report.failed or report.skipped
    return report


def compare(scenario: Scenario, cluster: Cluster, request: pytest.FixtureRequest) -> None:
    area = request.node.path.stem.removeprefix("test_")
    name = request.node.name.removeprefix("test_")
    file = HERE / "expected" / area / (re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-") + ".yaml")
    steps = json.loads(json.dumps(scenario.steps))
    recording = request.config.getoption("--record")
    if recording and cluster.kind != EMBEDDED:
        assert cluster.kind == "real", "what is expected is what our own real cluster shows"
        transcripts.record(file, steps)
        return
    expected = transcripts.recorded(file)
    assert expected, f"no real cluster was asked yet: run this with --cluster real --record, for {file.name}"
    found = transcripts.differences(expected, steps)
    if cluster.kind == EMBEDDED:
        if recording:
            differences.keep(f"{area}/{file.stem}", found)
        known = {step: differing(step, found) for step in differences.told(f"{area}/{file.stem}")}
        alike = sorted(step for step, steps in known.items() if not steps)
        if alike:
            pytest.fail(f"told to differ, and alike: {alike}", pytrace=False)
        found = {step: diff for step, diff in found.items() if not any(step in steps for steps in known.values())}
    else:
        loose = set().union(*(differing(step, found) for step in differences.restless(f"{area}/{file.stem}")))
        found = {step: diff for step, diff in found.items() if step not in loose}
    if cluster.kind != EMBEDDED and found and (version := cluster.version()) != RECORDED_VERSION:
        pytest.skip(f"Kubernetes {version} is not {RECORDED_VERSION}; it shows otherwise: {', '.join(found)}")
    if found:
        pytest.fail("\n".join(f"--- {step}\n{diff}" for step, diff in found.items()), pytrace=False)


def differing(pattern: str, found: Iterable[str]) -> set[str]:
    return {step for step in found if step == pattern or fnmatchcase(step, pattern)}
