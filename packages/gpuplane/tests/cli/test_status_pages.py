"""The page of `gpuplane status` about nodes, made from objects, without a cluster."""

from __future__ import annotations

from argparse import Namespace

import msgspec
import pytest

from gpuplane.api.clusterpolicy import ClusterPolicy, ClusterPolicyStatus
from gpuplane.api.gpunode import StageName
from gpuplane.cli.status import text_of, to_json
from gpuplane.cli.status_reading import refusal
from gpuplane.cli.status_text import nodes_page
from gpuplane.cli.status_views import Pause, UpgradeView
from gpuplane.cli.terminal import age
from kubekit.api.core import ObjectMeta
from kubekit.api.meta import Condition
from packages.gpuplane.tests.cli.status_objects import NOW, at, gpunode, overview, pod, screen, without_headers


@pytest.mark.parametrize("page", ["nodes", "gpus"])
def test_labels_that_no_gpu_node_has_are_not_blamed_on_discovery(page: str) -> None:
    options = Namespace(namespace="", output="text", what=page)
    seen = msgspec.structs.replace(overview([], [], {}), left_out=2)
    text = text_of(seen, "prod", options, screen())
    assert text.splitlines()[:1] == ["prod   no GPU nodes with these labels   gpuplane"]
    assert "2 GPU nodes without the labels of -l" in text
    assert "kubectl get nodes -l nvidia.com/gpu.present=true --show-labels" in text
    assert "discovery" not in text
    assert "discovery runs" in text_of(overview([], [], {}), "prod", options, screen())


def test_healthy_nodes_are_counted_not_listed() -> None:
    seen = overview([gpunode("n1"), gpunode("n2")], [pod("a", "n1", 1)], {"n1": 2, "n2": 2})
    page = nodes_page("prod", seen, screen(), NOW)
    assert "2 GPU nodes   4 GPUs" in page
    assert "✓ all ready" in page
    assert "1 of 4 GPUs   25%" in page
    assert "2 GPUs ×1" in page
    assert "1 GPU  ×3" in page
    assert "n1" not in page


def test_a_failed_stage_says_what_where_and_cure_and_comes_last() -> None:
    seen = overview([gpunode("n1", failed=StageName.CUDA), gpunode("n2")], [], {"n2": 2})
    page = nodes_page("prod", seen, screen(), NOW)
    assert "✗ 1 of 2 need you" in page
    assert page.splitlines()[-4:] == [
        " ✗ n1   ✓✓✓✗-----  cuda   27s   2 GPUs not advertised",
        "     what   GPU 1 computes wrong",
        "     where  n1, GPU 1",
        "     cure   kubectl drain n1",
    ]


def test_a_node_that_does_not_answer_is_told_and_offers_nothing() -> None:
    away = {"n1": "the node is not Ready: Kubelet stopped posting node status."}
    seen = overview([gpunode("n1"), gpunode("n2")], [], {"n1": 2, "n2": 2}, away)
    page = nodes_page("prod", seen, screen(), NOW)
    assert "1 of 2 need you" in page and "2 GPUs out of reach" in page
    assert "Kubelet stopped posting" in page and "cure   kubectl describe node n1" in page
    assert seen.fits == {"2": 1, "1": 2}


def test_without_gpu_nodes_the_cure_is_told() -> None:
    page = nodes_page("prod", overview([], [], {}), screen(), NOW)
    assert "no GPU nodes" in page
    assert "cure" in page


def test_ascii_has_no_other_characters() -> None:
    seen = overview([gpunode("n1", failed=StageName.CUDA)], [], {})
    assert nodes_page("prod", seen, screen(ascii_only=True), NOW, wide=True).isascii()


def test_stages_take_the_time_since_the_one_before() -> None:
    node = overview([gpunode("n1")], [], {}).nodes[0]
    assert node.took["driver"] == 1.0
    assert node.took["ready"] == 1.0


