"""The operator's answers in PodExplanations: no name of another tenant, and the number of nodes that fit."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.api.nodeclaim import NodeClaim, NodeClaimStatus
from gpuplane.explain.answer import Explanation
from gpuplane.explain.buying import BuyingFacts
from gpuplane.explain.pools import PoolFacts
from gpuplane.explain.serve import FREE_NODES, ExplanationRequest, answers, explained
from gpuplane.explain.unnamed import unnamed_pools
from gpuplane.scheduler.quota import NamespaceQuota
from kubekit.api.core import Event, ObjectReference
from kubekit.api.meta import Condition, ObjectMeta
from packages.gpuplane.tests.cli import explained_clusters as built
from packages.gpuplane.tests.cli.explained_pages import SHARE, drawn


@pytest.fixture
def cluster() -> Any:
    return built.Cluster()


def answered(request: ExplanationRequest, cluster: Any) -> list[dict[str, Any]]:
    return answers(request, [one for _, one in explained(request, cluster.facts(), built.NOW)])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_name_of_another_tenant_is_in_an_answer(data):
    """Of random clusters with quotas: the answer is an administrator's but for the names of other namespaces' pods."""
    cluster = built.Cluster()
    spaces = st.sampled_from(["ml", "SECRETSPACE"])
    for number in range(data.draw(st.integers(1, 3))):
        cluster.node(f"n{number}", 2, labels={names.QUOTA_MODEL_LABEL: "T4"})
        for gpu in range(2):
            kind, ns = data.draw(st.sampled_from(["free", "share", "whole", "counted"])), data.draw(spaces)
            name = f"{'mine' if ns == 'ml' else 'SECRETPOD'}-{number}-{gpu}"
            if kind == "share":
                cluster.share(name, f"n{number}/{gpu}", data.draw(st.integers(1, 99)), 4, ns)
            elif kind == "whole":
                cluster.whole(name, f"n{number}/{gpu}", ns)
            elif kind == "counted":
                cluster.pod(name, ns=ns, limits={names.GPU_RESOURCE: 1}, on=f"n{number}")
    if data.draw(st.booleans()):
        cluster.quotas = {ns: NamespaceQuota({"T4": 1}, ()) for ns in ("ml", "SECRETSPACE")}
    limits = data.draw(st.sampled_from([{names.GPU_RESOURCE: 2}, SHARE, {names.VCUDA_CORE: 200}]))
    pod = cluster.pod("p", limits=limits)
    request = ExplanationRequest("ml", ("p", "SECRETPOD-0-0"))
    [answer, other] = answered(request, cluster)
    assert other == {"pod": "SECRETPOD-0-0"}  # it is no pod of this namespace
    assert "SECRET" not in json.dumps(answer)
    whole, found = cluster.explain(pod), msgspec.convert(answer["explanation"], Explanation)
    assert (found.node_reasons, found.gpu_reasons, found.can_ever_run) == (
        whole.node_reasons, whole.gpu_reasons, whole.can_ever_run,
    )  # fmt: skip
    assert [cure.effect for cure in found.cures] == [cure.effect for cure in whole.cures]


def test_an_object_that_does_not_decode_is_absent(cluster):
    """Else one such object of any tenant would stop the explanations of all."""
    cluster.node("n1", 1)
    cluster.node("odd", 1)
    cluster.nodes[-1]["status"]["conditions"] = "odd"
    cluster.pod("broken", ns="other", limits=SHARE)["status"]["conditions"] = [{"type": None}]
    found = cluster.explain(cluster.pod("p", limits=SHARE))
    assert (found.nodes, found.runs_on) == (1, "n1/0")


def test_a_long_answer_has_the_nodes_with_most_free(cluster, monkeypatch):
    for number in range(FREE_NODES + 4):
        cluster.node(f"n{number:02}", 1)
        cluster.share(f"s{number}", f"n{number:02}/0", 90 if number % 2 else 80, 4)
    cluster.pod("p", limits=SHARE)
    [answer] = answered(ExplanationRequest("ml", ("p",)), cluster)
    found = msgspec.convert(answer["explanation"], Explanation)
    assert (len(found.free), found.free_not_listed, found.nodes) == (FREE_NODES, 4, FREE_NODES + 4)
    assert sum(node.gpus[0].core == 20 for node in found.free) == (FREE_NODES + 4) // 2
    assert "and 12 nodes more" in drawn(found, monkeypatch)


def test_no_name_of_another_tenant_is_in_the_facts_about_pools() -> None:
    """Events of claims name pods that hold a node; stages of a node that joins name pods that use its GPUs."""
    daemon = {"metadata": {"name": "SECRETAGENT", "namespace": "SECRETSPACE"}, "spec": {"containers": []}}
    own = {"metadata": {"name": "agent", "namespace": "ml"}, "spec": {"containers": []}}
    launched = Condition(type="Launched", status="True", message="no capacity")
    initialized = Condition(type="Initialized", status="False", message="held by SECRETSPACE/SECRETPOD")
    claim = NodeClaim(metadata=ObjectMeta(name="gpu-1"), status=NodeClaimStatus(conditions=(launched, initialized)))
    of_pod = ObjectReference(kind="Pod", namespace="ml", name="p")
    of_other = ObjectReference(kind="Pod", namespace="SECRETSPACE", name="SECRETPOD")
    of_claim = ObjectReference(kind="NodeClaim", name="gpu-1")
    events = (
        Event(involved_object=of_pod, reason="Nominated", message="mine"),
        Event(involved_object=of_other, reason="Nominated", message="SECRET"),
        Event(involved_object=of_claim, reason="FailedDraining", message="SECRETSPACE/SECRETPOD"),
        Event(involved_object=of_claim, reason="InsufficientCapacityError", message="no capacity"),
    )
    facts, traces = unnamed_pools(PoolFacts(daemons=[daemon, own]), BuyingFacts((claim,), events), "ml")
    assert "SECRETPOD" not in repr((facts, traces)) and "SECRETAGENT" not in repr(facts)
    assert [one["metadata"]["name"] for one in facts.daemons] == ["daemon-0", "agent"]
    assert [one.message for one in traces.events] == ["mine", "no capacity"]
    assert [one.message for one in traces.claims[0].status.conditions] == ["no capacity", ""]
