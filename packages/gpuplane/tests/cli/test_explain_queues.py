"""Explanations of pods that wait in their queue."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.api.gpuqueue import GPUQueue, GPUQueueSpec, QueueAmounts
from gpuplane.explain.evictions import EVICTS
from gpuplane.explain.scheduling_reading import SchedulingFacts
from gpuplane.scheduler.queues.kueue_watch import kueue_kind
from gpuplane.scheduler.queues.reading import ReadKueue
from kubekit.api.meta import ObjectMeta
from packages.gpuplane.tests.cli import explained_clusters as built
from packages.gpuplane.tests.cli.explained_pages import changes, drawn

ONE_GPU = {names.GPU_RESOURCE: 1}
OURS = {"schedulerName": names.SCHEDULER_NAME}


def queue(name: str, *namespaces: str, guaranteed: str = "", limit: str = "") -> GPUQueue:
    spec = GPUQueueSpec(
        namespaces=namespaces,
        guaranteed=QueueAmounts(gpus=guaranteed or None),
        limit=QueueAmounts(gpus=limit or None),
    )
    return GPUQueue(metadata=ObjectMeta(name=name), spec=spec)


@pytest.fixture
def cluster() -> built.Cluster:
    """A node with four GPUs, of which two are held."""
    made = built.Cluster()
    made.node("n1", 4)
    for gpu in range(2):
        made.whole(f"w{gpu}", f"n1/{gpu}")
    return made


def test_a_queue_at_its_limit_keeps_a_pod_that_fits(cluster: built.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.queues = [queue("team", "ml", guaranteed="1", limit="2")]
    found = cluster.explain(cluster.pod("next", limits=ONE_GPU, **OURS))
    assert found.runs_on == "" and found.queue == "team (holds 2 GPUs, 1 borrowed, share 50%)"
    assert found.waits_for_queue.endswith("and this pod needs 1 GPUs of at most 2 GPUs")
    limit = 'kubectl patch gpuqueue team --type merge -p \'{"spec":{"limit":{"gpus":"3"}}}\''
    assert changes(found) == {"ml/w0 ends or is deleted": "n1/0", limit: "n1/2"}
    page = drawn(found, monkeypatch, 80)
    assert " queue    queue team holds 2 GPUs (1 GPUs guaranteed, 1 GPUs borrowed), and this\n" in page
    assert "cure     none" not in page


def test_a_limit_above_the_queue_holds_it_too(cluster: built.Cluster) -> None:
    """Raising the lower of two limits that are reached is no cure."""
    lower = queue("team", "ml", limit="2")
    lower = msgspec.structs.replace(lower, spec=msgspec.structs.replace(lower.spec, parent="all"))
    cluster.queues = [queue("all", limit="2"), lower]
    assert list(changes(cluster.explain(cluster.pod("next", limits=ONE_GPU, **OURS)))) == ["ml/w0 ends or is deleted"]


def test_a_queue_with_room_says_nothing(cluster: built.Cluster) -> None:
    cluster.queues = [queue("team", "ml", limit="3")]
    found = cluster.explain(cluster.pod("next", limits=ONE_GPU, **OURS))
    assert (found.waits_for_queue, found.runs_on) == ("", "n1/2")


def test_queues_do_not_concern_pods_of_kube_scheduler(cluster: built.Cluster) -> None:
    cluster.queues = [queue("team", "ml", limit="2")]
    found = cluster.explain(cluster.pod("next", limits=ONE_GPU))
    assert (found.queue, found.waits_for_queue, found.runs_on) == ("", "", "n1/2")


def test_what_is_borrowed_is_taken_back(cluster: built.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.queues = [queue("team", "ml", guaranteed="1"), queue("owner", "research", guaranteed="3")]
    cluster.whole("w2", "n1/2,3")
    found = cluster.explain(cluster.pod("mine", ns="research", limits=ONE_GPU, **OURS))
    assert found.evictions is not None and found.evictions.state == EVICTS
    assert all(one.borrowed for one in found.evictions.victims)
    assert "(its queue has borrowed what it holds)" in drawn(found, monkeypatch, 80)


def kueue(**listed: list[dict[str, Any]]) -> SchedulingFacts:
    objects = {
        kind: [msgspec.convert(one, kueue_kind("v1beta1", kind)) for one in found] for kind, found in listed.items()
    }
    return SchedulingFacts(kueue=ReadKueue(objects))


def test_kueue_s_queues_count_by_the_label_of_the_pod(cluster: built.Cluster) -> None:
    flavor = {"name": "any", "resources": [{"name": names.GPU_RESOURCE, "nominalQuota": "2"}]}
    group = {"coveredResources": [names.GPU_RESOURCE], "flavors": [flavor]}
    cluster.scheduling = kueue(
        ResourceFlavor=[{"metadata": {"name": "any"}}],
        ClusterQueue=[{"metadata": {"name": "gpus"}, "spec": {"namespaceSelector": {}, "resourceGroups": [group]}}],
        LocalQueue=[{"metadata": {"name": "mine", "namespace": "ml"}, "spec": {"clusterQueue": "gpus"}}],
    )
    for pod in cluster.pods:
        pod["metadata"]["labels"] = {names.KUEUE_QUEUE_LABEL: "mine"}
    pod = cluster.pod("next", limits=ONE_GPU, **OURS)
    assert cluster.explain(pod).runs_on == "n1/2"  # without the label it is in no queue
    pod["metadata"]["labels"] = {names.KUEUE_QUEUE_LABEL: "mine"}
    found = cluster.explain(pod)
    assert found.queue.startswith("ml/mine (holds 2 GPUs") and "at most 2 GPUs" in found.waits_for_queue
    pod["metadata"]["labels"] = {names.KUEUE_QUEUE_LABEL: "yours"}
    assert cluster.explain(pod).waits_for_queue == "LocalQueue yours of label kueue.x-k8s.io/queue-name does not exist"
