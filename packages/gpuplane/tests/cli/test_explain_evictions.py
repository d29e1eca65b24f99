"""The dry run of preemption in `explain`: the victims, or why no eviction helps. The scheduler's own run is in
`pod_scheduler/test_explained.py`.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.explain.evictions import EVICTS, LEAVING, NOMINATED, NONE, HoldingPod
from gpuplane.explain.scheduling_reading import SchedulingFacts
from gpuplane.explain.serve import ExplanationRequest, answers, explained
from kubekit.scheduling.preemption import Budget
from kubekit.scheduling.selectors import compile_selector
from packages.gpuplane.tests.cli import explained_clusters as built
from packages.gpuplane.tests.cli.explained_pages import drawn

WANTED = {names.VCUDA_CORE: 60, names.VCUDA_MEMORY: 20}
KUBE = "default-scheduler"
DELETED = "2026-05-01T12:05:00Z"


def fragments(scheduler: str = names.SCHEDULER_NAME, *, priority: int = 100, ns: str = "ml", **spec: Any) -> Any:
    """A node with 40% + 40% free, and a pod that waits for 60%."""
    cluster = built.Cluster()
    cluster.node("n1", 2)
    for gpu in range(2):
        holder = cluster.share(f"old-{gpu}", f"n1/{gpu}", 60, 4, ns)
        holder["spec"] |= {"priority": 0, "schedulerName": scheduler}
        holder["metadata"]["labels"] = {"app": "db"}
    return cluster, cluster.pod("urgent", limits=WANTED, priority=priority, schedulerName=scheduler, **spec)


def test_fragments_are_joined_by_one_eviction(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, pod = fragments()
    cluster.pods[1]["metadata"]["creationTimestamp"] = "2026-05-01T12:01:00Z"
    found = cluster.explain(pod)
    victim = HoldingPod("ml/old-1", "n1/1", "60% core + 4 GiB of one GPU", 0)
    assert (found.evictions.scheduler, found.evictions.state) == (names.SCHEDULER_NAME, EVICTS)
    assert (found.evictions.place, found.evictions.victims, found.runs_on) == ("n1/1", (victim,), "")
    page = drawn(found, monkeypatch, 80)
    assert " evict    the pod scheduler would evict 1 pod; then it runs on n1/1\n" in page
    assert "          ml/old-1   n1/1   60% core + 4 GiB of one GPU   priority 0\n" in page


def test_a_budget_is_named_that_is_broken_only_where_no_other_pod_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, pod = fragments()
    selector = compile_selector({"matchLabels": {"app": "db"}})
    cluster.scheduling = SchedulingFacts(budgets=[Budget("ml", selector, 0, "db")])
    assert "(breaks the disruption budget ml/db)" in drawn(cluster.explain(pod), monkeypatch, 80)
    del cluster.pods[0]["metadata"]["labels"]
    [victim] = cluster.explain(pod).evictions.victims
    assert (victim.pod, victim.budget) == ("ml/old-0", "")


@pytest.mark.parametrize(
    ("priority", "spec", "why", "printed"),
    [
        (100, {"preemptionPolicy": "Never"}, "its preemptionPolicy is Never", True),
        (0, {}, "no pod of lower priority than 0 runs", False),
        (100, {"limits": {names.VCUDA_CORE: 60, names.VCUDA_MEMORY: 100}}, "1 node: ", True),
    ],
)
def test_without_victims_the_reason_is_said(
    priority: int, spec: dict[str, Any], why: str, printed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod without a priority expects no room to be made, so its page says nothing of it."""
    cluster, pod = fragments(priority=priority, **{key: value for key, value in spec.items() if key != "limits"})
    if limits := spec.get("limits"):
        pod["spec"]["containers"][0]["resources"]["limits"] = {key: str(value) for key, value in limits.items()}
    found = cluster.explain(pod)
    assert found.evictions.state == NONE and found.evictions.why[0].startswith(why)
    assert (f"evict no pod: {why}" in " ".join(drawn(found, monkeypatch, 80).split())) == printed


