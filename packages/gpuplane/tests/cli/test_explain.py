"""`gpuplane explain POD`: what is told of pods that wait, that are placed, and that can never run."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.api.gpunode import Summary
from gpuplane.api.offers import UnitKind
from gpuplane.cli.explain_text import NODES, page
from gpuplane.cli.holders import free_core, free_units
from gpuplane.cli.overview import overview
from gpuplane.cli.status_views import NodeView
from gpuplane.cli.terminal import Console
from gpuplane.explain.answer import Explanation
from gpuplane.explain.serve import FREE_NODES, ExplanationRequest, answers
from gpuplane.explain.world import World
from gpuplane.scheduler.quota import NamespaceQuota
from kubekit.api.core import Node, Pod
from packages.gpuplane.tests.cli import explained_clusters as built

SHARE = {names.VCUDA_CORE: 40, names.VCUDA_MEMORY: 48}


def drawn(explanation: Any, monkeypatch: pytest.MonkeyPatch, width: int = 100) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    text = page(explanation, Console(io.StringIO(), io.StringIO(), colour="never"))
    assert all(len(line) <= width for line in text.splitlines()), text
    return text


def changes(explanation: Any) -> dict[str, str]:
    return {cure.change: cure.place for cure in explanation.cures}


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


# -- nodes -------------------------------------------------------------------------------------------------------------


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


# -- GPUs --------------------------------------------------------------------------------------------------------------


def test_whole_gpus_that_are_not_together(cluster, monkeypatch):
    for node in ("a", "b"):
        cluster.node(node)
        cluster.whole(f"w-{node}", f"{node}/0,1")
    cluster.share("s", "a/2", 30, 1)
    found = cluster.explain(cluster.pod("p", limits={names.GPU_RESOURCE: 3}))
    assert [(t.count, t.reason) for t in found.gpu_reasons] == [(4, "whole"), (3, "together"), (1, "held")]
    assert changes(found) == {
        "ask 2 instead of 3 GPUs": "b/2,3",
        "ml/w-a ends or is deleted": "a/0,1,3",
        "add a node like a": "the new node",
    }
    assert "would do, but too few on one node" in drawn(found, monkeypatch, 80)


def test_more_gpus_than_any_node_has_can_never_run(cluster):
    cluster.node("a", 4)
    found = cluster.explain(cluster.pod("p", limits={names.GPU_RESOURCE: 5}))
    assert not found.can_ever_run and changes(found) == {"ask 4 instead of 5 GPUs": "a"}


def test_a_selector_of_models(cluster):
    cluster.node("a", 2)
    pod = cluster.pod("p", limits=SHARE, annotations={names.GPU_MODELS_ANNOTATION: "H100"})
    found = cluster.explain(pod)
    assert [(t.count, t.reason) for t in found.gpu_reasons] == [(2, "model")]
    assert changes(found) == {f"drop the annotation {names.GPU_MODELS_ANNOTATION}": "a/0"}


def test_without_the_extender_whole_gpus_are_counted(cluster, monkeypatch):
    """No pod says which GPUs it holds, so only their number is known."""
    cluster.node("a", 4, offers=(names.GPU_RESOURCE,), lost=(3,))
    cluster.pod("w", limits={names.GPU_RESOURCE: 2}, on="a")
    found = cluster.explain(cluster.pod("p", limits={names.GPU_RESOURCE: 2}))
    assert [tally.reason for tally in found.node_reasons] == ["2 whole GPUs asked, 1 free"]
    assert {tally.reason: tally.count for tally in found.gpu_reasons} == {"whole": 2, "together": 1, "lost": 1}
    assert "1 of 4 wholly free; which are held is not told" in drawn(found, monkeypatch)
    assert changes(found)["ask 1 instead of 2 GPUs"] == "a"


@pytest.mark.parametrize("limits", [{names.GPU_RESOURCE: 1}, SHARE])
@pytest.mark.parametrize("told", [True, False], ids=["kubelet counts them", "plugin started after the loss"])
@pytest.mark.parametrize("extender", [True, False])
def test_a_node_whose_gpus_are_all_lost_is_not_said_to_offer_none(cluster, monkeypatch, limits, told, extender):
    cluster.node("a", 1, lost=(0,))
    cluster.node("b", 2, lost=(0, 1))
    if not told:
        for node in cluster.nodes:
            node["status"]["capacity"] = node["status"]["allocatable"]
    cluster.node("other", 1)
    held = {names.GPU_RESOURCE: 1}
    cluster.whole("w", "other/0") if extender else cluster.pod("w", limits=held, on="other")
    found = cluster.explain(cluster.pod("p", limits=limits))
    assert {tally.reason: tally.count for tally in found.node_reasons}["all of its GPUs are lost"] == 2
    assert [(tally.count, tally.reason, tally.nearest) for tally in found.gpu_reasons][-1] == (3, "lost", "a/0, b/0")
    assert found.gpus == 4 and found.can_ever_run
    lines = drawn(found, monkeypatch, 80).splitlines()
    assert "           3  lost          a/0, b/0" in lines and " a       lost" in [line.rstrip() for line in lines]


def test_nothing_is_free_of_a_lost_gpu_so_that_its_node_is_none_of_the_nearest(cluster, monkeypatch):
    for number in range(NODES + 1):
        cluster.node(f"a{number}", 1, lost=(0,))
    cluster.node("z", 1)
    cluster.share("s", "z/0", 70, 2)
    found = cluster.explain(cluster.pod("p", limits=SHARE))
    free = {node.node: [(gpu.core, gpu.memory_mib) for gpu in node.gpus] for node in found.free}
    assert (free["a0"], free["z"]) == ([(0, 0)], [(30, 13 * 1024)])
    assert " z      30%  13G core" in drawn(found, monkeypatch, 80)


def test_what_a_node_would_not_offer_either_is_not_blamed_on_its_lost_gpu(cluster):
    cluster.node("a", 1, lost=(0,), offers=(names.GPU_RESOURCE,))
    cluster.node("new", 1, lost=(0,), summary=Summary(stage="driver", waits_for="kernel-headers"))
    found = cluster.explain(cluster.pod("p", limits=SHARE))
    assert {tally.reason for tally in found.node_reasons} == {
        "tencent.com/vcuda-core not offered",
        "not prepared: waits for kernel-headers",
    }
    found = cluster.explain(cluster.pod("q", limits={"nvidia.com/mig-1g.10gb": 1}))
    assert {tally.reason for tally in found.node_reasons} >= {"nvidia.com/mig-1g.10gb not offered"}


def test_a_lost_gpu_that_would_help_is_a_cure(cluster):
    """Its holders keep it, so that one that another pod holds is no cure."""
    cluster.node("held", 1, lost=(0,))
    cluster.pod("keeps", limits={names.GPU_RESOURCE: 1}, on="held")
    cluster.node("a", 2, lost=(0, 1))
    pod = cluster.pod("p", limits={names.GPU_RESOURCE: 1})
    repair = "bring GPUs 0,1 of a back: gpuplane status names the way"
    found = changes(cluster.explain(pod))
    assert found == {repair: "a", "add a node like a": "the new node"}
    cluster.whole("w", "a/0")
    assert changes(cluster.explain(pod))[repair] == "a/1"


def test_containers_that_fit_singly_and_not_together(cluster):
    cluster.node("a", 1)
    pod = cluster.pod("p", limits={names.VCUDA_CORE: 60})
    pod["spec"]["containers"].append({**pod["spec"]["containers"][0], "name": "side"})
    found = cluster.explain(pod)
    assert found.asks == "main 60% core of one GPU, side 60% core of one GPU" and not found.can_ever_run
    assert [tally.reason for tally in found.node_reasons] == ["no room for its 2 containers together"]


def test_a_node_that_could_offer_shares_is_named(cluster):
    for node in ("busy", "idle"):
        cluster.node(node, 2, offers=(names.GPU_RESOURCE,))
    cluster.pod("w", limits={names.GPU_RESOURCE: 1}, on="busy")
    found = cluster.explain(cluster.pod("p", limits=SHARE))
    assert changes(found) == {"kubectl label node idle nvidia-device-enable=enable": "idle/0"}


def test_a_pod_that_fits_is_said_to_fit_with_the_schedulers_words(cluster, monkeypatch):
    cluster.node("a", 1)
    pod = cluster.pod("p", limits=SHARE)
    message = "0/1 nodes are available: 1 something else."
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": message}]
    found = cluster.explain(pod)
    assert (found.runs_on, found.cures) == ("a/0", ())
    assert [(t.count, t.reason, t.nearest) for t in found.node_reasons] == [(1, "fits", "a/0")]
    assert "kube-scheduler reported: 0/1 nodes are available" in drawn(found, monkeypatch)


def test_scheduling_gates_are_named(cluster):
    cluster.node("a", 1)
    found = cluster.explain(cluster.pod("p", limits=SHARE, schedulingGates=[{"name": "x/quota"}]))
    assert found.note == "scheduling gates hold it back: x/quota"


# -- quota -------------------------------------------------------------------------------------------------------------


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


# -- pods that can never run, of old, placed, ended --------------------------------------------------------------------


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


# -- always ------------------------------------------------------------------------------------------------------------


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
    [answer, other] = answers(request, cluster.facts(), built.NOW)
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
    [answer] = answers(ExplanationRequest("ml", ("p",)), cluster.facts(), built.NOW)
    found = msgspec.convert(answer["explanation"], Explanation)
    assert (len(found.free), found.free_not_listed, found.nodes) == (FREE_NODES, 4, FREE_NODES + 4)
    assert sum(node.gpus[0].core == 20 for node in found.free) == (FREE_NODES + 4) // 2
    assert "and 12 nodes more" in drawn(found, monkeypatch)


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


# -- explain and status ------------------------------------------------------------------------------------------------

# Nodes whose GPUs are shares, whole, replicas and MIG devices: name -> number of GPUs, what it offers.
KINDS: dict[str, tuple[int, dict[str, int] | None]] = {
    "a": (1, None),
    "b": (2, None),
    "c": (2, None),
    "whole": (1, {names.GPU_RESOURCE: 1}),
    "wholes": (3, {names.GPU_RESOURCE: 3}),
    "replicas": (1, {names.GPU_RESOURCE: 10}),
    "renamed": (2, {f"{names.GPU_RESOURCE}.shared": 8}),
    "mig": (1, {"nvidia.com/mig-1g.10gb": 7}),
}
steps = st.lists(
    st.tuples(
        st.sampled_from(("share", "whole", "plain", "ended")),
        st.sampled_from(sorted(KINDS)),
        st.integers(0, 1),
        st.integers(1, 9),
    ),
    max_size=12,
)


@given(steps, st.sets(st.sampled_from(sorted(KINDS))))
@settings(deadline=None, max_examples=100)
def test_explain_and_status_agree_on_what_is_free_of_each_gpu_and_on_who_holds_it(steps: Any, lost: set[str]) -> None:
    cluster = built.Cluster()
    for name, (gpus, devices) in KINDS.items():
        offers = (names.VCUDA_CORE, names.VCUDA_MEMORY)
        cluster.node(name, gpus, lost=(0,) if name in lost else (), offers=offers, devices=devices)
        if name == "mig":
            split = tuple(msgspec.structs.replace(gpu, mig="enabled") for gpu in cluster.gpunodes[-1].status.gpus)
            status = msgspec.structs.replace(cluster.gpunodes[-1].status, gpus=split)
            cluster.gpunodes[-1] = msgspec.structs.replace(cluster.gpunodes[-1], status=status)
    for number, (kind, node, gpu, part) in enumerate(steps):
        gpus, devices = KINDS[node]
        if devices is not None:
            (resource,) = devices
            pod = cluster.pod(f"p{number}", limits={resource: min(1 + part // 4, devices[resource])}, on=node)
        elif kind == "share":
            cluster.share(f"p{number}", f"{node}/{min(gpu, gpus - 1)}", 10 * part, 1)
            continue
        elif kind == "whole":
            cluster.whole(f"p{number}", f"{node}/{min(gpu, gpus - 1)}")
            continue
        else:
            pod = cluster.pod(f"p{number}", limits={names.VCUDA_CORE: 10 * part, names.VCUDA_MEMORY: 4}, on=node)
        pod["status"]["phase"] = "Succeeded" if kind == "ended" else "Running"
    facts = cluster.facts()
    nodes = [msgspec.convert(raw, Node) for raw in facts.nodes]
    seen = overview(
        facts.gpunodes,
        [msgspec.convert(raw, Pod) for raw in facts.pods],
        {node.metadata.name: node.status.allocatable for node in nodes},
    )
    world = World(facts)
    for view in seen.nodes:
        state = world.ledger.node(view.name)
        cores = free_core(view.gpus, view.sick, view.held_by)
        if not state.by_count:  # of replicas and MIG devices, only the number counts
            assert (cores is None) == (view.name in world.guessed or _too_much(view)), view.name
            if cores is not None:
                free = [0 if gpu.fault else core for gpu, core in zip(state.gpus, state.core, strict=True)]
                assert cores == free, view.name
        for unit in view.units:
            if unit.kind in (UnitKind.REPLICA, UnitKind.MIG):
                asking = cluster.pod("asks", limits={unit.resource: unit.count + 1})
                (verdict,) = world.judge(cluster.pods.pop(), [view.name])
                assert asking and verdict.reason.endswith(f"asked, {free_units(unit, view.held_by)} free")
        for holder in view.held_by:
            raw = next(pod for pod in facts.pods if pod["metadata"]["name"] == holder.pod.partition("/")[2])
            held = cluster.explain(raw).held
            told = [(f"{view.name}/{part.index}", part.core, part.memory_mib, part.unit) for part in holder.parts]
            if view.name not in lost or view.gpus[1:]:  # of a node whose only GPU is lost, `status` counts no units
                assert [(one.gpu, one.core, one.memory_mib, one.unit) for one in held] == told


def _too_much(view: NodeView) -> bool:
    held: dict[int, int] = {}
    for part in (part for holder in view.held_by for part in holder.parts):
        held[part.index] = held.get(part.index, 0) + part.core
    return any(core > 100 for core in held.values())
