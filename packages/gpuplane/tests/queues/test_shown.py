"""Queues for people and for Prometheus."""

from __future__ import annotations

import io

import msgspec

from gpuplane.api.gpuqueue import GPUQueue, GPUQueueSpec, GPUQueueStatus, QueueAmounts
from gpuplane.cli.queues_text import queue_lines, queue_views
from gpuplane.cli.terminal import Console
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.queues.fair import FairQueues
from gpuplane.scheduler.queues.metrics import queue_families
from gpuplane.scheduler.queues.tree import FairQueue, QueueMember, QueueTree
from gpuplane.sharing import Request
from kubekit.api.meta import ObjectMeta
from kubekit.kube.exposition import exposition
from kubekit.scheduling.podinfo import NodeFacts, PodInfo
from tests.support.virtual_time import VirtualClock


def queue(name: str, **spec: object) -> GPUQueue:
    status = GPUQueueStatus(
        held=QueueAmounts(gpus="3"), borrowed=QueueAmounts(gpus="1"), share="37.5%", observed="2026-01-01T00:00:00Z"
    )
    return GPUQueue(metadata=ObjectMeta(name=name), spec=GPUQueueSpec(**spec), status=status)  # type: ignore[arg-type]  # fields of the spec


def test_metrics_have_what_each_queue_holds() -> None:
    no_client: object = None
    fair = FairQueues(Cluster(no_client), VirtualClock(), lambda key: Request(), lambda: ())  # type: ignore[arg-type]  # it is not called
    fair.capacity.set("n1", NodeFacts("n1", {}, {"cpu": 8000, "memory": 64}), ())
    team = FairQueue("a", guaranteed=(1000, None, None, None), members=(QueueMember("ml"),))
    pod = PodInfo("ml", "p", "uid", {}, {"cpu": 3000, "memory": 8}, 0, 0, node_name="n1")
    fair.set_tree(QueueTree([team]), [pod])
    lines = exposition(queue_families(fair)).decode()
    assert 'gpuplane_queue_held{queue="a",resource="cpu"} 3' in lines
    assert 'gpuplane_queue_borrowed{queue="a",resource="cpu"} 2' in lines
    assert 'gpuplane_queue_guaranteed{queue="a",resource="cpu"} 1' in lines
    assert 'gpuplane_queue_guaranteed{queue="a",resource="memory"}' not in lines
    assert 'gpuplane_queue_dominant_share{queue="a"} 0.375' in lines
    assert "queue=" not in exposition(queue_families(None)).decode()


def test_status_lists_queues_and_what_is_wrong_with_them() -> None:
    wrong = queue("web", guaranteed=QueueAmounts(gpus=2), parent="nowhere")
    wrong = msgspec.structs.replace(
        wrong, status=GPUQueueStatus(message="its parent nowhere does not exist", waiting=4)
    )
    lines = queue_lines(queue_views([wrong, queue("vision")]), Console(io.StringIO(), io.StringIO(), colour="never"))
    assert lines[1:4] == [
        " QUEUE    GUARANTEED   GPUS   BORROWED   SHARE   WAITING   PARENT",
        " vision            -      3          1   37.5%         0",
        " web               2      -          -       -         4   nowhere",
    ]
    text = "\n".join(lines[4:])
    assert "queue web does not count as it is written" in text and "kubectl edit gpuqueue web" in text
    assert queue_lines((), Console(io.StringIO(), io.StringIO(), colour="never")) == []
