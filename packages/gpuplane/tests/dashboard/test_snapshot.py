"""The document of the first page: what it says of nodes, GPUs and pods, and how large it gets."""

from __future__ import annotations

import gzip
import json
import random

import msgspec

from gpuplane.api.gpunode import StageName
from gpuplane.cli.status_views import Overview, Pause, WaitingPod
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.merging import apply, patch
from gpuplane.dashboard.snapshot import ENTRIES, NAMED, snapshot
from gpuplane.metering.use import GPUUse
from packages.gpuplane.tests.cli.status_objects import gpunode, overview, pod, share, with_own_uuids, without_headers

COMPRESSED = 100_000  # bytes, the goal for 8,000 GPUs


def test_a_cell_is_as_full_as_its_gpu_is_held() -> None:
    pods = [share("tune", "n1", 30, 1, 0), share("serve", "n1", 20, 1, 0), share("train", "n1", 100, 20, 1)]
    found = snapshot(overview([gpunode("n1")], pods, {"n1": 2}), "prod")["nodes"]["n1"]
    assert found["held"] == [50, 100]
    assert found["spaces"] == ["ml"]
    assert found["model"] == "L4"
    assert "waits" not in found and "guessed" not in found and "faults" not in found


def test_a_gpu_of_which_only_the_node_knows_the_holder_has_the_average() -> None:
    found = snapshot(overview([gpunode("n1")], [pod("train", "n1", 1)], {"n1": 2}), "prod")["nodes"]["n1"]
    assert found["held"] == [50, 50]
    assert found["guessed"] is True


def test_a_lost_gpu_and_a_node_that_is_not_ready_say_why() -> None:
    nodes = [gpunode("n1", sick=True), gpunode("n2", failed=StageName.CUDA)]
    found = snapshot(overview(nodes, [], {"n1": 2, "n2": 2}), "prod")
    assert found["nodes"]["n1"]["faults"] == {"1": "Xid 79: fallen off the bus"}
    assert found["nodes"]["n1"]["lost"] == [1]
    assert found["nodes"]["n2"]["waits"] == "GPU 1 computes wrong"
    lost, broken = sorted(found["troubles"], key=lambda one: one["nodes"])
    assert lost["verdict"] == "warn" and lost["effect"] == "GPU 1 lost; 1 of 2 left"
    assert broken["verdict"] == "bad" and broken["cure"] == "kubectl drain n2"
    assert found["totals"]["troubles"] == 2 and found["totals"]["ready"] == 1


def test_nodes_with_the_same_trouble_are_one_entry_and_a_paused_operator_is_another() -> None:
    nodes = [without_headers(f"n{number}") for number in range(7)]
    seen = msgspec.structs.replace(overview(nodes, [], {}), paused=Pause("gpu-cluster-policy", "2026-11-20T10:00:00Z"))
    paused, alike = snapshot(seen, "prod")["troubles"]
    assert paused["head"] == "operator paused" and paused["nodes"] == []
    assert alike["nodes"] == [f"n{number}" for number in range(7)]


def test_control_characters_of_messages_are_written_out() -> None:
    nodes = [without_headers("n1", kernel="\x1b[31m6.8")]
    found = snapshot(overview(nodes, [], {}), "prod")
    assert "\\u001b" not in json.dumps(found)
    assert "^[[31m6.8" in found["nodes"]["n1"]["waits"]


def test_of_ten_thousand_waiting_pods_the_first_are_named_and_all_are_counted() -> None:
    waiting = tuple(WaitingPod(f"ml/train-{number:05}", "2026-11-20T10:00:00Z") for number in range(10_000))
    seen = msgspec.structs.replace(overview([gpunode("n1")], [], {"n1": 2}), waiting_pods=waiting, waiting=10_000)
    found = snapshot(seen, "prod")
    assert len(found["waiting"]) == NAMED and found["totals"]["waiting"] == 10_000
    assert len(json.dumps(found)) < 20_000


def test_of_many_troubles_the_first_are_listed_and_all_are_counted() -> None:
    nodes = [gpunode(f"n{number:03}", sick=True) for number in range(ENTRIES + 20)]
    found = snapshot(overview(nodes, [], {}), "prod")
    assert len(found["troubles"]) == ENTRIES and found["totals"]["troubles"] == ENTRIES + 20


def large() -> Overview:
    """1,000 nodes with 8,000 GPUs, all kinds of holders."""
    nodes = [gpunode(f"gpu-node-{number:04}", gpus=8, sick=number % 50 == 0) for number in range(1000)]
    pods = [
        share(f"pod-{number}-{at}", f"gpu-node-{number:04}", (10, 30, 50, 100)[(number + at) % 4], 1, at)
        for number in range(1000)
        for at in range(8)
        if (number * at) % 3
    ]
    return with_own_uuids(overview(nodes, pods, {f"gpu-node-{number:04}": 8 for number in range(1000)}))


def measured(seen: Overview) -> MeasuredUse:
    """Every GPU with a use of its own, drawn at random from a seed."""
    chosen = random.Random(1)
    uses = {
        gpu.uuid: GPUUse(node.name, gpu.index, 100 * chosen.random(), idle_seconds=chosen.choice((0.0, 0.0, 400.0)))
        for node in seen.nodes
        for gpu in node.gpus
    }
    return MeasuredUse(uses, "", "exporters")


def test_eight_thousand_gpus_are_a_small_document_and_a_change_is_a_small_patch() -> None:
    seen = large()
    old = snapshot(seen, "prod", measured(seen))
    assert old["totals"]["measured"] == 8000 == len(measured(seen).gpus)
    assert len(gzip.compress(json.dumps(old).encode(), 6)) < COMPRESSED
    old = snapshot(seen, "prod")
    emptied = msgspec.structs.replace(seen.nodes[1], held_by=())
    new = snapshot(msgspec.structs.replace(seen, nodes=(seen.nodes[0], emptied, *seen.nodes[2:])), "prod")
    changes = patch(old, new)
    assert apply(old, changes) == new
    assert set(changes["nodes"]) == {emptied.name}
    assert len(json.dumps(changes)) < 400