def test_evictions_do_not_help_nodes_that_other_reasons_exclude() -> None:
    cluster, pod = fragments()
    cluster.node("n2", 2, unschedulable=True)
    pod["spec"]["containers"][0]["resources"]["limits"][names.VCUDA_MEMORY] = "100"  # 25 GiB: of no GPU here
    assert cluster.explain(pod).evictions.why == (
        "1 node: without all pods that it may evict there it has no room either",
        "1 node: no eviction changes why the pod cannot go there",
    )


def test_a_nomination_is_explained_while_victims_leave_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, pod = fragments()
    pod["status"]["nominatedNodeName"] = "n1"
    cluster.pods[0]["metadata"]["deletionTimestamp"] = DELETED
    found = cluster.explain(pod)
    assert (found.evictions.state, found.evictions.place) == (LEAVING, "n1")
    assert [(one.pod, one.leaving) for one in found.evictions.victims] == [("ml/old-0", True)]
    assert "the pod scheduler evicted pods on n1, and keeps their room for it" in drawn(found, monkeypatch, 80)
    del cluster.pods[0]
    found = cluster.explain(pod)
    assert (found.evictions.state, found.evictions.place, found.runs_on) == (NOMINATED, "n1/0", "n1/0")
    other = cluster.pod("other", limits=WANTED, schedulerName=names.SCHEDULER_NAME)
    found = cluster.explain(other)
    assert found.runs_on == "" and "for a pod of higher priority that waits for them" in found.note


def test_kube_scheduler_evicts_no_pod_for_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, pod = fragments(KUBE)
    found = cluster.explain(pod)
    assert (found.evictions.scheduler, found.evictions.state) == (KUBE, NONE)
    page = " ".join(drawn(found, monkeypatch, 80).split())
    assert "evict no pod: kube-scheduler counts the GPUs of a node together, and together enough is free" in page
    assert "the pod scheduler would (schedulerName: gpuplane)" in page


def test_kube_scheduler_evicts_where_the_sum_is_short_and_the_extender_corrects_the_victims() -> None:
    """By the sum one of the two pods is enough, and any of them; only that of GPU 1 leaves a whole GPU."""
    cluster = built.Cluster()
    cluster.node("n1", 2)
    cluster.share("small", "n1/0", 30, 4)["spec"]["priority"] = 0
    cluster.share("important", "n1/0", 60, 4)["spec"]["priority"] = 100
    cluster.share("large", "n1/1", 90, 4)["spec"]["priority"] = 0
    found = cluster.explain(cluster.pod("urgent", limits={names.VCUDA_CORE: 100}, priority=100))
    assert (found.evictions.scheduler, found.evictions.state, found.evictions.place) == (KUBE, EVICTS, "n1/1")
    assert [one.pod for one in found.evictions.victims][-1] == "ml/large"


def test_a_tenant_learns_no_name_of_another_one() -> None:
    cluster, _ = fragments(ns="SECRET")
    selector = compile_selector({"matchLabels": {"app": "db"}})
    cluster.scheduling = SchedulingFacts(budgets=[Budget("SECRET", selector, 0, "SECRETBUDGET")])
    request = ExplanationRequest("ml", ("urgent",))
    [answer] = answers(request, [one for _, one in explained(request, cluster.facts(), built.NOW)])
    assert "SECRET" not in json.dumps(answer)
    [victim] = answer["explanation"]["evictions"]["victims"]
    assert (victim["pod"], victim["budget"]) == ("a pod of another namespace", "a budget of another namespace")


def test_kinds_that_the_user_may_not_list_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, pod = fragments()
    cluster.scheduling = SchedulingFacts(unread=("poddisruptionbudgets",))
    page = drawn(cluster.explain(pod), monkeypatch, 80)
    assert "This user may not list poddisruptionbudgets, so these are left out" in page


def test_the_answer_is_data() -> None:
    cluster, pod = fragments()
    data = msgspec.to_builtins(cluster.explain(pod))["evictions"]
    assert (data["state"], data["place"], data["priority"]) == ("evicts", "n1/1", 100)
    assert data["victims"][0]["holds"] == "60% core + 4 GiB of one GPU"
