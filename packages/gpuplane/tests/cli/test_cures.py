"""The cures of `explain` are true: each is carried out, and the pod then has the place that was printed."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.cli.explain_text import page
from gpuplane.cli.terminal import Console
from gpuplane.explain.answer import Explanation
from gpuplane.explain.proving import runs_on
from gpuplane.explain.world import World
from gpuplane.scheduler.quota import NamespaceQuota
from packages.gpuplane.tests.cli import explained_clusters as built
from packages.gpuplane.tests.cli.carried_out import CHANGES, NEW, carried_out

SHARE = {names.VCUDA_CORE: 40, names.VCUDA_MEMORY: 48}
WHOLE = {names.GPU_RESOURCE: 1}
TAINT = {"key": "team", "value": "x", "effect": "NoSchedule"}
SHARES_ONLY = (names.VCUDA_CORE, names.VCUDA_MEMORY)
AGAIN = "the pod has to be deleted and made again"
Object = dict[str, Any]


def check(cluster: built.Cluster, pod: Object, found: Explanation, *, exact: bool = True) -> None:
    """Carry out each of the cures by itself, and explain the pod again: it fits.

    `exact`: it would go where the cure said. In a random cluster, what the change tells the placement policy may make
    another node a better one; then the node of the cure takes it all the same.
    """
    assert not (found.runs_on and found.cures)
    for cure in found.cures:
        after, changed = carried_out(cluster, pod, cure.change)
        node = NEW if cure.place == "the new node" else cure.place.partition("/")[0]
        place = after.explain(changed).runs_on
        assert place and runs_on(World(after.facts()).judge(changed, [node])), cure
        assert not exact or node == NEW or place == cure.place, cure
        assert cure.effect, cure


# -- one cluster for each cure -----------------------------------------------------------------------------------------


def wants(**pod: Any) -> Callable[[built.Cluster], Object]:
    return lambda cluster: cluster.pod("p", **{"limits": SHARE} | pod)


def full(name: str = "a", **node: Any) -> Callable[[built.Cluster], None]:
    def make(cluster: built.Cluster) -> None:
        cluster.node(name, 1, **node)
        cluster.share(f"h-{name}", f"{name}/0", 65, 8)

    return make


def plain(**node: Any) -> Callable[[built.Cluster], None]:
    return lambda cluster: cluster.node("a", 2, **node)


def in_zone(value: str) -> Object:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def short_of_memory(cluster: built.Cluster) -> None:
    cluster.node("a", 1)
    cluster.share("h", "a/0", 10, 8)


EACH = [
    ("ask 7 GiB (vcuda-memory 28)", short_of_memory, wants()),
    ("ask 35% core (vcuda-core 35)", full(), wants(limits={names.VCUDA_CORE: 40, names.VCUDA_MEMORY: 4})),
    ("ask 2 instead of 3 GPUs", plain(), wants(limits={names.GPU_RESOURCE: 3})),
    ("ask nvidia.com/gpu, or gpuplane install --admission open and apply it again", plain(offers=(names.GPU_RESOURCE,)),
     wants(limits={names.ALPHA_GPU: 2})),
    (f"drop the annotation {names.GPU_MODELS_ANNOTATION}", plain(),
     wants(annotations={names.GPU_MODELS_ANNOTATION: "H100"})),
    ("drop zone=2 of the nodeSelector", plain(labels={"pool": "a", "zone": "1"}),
     wants(nodeSelector={"pool": "a", "zone": "2"})),
    ("drop the nodeSelector", plain(), wants(nodeSelector={"pool": "a"})),
    ("drop the node affinity", plain(), wants(affinity=in_zone("1"))),
    ("drop nodeSelector and node affinity", plain(), wants(affinity=in_zone("1"), nodeSelector={"pool": "a"})),
    ("tolerate team:NoSchedule", plain(taints=[TAINT]), wants()),
    ("kubectl uncordon a", plain(unschedulable=True), wants()),
    ("kubectl label node a nvidia-device-enable=enable", plain(offers=(names.GPU_RESOURCE,)), wants()),
    ("ml/h-a ends or is deleted", full(), wants()),
    ("bring GPU 1 of a back: gpuplane status names the way", plain(lost=(1,)), wants(limits={names.GPU_RESOURCE: 2})),
    ("bring GPUs 0,1 of a back: gpuplane status names the way", plain(lost=(0, 1)), wants()),
    ("add a node like a", full(), wants()),
]  # fmt: skip


@pytest.mark.parametrize(("change", "cluster", "pod"), EACH, ids=[change for change, _, _ in EACH])
def test_each_cure_comes_true(change: str, cluster: Any, pod: Any) -> None:
    made = built.Cluster()
    cluster(made)
    waiting = pod(made)
    found = made.explain(waiting)
    assert change in {cure.change for cure in found.cures}
    check(made, waiting, found)


def test_there_is_a_cluster_for_each_cure() -> None:
    assert not [words for words in CHANGES if not any(re.fullmatch(words, change) for change, _, _ in EACH)]


def test_a_new_node_has_no_gpu_that_the_pod_names() -> None:
    cluster = built.Cluster()
    full()(cluster)
    pod = cluster.pod("p", limits=SHARE, annotations={names.GPU_UUIDS_ANNOTATION: "GPU-a-0"})
    changes = {cure.change for cure in cluster.explain(pod).cures}
    assert "ml/h-a ends or is deleted" in changes and "add a node like a" not in changes


def test_a_node_in_mig_mode_is_not_asked_to_offer_shares() -> None:
    cluster = built.Cluster()
    cluster.node("a", 1, devices={"nvidia.com/mig-1g.10gb": 7})
    status = cluster.gpunodes[0].status
    split = tuple(msgspec.structs.replace(gpu, mig="enabled") for gpu in status.gpus)
    cluster.gpunodes[0] = msgspec.structs.replace(
        cluster.gpunodes[0], status=msgspec.structs.replace(status, gpus=split)
    )
    assert cluster.explain(cluster.pod("p", limits=SHARE)).cures == ()


# -- random clusters ---------------------------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> tuple[built.Cluster, Object]:
    """Clusters whose nodes are full, lost, cordoned, tainted or of another kind; and a pod."""
    cluster = built.Cluster()
    for number in range(draw(st.integers(0, 4))):
        name, gpus = f"n{number}", draw(st.integers(1, 3))
        kind = draw(st.sampled_from(["both", "shares", "whole", "replicas"]))
        offers = {"whole": {"offers": (names.GPU_RESOURCE,)}, "shares": {"offers": SHARES_ONLY}}.get(kind, {})
        cluster.node(
            name,
            gpus,
            labels={"pool": draw(st.sampled_from("ab")), names.QUOTA_MODEL_LABEL: "T4"},
            lost=tuple(sorted(draw(st.sets(st.integers(0, gpus - 1), max_size=2)))),
            unschedulable=draw(st.booleans()),
            taints=[TAINT] * draw(st.integers(0, 1)),
            devices={names.GPU_RESOURCE: 4 * gpus} if kind == "replicas" else None,
            **offers,
        )
        for gpu in range(gpus):
            held = draw(st.sampled_from(["free", "share", "whole", "plain"]))
            if held == "free":
                continue
            if kind in ("whole", "replicas") or (held == "plain" and kind == "both"):
                cluster.pod(f"h{number}{gpu}", limits=WHOLE, on=name)
            elif held == "whole":
                cluster.whole(f"h{number}{gpu}", f"{name}/{gpu}")
            else:
                core, memory = draw(st.integers(1, 99)), draw(st.integers(1, 15))
                cluster.share(f"h{number}{gpu}", f"{name}/{gpu}", core, memory)
    if draw(st.booleans()):
        cluster.quotas["ml"] = NamespaceQuota({"T4": draw(st.integers(1, 4)) * 100})
    limits = draw(
        st.sampled_from([WHOLE, {names.GPU_RESOURCE: 3}, SHARE, {names.VCUDA_CORE: 70}, {names.VCUDA_CORE: 200}])
    )
    annotations = draw(
        st.sampled_from([{}, {}, {names.GPU_MODELS_ANNOTATION: "H100"}, {names.GPU_UUIDS_ANNOTATION: "GPU-n0-0"}])
    )
    selector = draw(st.sampled_from([{}, {"pool": "a"}, {"pool": "a", "zone": "1"}]))
    pod = cluster.pod("p", limits=limits, annotations=annotations, nodeSelector=selector)
    if draw(st.booleans()):
        pod["spec"]["affinity"] = in_zone("1")
    return cluster, pod


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_every_cure_of_random_clusters_comes_true_and_sums_add_up(made: tuple[built.Cluster, Object]) -> None:
    """`explain` of the builder checks the sums."""
    cluster, pod = made
    check(cluster, pod, cluster.explain(pod), exact=False)


# -- what cures cost ---------------------------------------------------------------------------------------------------


def owner(kind: str, name: str) -> Object:
    return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": True}


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("", "", AGAIN),
        ("ReplicaSet", "web-7c9f8", "change Deployment/web, which then replaces all its pods"),
        ("ReplicaSet", "bare", "change ReplicaSet/bare, and delete the pod, which is then made again"),
        ("StatefulSet", "db", "change StatefulSet/db, and delete the pod, which is then made again"),
        ("Job", "train", "Job/train has to be deleted and made again"),
    ],
)
def test_a_changed_pod_has_to_be_made_again(kind: str, name: str, words: str) -> None:
    cluster = built.Cluster()
    cluster.node("a", 1, taints=[TAINT])
    cluster.node("b", 1)
    pod = cluster.pod("p", limits=SHARE, nodeSelector={"kubernetes.io/hostname": "b"})
    cluster.whole("w", "b/0")
    pod["metadata"]["labels"] = {"pod-template-hash": "7c9f8"}
    if kind:
        pod["metadata"]["ownerReferences"] = [owner(kind, name)]
    cluster.node("c", 1)
    assert [cure.effect for cure in cluster.explain(pod).cures][:1] == [words]
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "a"}
    effects = {cure.change: cure.effect for cure in cluster.explain(pod).cures}
    assert effects["tolerate team:NoSchedule"] == (
        f"the taint keeps pods off the node on purpose: look first why; {words}"
    )


def test_a_deleted_pod_of_a_controller_comes_back() -> None:
    cluster = built.Cluster()
    full()(cluster)
    pod = cluster.pod("p", limits=SHARE)
    assert cluster.explain(pod).cures[-2].effect == "deleting it ends its work"
    cluster.pods[0]["metadata"]["ownerReferences"] = [owner("ReplicaSet", "web-7c9f8")]
    again = "deleting it ends its work; its ReplicaSet makes another, which asks for the same"
    assert cluster.explain(pod).cures[-2].effect == again


def test_what_one_cure_costs_is_printed_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cluster = built.Cluster()
    plain(labels={"pool": "b"})(cluster)
    full("b")(cluster)
    pod = cluster.pod("p", limits=SHARE, nodeSelector={"pool": "a"})
    screen = Console(io.StringIO(), io.StringIO(), colour="never")
    assert page(cluster.explain(pod), screen).endswith(
        f" cure 1   drop the nodeSelector   runs now on a/0\n          ({AGAIN})"
    )
