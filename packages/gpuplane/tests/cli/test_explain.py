"""`gpuplane explain POD`: the page of a pod that waits, that can never run, that is placed, or that has ended."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.cli.explain_text import page
from gpuplane.cli.terminal import Console
from packages.gpuplane.tests.cli import explained_clusters as built
from packages.gpuplane.tests.cli.explained_pages import SHARE, changes, drawn


@pytest.fixture
def cluster() -> Any:
    return built.Cluster()


PICTURE = """\
ml/tune-42   waiting 6m for 40% core + 12 GiB of one GPU   can ever run: yes

 12 nodes  8  nodeSelector pool=t4-share does not match
           4  no GPU has 40% core and 12 GiB together
 16 GPUs   9  memory short  nearest gpu-t-01/1, 1 GiB missing
           3  core short    nearest gpu-t-04/2, 5% missing
           3  held whole
           1  lost          gpu-t-02/3

 FREE       GPU 0           GPU 1           GPU 2           GPU 3
 gpu-t-01   50%   5G mem    60%  11G mem    50%   7G mem    held whole
 gpu-t-02   50%   9G mem    30%  13G core   held whole      lost
 gpu-t-03   50%   6G mem    40%   6G mem    50%   6G mem    10%  14G core
 gpu-t-04   50%   6G mem    50%   6G mem    35%  13G core   held whole

 cure 1   ask 11 GiB (vcuda-memory 44)   runs now on gpu-t-01/1
      2   ask 35% core (vcuda-core 35)   runs now on gpu-t-04/2
      3   drop the nodeSelector          runs now on gpu-h-00/0
          (1 to 3: the pod has to be deleted and made again)
      4   ml/b ends or is deleted        runs now on gpu-t-01/1
          (deleting it ends its work)"""


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_picture(monkeypatch, width):
    cluster, pod = built.picture()
    assert drawn(cluster.explain(pod), monkeypatch, width) == PICTURE


def test_on_a_narrow_screen_it_is_all_there(monkeypatch):
    cluster, pod = built.picture()
    explanation = cluster.explain(pod)
    text = drawn(explanation, monkeypatch, 60)
    for cure in explanation.cures:
        assert f"runs now on {cure.place}" in text
    assert "GPU 3-" in text


def test_wide_lists_the_gpus_of_every_node(cluster, monkeypatch):
    for number in range(12):
        cluster.node(f"n{number:02}", 1)
        cluster.share(f"s{number}", f"n{number:02}/0", 90, 1)
    found = cluster.explain(cluster.pod("p", limits=SHARE))
    monkeypatch.setenv("COLUMNS", "80")
    screen = Console(io.StringIO(), io.StringIO(), colour="never")
    assert "and 4 nodes more" in page(found, screen)
    wide = page(found, screen, wide=True)
    assert "nodes more" not in wide and "n11" in wide


def test_no_node_at_all(cluster, monkeypatch):
    found = cluster.explain(cluster.pod("p", limits=SHARE))
    assert (found.nodes, found.can_ever_run, found.cures) == (0, False, ())
    assert "the cluster has no nodes" in drawn(found, monkeypatch)


def test_a_pod_that_fits_is_said_to_fit_with_the_schedulers_words(cluster, monkeypatch):
    cluster.node("a", 1)
    pod = cluster.pod("p", limits=SHARE)
    message = "0/1 nodes are available: 1 something else."
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": message}]
    found = cluster.explain(pod)
    assert (found.runs_on, found.cures) == ("a/0", ())
    assert [(t.count, t.reason, t.nearest) for t in found.node_reasons] == [(1, "fits", "a/0")]
    assert "kube-scheduler reported: 0/1 nodes are available" in drawn(found, monkeypatch)


def test_what_the_pod_scheduler_does_not_support_is_named_and_nothing_else_cures_it(cluster):
    cluster.node("a", 1)
    group = {"workloadRef": {"name": "w", "podGroup": "g"}}
    found = cluster.explain(cluster.pod("p", limits=SHARE, schedulerName="gpuplane", **group))
    assert "does not support workloadRef of Kubernetes 1.35" in found.note
    assert (found.runs_on, found.cures) == ("", ())
    assert cluster.explain(cluster.pod("q", limits=SHARE, **group)).runs_on == "a/0"


def test_the_words_of_the_pod_scheduler_are_called_its_own(cluster):
    cluster.node("a", 1)
    pod = cluster.pod("p", limits=SHARE, schedulerName="gpuplane")
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": "something else"}]
    assert cluster.explain(pod).note == "gpuplane's pod scheduler reported: something else"


def test_scheduling_gates_are_named(cluster):
    cluster.node("a", 1)
    found = cluster.explain(cluster.pod("p", limits=SHARE, schedulingGates=[{"name": "x/quota"}]))
    assert found.note == "scheduling gates hold it back: x/quota"


def test_what_can_never_run_has_every_finding(cluster, monkeypatch):
    found = cluster.explain(cluster.pod("p", limits={names.VCUDA_CORE: 150}))
    assert not found.can_ever_run and found.findings[0].startswith("GP201 ")
    text = drawn(found, monkeypatch, 80)
    assert "can ever run: no" in text and "gpuplane explain GP201 says more" in text


def test_a_pod_of_old_that_admission_did_not_see(cluster):
    cluster.node("a", offers=(names.GPU_RESOURCE,))
    found = cluster.explain(cluster.pod("p", limits={names.ALPHA_GPU: 2}))
    assert [tally.reason for tally in found.node_reasons] == [f"{names.ALPHA_GPU} not offered"]
    assert list(changes(found)) == [
        "ask nvidia.com/gpu, or gpuplane install --admission open and apply it again",
    ]


def test_a_placed_pod_says_what_it_holds(cluster, monkeypatch):
    cluster.node("a", 2, lost=(1,))
    pod = cluster.share("s", "a/1", 30, 3)
    found = cluster.explain(pod)
    assert (found.state, found.node, found.runs_on) == ("placed", "a", "a/0")
    (held,) = found.held
    assert (held.container, held.gpu, held.core, held.memory_mib, held.fault) == ("main", "a/1", 30, 3072, "Xid 79")
    text = drawn(found, monkeypatch, 80)
    assert "main        a/1   T4      30% core + 3 GiB" in text and "Xid 79" in text
    assert "placed again, it would go to a/0" in text


def test_a_placed_pod_that_would_stay(cluster, monkeypatch):
    cluster.node("a", 1)
    assert "placed again, it would go to the same place" in drawn(
        cluster.explain(cluster.whole("w", "a/0")), monkeypatch
    )


def test_a_pod_placed_by_the_kubelet_alone_and_one_with_a_broken_assignment(cluster, monkeypatch):
    cluster.node("a", 2)
    found = cluster.explain(cluster.pod("p", limits={names.GPU_RESOURCE: 1}, on="a"))
    assert found.state == "placed" and found.held == () and "the kubelet chose" in drawn(found, monkeypatch)
    broken = cluster.pod("b", limits=SHARE, on="a", annotations={names.ASSIGNMENT_ANNOTATION: "{"})
    assert "is broken" in cluster.explain(broken).note


def test_on_a_node_with_one_gpu_there_is_no_doubt_which_a_pod_holds(cluster, monkeypatch):
    cluster.node("a", 1)
    found = cluster.explain(cluster.pod("p", limits={names.GPU_RESOURCE: 1}, on="a"))
    text = drawn(found, monkeypatch, 80)
    assert " main        a/0   T4      whole, 15 GiB   GPU-a-0" in text and "the kubelet chose" not in text
    cluster.node("b", 1, lost=(0,))
    pod = cluster.pod("q", limits=SHARE, on="b")
    pod["spec"]["containers"].append({**pod["spec"]["containers"][0], "name": "side"})
    pod["spec"]["containers"].append({"name": "log", "image": "i"})
    (held,) = cluster.explain(pod).held
    assert (held.container, held.gpu, held.core, held.memory_mib, held.fault) == (
        "main,side",
        "b/0",
        80,
        24576,
        "Xid 79",
    )


@pytest.mark.parametrize("lost", [(), (0,)], ids=["healthy", "lost"])
def test_a_pod_with_replicas_holds_replicas(cluster, monkeypatch, lost):
    cluster.node("n", 1, devices={names.GPU_RESOURCE: 10}, lost=lost)
    one = drawn(cluster.explain(cluster.pod("one", limits={names.GPU_RESOURCE: 1}, on="n")), monkeypatch, 80)
    assert one.startswith("ml/one   on n for 6m, holds 1 replica\n")
    assert " main        n/0   T4      1 replica   GPU-n-0\n" in one
    if not lost:
        assert one.endswith("placed again, it would go to the same node")
    cluster.node("m", 2, devices={names.GPU_RESOURCE: 20})
    four = cluster.pod("four", limits={names.GPU_RESOURCE: 4}, on="m")
    text = drawn(cluster.explain(four), monkeypatch, 80)
    assert "holds 4 replicas" in text and "only it knows which" in text


def test_pods_that_have_ended_and_pods_without_gpus(cluster, monkeypatch):
    cluster.node("a", 1)
    pod = cluster.share("s", "a/0", 30, 3)
    pod["status"]["phase"] = "Failed"
    assert drawn(cluster.explain(pod), monkeypatch) == "ml/s   ended: Failed   holds nothing"
    assert drawn(cluster.explain(cluster.pod("plain", on="a")), monkeypatch) == "ml/plain   asks for no GPU"


def test_json_is_stable():
    cluster, pod = built.picture()
    data = json.loads(msgspec.json.encode(cluster.explain(pod)))
    assert data["gpuReasons"][0] == {"count": 9, "missing": "1 GiB", "nearest": "gpu-t-01/1", "reason": "memory"}
    assert data["cures"][0] == {
        "change": "ask 11 GiB (vcuda-memory 44)",
        "place": "gpu-t-01/1",
        "effect": "the pod has to be deleted and made again",
    }
    assert set(data) >= {"pod", "state", "asks", "canEverRun", "nodes", "nodeReasons", "gpus", "free", "runsOn"}