def test_a_pool_without_a_driver_is_told_once_with_the_kernel_that_works() -> None:
    nodes = [gpunode("a"), gpunode("b"), *(without_headers(f"bad-{i}") for i in range(7))]
    page = nodes_page("prod", overview(nodes, [], {"a": 2, "b": 2}), screen(), NOW).splitlines()
    at_work = page[page.index(" ✗ bad-0   ✓✗-------  driver   29s   its GPUs not advertised") :]
    assert [line.split()[1] for line in at_work[:5]] == [f"bad-{i}" for i in range(5)]
    assert at_work[5] == "   and 2 more nodes with the same trouble"
    assert at_work[6] == "     what   no linux-headers-6.8.0-71 in the node's repositories"
    assert at_work[7].startswith("     where  apt-get install") and len(at_work) == 6 + 1 + 5 + 1
    assert at_work[-1] == "     cure   boot 6.8.0 like 2 other nodes, or ClusterPolicy spec.driver.repoConfig"


def test_a_kernel_is_no_cure_where_another_driver_is_wanted_or_nothing_works_either() -> None:
    nodes = [gpunode("a"), without_headers("bad"), without_headers("worse", "6.9.0")]
    own = overview(nodes, [], {}, owners={"a": "other"}).nodes
    assert own[1].cure == nodes[1].status.stages["driver"].cure
    [other] = [node for node in overview(nodes[1:], [], {}).nodes if node.name == "bad"]
    assert other.cure == nodes[1].status.stages["driver"].cure


def test_a_pause_is_told_with_its_end() -> None:
    nodes = [gpunode("n1")]
    seen = overview(nodes, [], {"n1": 2}, paused=Pause("cluster-policy", at(0)))
    assert nodes_page("prod", seen, screen(), NOW).splitlines()[-3:] == [
        " ! operator paused   30s   nothing is changed",
        "     what   ClusterPolicy cluster-policy carries gpuplane.dev/paused=true",
        "     cure   kubectl annotate clusterpolicy cluster-policy gpuplane.dev/paused-",
    ]
    assert to_json(seen)["paused"] == {"policy": "cluster-policy", "since": at(0)}
    assert to_json(overview(nodes, [], {}))["paused"] is None
    assert "operator paused" in nodes_page("prod", overview([], [], {}, paused=Pause("p")), screen(), NOW)


def test_what_the_operator_is_refused_is_told_with_its_cure() -> None:
    what = 'daemonsets.apps "x" is forbidden'
    condition = Condition(
        type="Error", status="True", reason="ReconcileFailed", message=what, last_transition_time=at(0)
    )
    policy = ClusterPolicy(metadata=ObjectMeta(name="p"), status=ClusterPolicyStatus(conditions=(condition,)))
    nodes = [gpunode("n1")]
    seen = overview(nodes, [], {"n1": 2}, refused=refusal([policy]))
    assert nodes_page("prod", seen, screen(), NOW).splitlines()[-4:] == [
        " ✗ operator refused   30s   existing pods are not affected",
        '     what   daemonsets.apps "x" is forbidden',
        "     where  ClusterPolicy p status.conditions",
        "     cure   gpuplane install brings rights and definitions up to date; what the message names otherwise",
    ]
    well = msgspec.structs.replace(condition, status="False")
    assert refusal([msgspec.structs.replace(policy, status=ClusterPolicyStatus(conditions=(well,)))]) is None
    assert refusal([]) is None


def test_ages_are_short() -> None:
    assert [age(at(0), NOW), age("2026-11-20T09:46:30Z", NOW), age("2026-11-11T10:00:00Z", NOW)] == ["30s", "14m", "9d"]


def test_upgrades_say_where_nodes_are_since_when_and_why() -> None:
    upgrades = {
        "a": UpgradeView("upgrade-done"),
        "b": UpgradeView("pod-deletion-required", at(10), "waits for ml/train to go"),
        "c": UpgradeView("upgrade-failed", at(0), "back on the driver before"),
        "d": UpgradeView("upgrade-required", at(0)),
    }
    nodes = [gpunode(name) for name in upgrades]
    page = nodes_page("prod", overview(nodes, (), dict.fromkeys(upgrades, 2), {}, upgrades), screen(), NOW)
    at_work = [line.split() for line in page[page.index("Driver upgrade") :].splitlines()]
    assert " ".join(at_work[0]) == "Driver upgrade 1 of 4 nodes 1 on the way 1 waiting 1 failed"
    assert at_work[1][1:4] == ["b", "pod-deletion-required", "20s"]
    assert at_work[2][1:4] == ["c", "upgrade-failed", "30s"]
    assert len(at_work) == 3
    done = overview(nodes, (), {}, {}, {"a": UpgradeView("upgrade-done")})
    assert "Driver upgrade" not in nodes_page("prod", done, screen(), NOW)
