"""Why `gpuplane explain` counts a node out: taints, labels, offers, replicas, MIG devices, quota."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.gpunode import Summary
from gpuplane.scheduler.quota import NamespaceQuota
from packages.gpuplane.tests.cli import explained_clusters as built
from packages.gpuplane.tests.cli.explained_pages import SHARE, changes, drawn


@pytest.fixture
def cluster() -> Any:
    return built.Cluster()


def test_each_node_counts_once_under_its_first_reason(cluster):
    cluster.node("cpu", 0)
    cluster.node("tainted", taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
    cluster.node("cordoned", unschedulable=True)
    cluster.node("away", ready=False)
    cluster.node("bare", offers=(), summary=Summary(stage="driver", waits_for="kernel-headers"))
    cluster.node("whole-only", offers=(names.GPU_RESOURCE,))
    cluster.node("other", labels={"pool": "a"})
    cluster.node("full")
    for index in range(4):
        cluster.whole(f"w{index}", f"full/{index}")
    limits = SHARE | {"cpu": "2"}
    pod = cluster.pod("p", limits=limits, nodeSelector={})
    pod["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["a"]}]}]
            }
        }
    }
    found = cluster.explain(pod)
    assert {tally.reason: tally.count for tally in found.node_reasons} == {
        "no GPUs": 1,
        "taint team=x:NoSchedule not tolerated": 1,
        "cordoned": 1,
        "not Ready": 1,
        "not prepared: waits for kernel-headers": 1,
        "tencent.com/vcuda-core not offered": 1,
        "node affinity does not match": 1,
        "no GPU has 40% core and 12288 MiB together": 1,
    }
    assert list(changes(found).items()) == [
        ("drop the node affinity", "other/0"),
        ("tolerate team:NoSchedule", "tainted/0"),
        ("kubectl uncordon cordoned", "cordoned/0"),
        ("kubectl label node whole-only nvidia-device-enable=enable", "whole-only/0"),
    ]


def test_what_the_node_lacks_beside_gpus(cluster):
    cluster.node("n")
    pod = cluster.pod("p", limits=SHARE | {"cpu": "100", "memory": "1Ti"})
    assert [tally.reason for tally in cluster.explain(pod).node_reasons] == ["cpu and memory short"]


def test_one_label_of_many_is_enough(cluster):
    cluster.node("n", labels={"pool": "a", "zone": "1"})
    pod = cluster.pod("p", limits=SHARE, nodeSelector={"pool": "a", "zone": "2"})
    assert changes(cluster.explain(pod)) == {"drop zone=2 of the nodeSelector": "n/0"}


@pytest.mark.parametrize(
    ("resource", "words"),
    [
        (names.GPU_RESOURCE, "1 replica asked, 0 free"),
        ("nvidia.com/gpu.shared", "1 replica asked, 0 free"),
        ("nvidia.com/mig-1g.10gb", "1 mig-1g.10gb asked, 0 free"),
    ],
)
def test_replicas_and_mig_devices_are_explained_as_what_they_are(cluster, monkeypatch, resource, words):
    number = 7 if "mig" in resource else 10
    cluster.node("n", 1, devices={resource: number})
    cluster.node("other", 1, devices={"nvidia.com/unlike": 1})
    for index in range(number):
        cluster.pod(f"h{index}", limits={resource: 1}, on="n")
    found = cluster.explain(cluster.pod("p", limits={resource: 1}))
    assert {tally.reason: tally.count for tally in found.node_reasons} == {words: 1, f"{resource} not offered": 1}
    assert changes(found) == {"ml/h0 ends or is deleted": "n", "add a node like n": "the new node"}
    assert (found.state, found.can_ever_run) == ("waiting", True)
    asks = "1 GPU" if resource == names.GPU_RESOURCE else f"1 {resource}"
    assert f"waiting 6m for {asks}   can ever run: yes" in drawn(found, monkeypatch)
    assert cluster.explain(cluster.pods[0]).state == "placed"
    assert not cluster.explain(cluster.pod("q", limits={resource: 11})).can_ever_run


def test_replicas_are_counted_also_where_the_extender_places_whole_gpus(cluster):
    cluster.node("n", 1, devices={names.GPU_RESOURCE: 10})
    cluster.node("other", 1, offers=(names.GPU_RESOURCE,))
    cluster.whole("w", "other/0")
    held = [cluster.pod(f"h{index}", limits={names.GPU_RESOURCE: 1}, on="n") for index in range(9)]
    pod = cluster.pod("p", limits={names.GPU_RESOURCE: 1})
    found = cluster.explain(pod)
    assert (found.runs_on, cluster.explain(held[0]).runs_on) == ("n", "n")
    cluster.pod("h9", limits={names.GPU_RESOURCE: 1}, on="n")
    found = cluster.explain(pod)
    reasons = {"1 replica asked, 0 free": 1, "1 whole GPU asked, 0 wholly free": 1}
    assert {tally.reason: tally.count for tally in found.node_reasons} == reasons
    assert cluster.explain(cluster.pod("ten", limits={names.GPU_RESOURCE: 10})).can_ever_run
    assert not cluster.explain(cluster.pod("q", limits={names.GPU_RESOURCE: 11})).can_ever_run


def test_a_node_that_could_offer_shares_is_named(cluster):
    for node in ("busy", "idle"):
        cluster.node(node, 2, offers=(names.GPU_RESOURCE,))
    cluster.pod("w", limits={names.GPU_RESOURCE: 1}, on="busy")
    found = cluster.explain(cluster.pod("p", limits=SHARE))
    assert changes(found) == {"kubectl label node idle nvidia-device-enable=enable": "idle/0"}


def test_quota_is_told_with_who_uses_it(cluster, monkeypatch):
    cluster.node("a", labels={names.QUOTA_MODEL_LABEL: "T4"})
    cluster.quotas["ml"] = NamespaceQuota({"T4": 100})
    cluster.whole("big", "a/0")
    found = cluster.explain(cluster.pod("p", limits=SHARE))
    assert found.quota == "exceeded"
    assert found.node_reasons[0].reason.startswith("ExceedsGPUQuota: namespace ml uses 1 of 1 T4 (big 1)")
    assert changes(found) == {"ml/big ends or is deleted": "a/0"}
    assert "quota exceeded" in drawn(found, monkeypatch, 80)
    cluster.quotas["ml"] = NamespaceQuota({"T4": 200})
    assert cluster.explain(cluster.pods[-1]).quota == "ok"


def test_a_quota_counts_replicas_as_parts_of_gpus(cluster):
    cluster.node("a", 1, devices={names.GPU_RESOURCE: 10}, labels={names.QUOTA_MODEL_LABEL: "T4"})
    cluster.quotas["ml"] = NamespaceQuota({"T4": 30})
    for number in range(2):
        cluster.pod(f"r{number}", limits={names.GPU_RESOURCE: 1}, on="a")
    pod = cluster.pod("p", limits={names.GPU_RESOURCE: 1})
    assert (cluster.explain(pod).quota, cluster.explain(pod).runs_on) == ("ok", "a")
    cluster.pod("r2", limits={names.GPU_RESOURCE: 1}, on="a")
    assert "uses 0.3 of 0.3 T4" in cluster.explain(pod).node_reasons[0].reason


def test_a_replica_is_chosen_before_a_whole_gpu(cluster):
    cluster.node("a", 1)
    cluster.whole("w", "a/0")
    cluster.node("b", 2)
    cluster.node("c", 1, devices={names.GPU_RESOURCE: 10})
    assert cluster.explain(cluster.pod("one", limits={names.GPU_RESOURCE: 1})).runs_on == "c"
    assert cluster.explain(cluster.pod("two", limits={names.GPU_RESOURCE: 2})).runs_on == "b/0,1"
