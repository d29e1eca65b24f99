"""Kueue's objects as queues: what is honoured, and that the rest is named."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.scheduler.queues.kueue import KueueObject, KueueQueues, KueueReader
from gpuplane.scheduler.queues.tree import Eviction, FairQueue, QueueTree

GPU = "nvidia.com/gpu"


def quotas(*flavors: dict[str, Any]) -> dict[str, Any]:
    return {"resourceGroups": [{"coveredResources": [], "flavors": list(flavors)}]}


def flavor(name: str = "default", **resources: Any) -> dict[str, Any]:
    """Quotas by resource: nominalQuota, or a dict with more."""
    listed = [
        {"name": kind, **(given if isinstance(given, dict) else {"nominalQuota": given})}
        for kind, given in resources.items()
    ]
    return {"name": name, "resources": listed}


def read(
    cluster_queues: dict[str, Any],
    local_queues: dict[str, Any] | None = None,
    cohorts: dict[str, Any] | None = None,
    flavors: dict[str, Any] | None = None,
    namespaces: dict[str, dict[str, str]] | None = None,
) -> KueueQueues:
    def objects(specs: dict[str, Any] | None) -> list[KueueObject]:
        return [KueueObject(name, spec) for name, spec in (specs or {}).items()]

    reader = KueueReader(objects({"default": {}} if flavors is None else flavors), namespaces or {"ml": {"team": "ml"}})
    return reader.read(objects(cohorts), objects(cluster_queues), objects(local_queues))


def by_name(found: KueueQueues) -> dict[str, FairQueue]:
    return {queue.name: queue for queue in found.queues}


def test_a_cluster_queue_is_guaranteed_its_quota_and_borrows_as_far_as_it_says():
    one = flavor(**{"cpu": "8", "memory": "16Gi", GPU: {"nominalQuota": 4, "borrowingLimit": 2}})
    found = by_name(
        read({"a": {"cohortName": "all", **quotas(one), "fairSharing": {"weight": "2"}}, "alone": quotas(one)})
    )
    assert found["a"].guaranteed == found["alone"].guaranteed == (8000, 16 << 30, 400, None)
    assert found["a"].limit == (None, None, 600, None)
    assert found["alone"].limit == (8000, 16 << 30, 400, None), "without a cohort nothing is borrowed"
    assert (found["a"].parent, found["a"].weight) == ("cohort/all", 2.0)
    assert found["cohort/all"].limit == found["cohort/all"].guaranteed == (8000, 16 << 30, 400, None)


def test_shares_of_gpus_count_as_gpus():
    one = flavor(**{"tencent.com/vcuda-core": 250, "tencent.com/vcuda-memory": 40, GPU: 1})
    assert by_name(read({"a": quotas(one)}))["a"].guaranteed == (None, None, 350, 10240)


def test_cohorts_have_a_quota_of_their_own_and_stand_below_each_other():
    pool = quotas(flavor(**{GPU: {"nominalQuota": 3, "borrowingLimit": 1}}))
    found = read(
        {"a": {"cohort": "low", **quotas(flavor(**{GPU: 2}))}},
        cohorts={"low": {"parentName": "top", **pool}, "top": quotas(flavor(**{GPU: 10}))},
    )
    tree = QueueTree(found.queues)
    assert tree.path("a") == ("a", "cohort/low", "cohort/top")
    assert [tree.guaranteed(name)[2] for name in tree.path("a")] == [200, 500, 1500]
    assert [tree.limit(name)[2] for name in tree.path("a")] == [None, 600, 1500]
    assert not tree.findings and not found.findings


def test_cohorts_in_a_circle_end():
    found = read({"a": {"cohort": "x"}}, cohorts={"x": {"parentName": "y"}, "y": {"parentName": "x"}})
    assert "below itself" in QueueTree(found.queues).findings[0].message


def test_local_queues_have_the_pods():
    spec = {**quotas(flavor(**{GPU: 2})), "namespaceSelector": {"matchLabels": {"team": "ml"}}}
    found = read(
        {"a": spec, "closed": {}, "held": {**spec, "stopPolicy": "Hold"}},
        {
            "ml/main": {"clusterQueue": "a", "fairSharing": {"weight": 3}},
            "web/main": {"clusterQueue": "a"},
            "ml/closed": {"clusterQueue": "closed"},
            "ml/lost": {"clusterQueue": "nowhere"},
            "ml/stopped": {"clusterQueue": "a", "stopPolicy": "Hold"},
            "ml/held": {"clusterQueue": "held"},
        },
        namespaces={"ml": {"team": "ml"}, "web": {}},
    )
    tree = QueueTree(found.queues)
    assert tree.of("ml", "main") == "ml/main" and tree.path("ml/main") == ("ml/main", "a")
    assert tree.weight("ml/main") == 3.0 and tree.whole("ml/main") == "a"
    assert {
        name: tree.stopped(name) for name in ("ml/main", "web/main", "ml/closed", "ml/lost", "ml/stopped", "ml/held")
    } == {
        "ml/main": "",
        "web/main": "the namespaceSelector of ClusterQueue a leaves namespace web out",
        "ml/closed": "the namespaceSelector of ClusterQueue closed leaves namespace ml out",
        "ml/lost": "its ClusterQueue nowhere does not exist",
        "ml/stopped": "its stopPolicy is Hold",
        "ml/held": "its stopPolicy is Hold",
    }
    assert tree.of("ml") == ""


@pytest.mark.parametrize(
    ("preemption", "inside", "reclaim"),
    [
        ({}, Eviction.NEVER, Eviction.NEVER),
        ({"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}, Eviction.LOWER, Eviction.ANY),
        ({"withinClusterQueue": "LowerOrNewerEqualPriority"}, Eviction.LOWER, Eviction.NEVER),
        ({"reclaimWithinCohort": "LowerPriority"}, Eviction.NEVER, Eviction.LOWER),
    ],
)
def test_preemption_is_as_the_cluster_queue_says(preemption, inside, reclaim):
    spec = {"preemption": preemption, "namespaceSelector": {}}
    tree = QueueTree(read({"a": spec}, {"ml/main": {"clusterQueue": "a"}}).queues)
    assert (tree.inside("ml/main"), tree.reclaim("ml/main")) == (inside, reclaim)


UNLIKE: list[tuple[dict[str, Any], str]] = [
    ({"queueingStrategy": "StrictFIFO"}, "spec.queueingStrategy is not honoured"),
    ({"admissionChecks": ["x"]}, "spec.admissionChecks is not honoured"),
    ({"admissionChecksStrategy": {"admissionChecks": [{"name": "x"}]}}, "spec.admissionChecksStrategy is not honoured"),
    ({"admissionScope": {"admissionMode": "x"}}, "spec.admissionScope is not honoured"),
    ({"concurrentAdmissionPolicy": {"migration": {}}}, "spec.concurrentAdmissionPolicy is not honoured"),
    ({"flavorFungibility": {"whenCanBorrow": "TryNextFlavor"}}, "spec.flavorFungibility.whenCanBorrow is not honoured"),
    ({"preemption": {"borrowWithinCohort": {"policy": "LowerPriority"}}}, "spec.preemption.borrowWithinCohort is not"),
    (
        {"preemption": {"withinClusterQueue": "LowerOrNewerEqualPriority"}},
        "spec.preemption.withinClusterQueue: of pods of equal priority none is evicted",
    ),
    ({"stopPolicy": "HoldAndDrain"}, "spec.stopPolicy: no pod starts, and pods that run are not evicted"),
    (quotas(flavor(pods=5)), "the quota of pods is not honoured"),
    (quotas(flavor(cpu={"nominalQuota": 1, "lendingLimit": 0})), "lendingLimit of cpu is not honoured"),
    (quotas(flavor(cpu=1), flavor("other", cpu=1)), "the quotas of 2 flavors of cpu count together"),
    (quotas(flavor("lost", cpu=1)), "ResourceFlavor lost does not exist"),
    (quotas(flavor("t4", cpu=1)), "spec.nodeLabels of ResourceFlavor t4 is not honoured: pods may use any node"),
    (quotas(flavor(cpu="many")), "the quota of cpu cannot be read"),
    ({"fairSharing": {"weight": "much"}}, "spec.fairSharing.weight cannot be read"),
]


@pytest.mark.parametrize(("spec", "text"), UNLIKE, ids=[text for _, text in UNLIKE])
def test_what_is_not_honoured_is_named(spec: dict[str, Any], text: str) -> None:
    flavors = {"default": {}, "other": {}, "t4": {"nodeLabels": {"gpu": "t4"}}}
    (finding,) = read({"a": spec}, flavors=flavors).findings
    assert finding.queue == "a" and finding.message.startswith(text)


def test_what_kueue_sets_by_default_is_no_finding():
    spec = {
        "queueingStrategy": "BestEffortFIFO",
        "stopPolicy": "None",
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
        "preemption": {
            "reclaimWithinCohort": "Never",
            "borrowWithinCohort": {"policy": "Never"},
            "withinClusterQueue": "Never",
        },
        "fairSharing": {"weight": 1},
    }
    assert not read({"a": spec, "old": {"flavorFungibility": {"whenCanBorrow": "Borrow"}}}).findings
