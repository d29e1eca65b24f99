"""What `gpuplane status` shows: pages made from objects, without a cluster."""

from __future__ import annotations

import io
from argparse import Namespace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gpuplane.api.clusterpolicy import ClusterPolicy, ClusterPolicyStatus
from gpuplane.api.gpunode import GPU, GPUNode, GPUNodeStatus, Machine, Stage, StageName, StageState, summarize
from gpuplane.cli.gpus_text import gpus_page
from gpuplane.cli.overview import overview as made
from gpuplane.cli.status import text_of, to_json
from gpuplane.cli.status_reading import refusal
from gpuplane.cli.status_text import nodes_page
from gpuplane.cli.status_views import Overview, Pause, UpgradeView, of_namespace
from gpuplane.cli.terminal import Console, age
from gpuplane.names import VCUDA_CORE
from gpuplane.sharing import Assignment, Part, request_of, to_annotations
from kubekit.api.core import Container, ObjectMeta, Pod, PodSpec, PodStatus, Resources
from kubekit.api.meta import Condition
from kubekit.errors import Terminal

NOW = datetime(2026, 11, 20, 10, 0, 30, tzinfo=UTC)


def at(second: int) -> str:
    return f"2026-11-20T10:00:{second:02}.000000Z"


def gpunode(name: str, *, failed: StageName | None = None, gpus: int = 2, sick: bool = False) -> GPUNode:
    stages = {}
    for second, stage in enumerate(StageName):
        if stage is failed:
            stages[stage.value] = Stage(
                state=StageState.FAILED,
                since=at(second),
                reason="VectorAddFailed",
                message="GPU 1 computes wrong",
                where=f"{name}, GPU 1",
                cure=f"kubectl drain {name}",
            )
            break
        stages[stage.value] = Stage(state=StageState.DONE, since=at(second))
    found = tuple(
        GPU(index=i, uuid=f"GPU-{i}", model="NVIDIA L4", memory_mib=23034, pci=f"0000:00:1{'de'[i]}.0" if i < 2 else "")
        for i in range(gpus)
    )
    status = GPUNodeStatus(
        stages=stages,
        gpus=found,
        machine=Machine(os="ubuntu24.04", kernel="6.8.0", runtime="containerd", driver="580.82.07"),
        health={"GPU-1": "Xid 79: fallen off the bus"} if sick else {},
    )
    return GPUNode(
        metadata=ObjectMeta(name=name),
        status=GPUNodeStatus(
            summary=summarize(status), machine=status.machine, stages=stages, gpus=found, health=status.health
        ),
    )


def pod(name: str, node: str, gpus: int, phase: str = "Running") -> Pod:
    container = Container(name="main", resources=Resources(limits={"nvidia.com/gpu": str(gpus)}))
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ml"),
        spec=PodSpec(node_name=node, containers=(container,)),
        status=PodStatus(phase=phase),
    )


def overview(nodes: Any, pods: Any, gpus: dict[str, int], *others: Any, **more: Any) -> Overview:
    """Of nodes that advertise so many whole GPUs."""
    return made(nodes, pods, {name: {"nvidia.com/gpu": str(number)} for name, number in gpus.items()}, *others, **more)


def screen(ascii_only: bool = False) -> Console:
    return Console(io.StringIO(), io.StringIO(), colour="never", ascii_only=ascii_only)


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


def test_a_lost_gpu_of_a_ready_node_is_trouble_too() -> None:
    seen = overview([gpunode("n1", sick=True)], [], {"n1": 1})
    page = nodes_page("prod", seen, screen(), NOW)
    assert "! n1" in page
    assert page.splitlines()[-6:] == [
        " ! n1   ✓✓✓✓✓✓✓✓✓  ready   22s   GPU 1 lost; 1 of 2 left",
        "     what   Xid 79: fallen off the bus",
        "     where  n1, PCI 0000:00:1e.0, GPU-1",
        "     cure   drain the node and reboot it; when it happens again, reseat or replace the GPU",
        "            kubectl drain n1 --ignore-daemonsets --delete-emptydir-data --force",
        "            drain ends all pods but those of DaemonSets: a pod without a controller does not come back, "
        "and emptyDir data are deleted; afterwards kubectl uncordon n1",
    ]


def with_faults(node: GPUNode, *faults: str) -> GPUNode:
    """The node with a fault of each of its first GPUs; "" is none."""
    health = {f"GPU-{index}": fault for index, fault in enumerate(faults) if fault}
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, health=health))


def trouble_lines(page: str, node: str = "n1") -> list[str]:
    """The lines below the head of a node, each without its margin."""
    lines = page.splitlines()
    [at] = [number for number, line in enumerate(lines) if line[3:].startswith(node)]
    return [line.strip() for line in lines[at + 1 :]]


def test_the_pods_that_hold_a_lost_gpu_are_named() -> None:
    pods = [share("serve-8", "n1", 50, 5, 1), share("tune", "n1", 30, 5, 1), share("eval", "n1", 40, 4, 0)]
    seen = made([gpunode("n1", sick=True)], pods, {"n1": {VCUDA_CORE: "100"}})
    lines = trouble_lines(nodes_page("prod", seen, screen(), NOW))
    assert lines[0] == "what   Xid 79: fallen off the bus; ml/serve-8 holds 50% of it, ml/tune holds 30% of it"
    one = overview([with_faults(gpunode("n1", gpus=1), "Xid 79: fallen off the bus")], [pod("a", "n1", 1)], {})
    assert (
        trouble_lines(nodes_page("prod", one, screen(), NOW))[0] == "what   Xid 79: fallen off the bus; ml/a holds it"
    )
    some = overview([gpunode("n1", sick=True)], [pod("a", "n1", 1), pod("b", "n2", 1)], {"n1": 1})
    lines = trouble_lines(nodes_page("prod", some, screen(), NOW))
    assert lines[0] == "what   Xid 79: fallen off the bus; ml/a may hold it: the node alone knows"
    others = of_namespace(seen, "others")
    assert trouble_lines(nodes_page("prod", others, screen(), NOW))[0] == "what   Xid 79: fallen off the bus"


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared"])
def test_a_replica_of_a_lost_gpu_is_named_as_what_it_is(resource: str) -> None:
    lost = with_faults(gpunode("n1", gpus=1), "lost: NVML does not reach it")
    capacity = {"n1": {resource: "10"}}
    seen = made([lost], [asking("a", "n1", resource, 2)], {"n1": {resource: "0"}}, capacity=capacity)
    page = nodes_page("prod", seen, screen(), NOW)
    assert trouble_lines(page)[0] == "what   lost: NVML does not reach it; ml/a holds 2 replicas of it"
    assert "0.2 of 1 GPU   20%" in page


def test_a_lost_gpu_of_a_node_that_is_not_ready_is_listed_too() -> None:
    node = with_faults(gpunode("n1", failed=StageName.EXPORTER), "", "Xid 79: fallen off the bus")
    like = gpunode("n2", failed=StageName.EXPORTER)
    page = nodes_page("prod", overview([node, like], [pod("a", "n1", 1)], {"n1": 1}), screen(), NOW)
    assert " ✗ n1   ✓✓✓✓✓✓✗--  exporter   24s   1 GPU advertised; GPU 1 lost\n" in page
    [at] = [number for number, line in enumerate(page.splitlines()) if line.startswith(" ✗ n1")]
    lines = [line.strip() for line in page.splitlines()[at + 1 : at + 6]]
    assert lines[:2] == [
        "what   GPU 1 computes wrong",
        "Xid 79: fallen off the bus; ml/a may hold it: the node alone knows",
    ]
    assert lines[2:] == ["where  n1, GPU 1", "n1, PCI 0000:00:1e.0, GPU-1", "cure   kubectl drain n1"]
    away = overview([node], [], {"n1": 1}, {"n1": "the node is not Ready: Kubelet stopped posting node status."})
    page = nodes_page("prod", away, screen(), NOW)
    assert "2 GPUs out of reach; GPU 1 lost" in page and "Xid 79: fallen off the bus" in page


@pytest.mark.parametrize(
    ("faults", "effect", "cure"),
    [
        (("Xid 48: double bit ECC error", ""), "GPU 0 not usable; 1 of 2 left", "drain the node and reset the GPU"),
        (
            ("Xid 63: row remapping recorded", ""),
            "GPU 0 not usable; 1 of 2 left",
            "reset the GPU when its jobs are done",
        ),
        (("fails the vectorAdd: element 0 is 1.0", ""), "GPU 0 not usable; 1 of 2 left", "drain the node and look at"),
        (("Xid 92: high rate of single bit ECC errors", ""), "GPU 0 not usable; 1 of 2 left", "nvidia-smi -q -d ECC"),
        (
            ("lost: NVML does not reach it", "Xid 48"),
            "GPU 0 lost, GPU 1 not usable; 0 of 2 left",
            "drain the node and re",
        ),
    ],
)
def test_the_cure_of_a_gpu_is_that_of_its_fault(faults: tuple[str, ...], effect: str, cure: str) -> None:
    node = with_faults(gpunode("n1"), *faults)
    page = nodes_page("prod", overview([node], [], {"n1": 2}), screen(), NOW)
    assert effect in page
    lines = trouble_lines(page)
    [at] = [number for number, line in enumerate(lines) if line.startswith("cure")]
    assert lines[at].startswith(f"cure   {cure}")
    commands = [line.split()[1] for line in lines[at:] if line.startswith("kubectl")]
    assert commands == ([] if "92" in faults[0] else ["cordon"] if "63" in faults[0] else ["drain"])


def test_a_node_that_does_not_answer_is_told_and_offers_nothing() -> None:
    away = {"n1": "the node is not Ready: Kubelet stopped posting node status."}
    seen = overview([gpunode("n1"), gpunode("n2")], [], {"n1": 2, "n2": 2}, away)
    page = nodes_page("prod", seen, screen(), NOW)
    assert "1 of 2 need you" in page and "2 GPUs out of reach" in page
    assert "Kubelet stopped posting" in page and "cure   kubectl describe node n1" in page
    assert seen.fits == {"2": 1, "1": 2}


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared"])
def test_gpus_that_are_lost_count_where_what_is_held_of_them_does(resource: str) -> None:
    whole = resource == "nvidia.com/gpu"
    units = 1 if whole else 10
    pods = [asking("a", "n1", resource, units), asking("b", "n1", resource, units if whole else units // 2)]
    seen = made([gpunode("n1", sick=True), gpunode("n2")], pods, {"n1": {resource: units}, "n2": {resource: 2 * units}})
    page = nodes_page("prod", seen, screen(), NOW).splitlines()
    held, percent = ("2", "50%") if whole else ("1.5", "38%")
    assert f"  {held} of 4 GPUs   {percent}" in page[2]
    [row] = [line for line in page if line.startswith(" L4 ")]
    assert row.split()[4:6] == [percent, "2"]
    assert page[2].endswith("2 GPUs ×1" if whole else "replica ×20")


def test_gpus_out_of_reach_count_where_what_is_held_of_them_does() -> None:
    away = {"n1": "the node is not Ready: Kubelet stopped posting node status."}
    seen = overview([gpunode("n1"), gpunode("n2")], [pod("a", "n1", 2)], {"n1": 2, "n2": 2}, away)
    page = nodes_page("prod", seen, screen(), NOW).splitlines()
    assert "2 of 4 GPUs   50%" in page[2] and page[2].endswith("2 GPUs ×1")
    [row] = [line for line in page if line.startswith(" L4 ")]
    assert row.split()[4:6] == ["50%", "2"]


def test_without_gpu_nodes_the_cure_is_told() -> None:
    page = nodes_page("prod", overview([], [], {}), screen(), NOW)
    assert "no GPU nodes" in page
    assert "cure" in page


def test_ascii_has_no_other_characters() -> None:
    seen = overview([gpunode("n1", failed=StageName.CUDA)], [], {})
    assert nodes_page("prod", seen, screen(ascii_only=True), NOW, wide=True).isascii()


def test_who_holds_what_is_listed_under_the_node_and_ended_pods_hold_nothing() -> None:
    pods = [pod("train", "n1", 1), pod("done", "n1", 1, "Succeeded"), pod("waits", "", 1, "Pending")]
    seen = overview([gpunode("n1")], pods, {"n1": 2})
    page = gpus_page(seen, screen())
    assert "held by ml/train: 1 GPU, its node alone knows which" in page
    assert "done" not in page
    assert "1 held   1 free" in page
    assert (seen.running, seen.waiting) == (1, 1)


def share(name: str, node: str, core: int, memory: int, at: int | None) -> Pod:
    """A pod with a part of GPU `at`, as the extender places it; as others do where that is None."""
    asked = {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": str(memory * 4)}
    container = Container(name="main", resources=Resources(limits=asked))
    bound = Pod(
        metadata=ObjectMeta(name=name, namespace="ml"),
        spec=PodSpec(node_name=node, containers=(container,)),
        status=PodStatus(phase="Running"),
    )
    if at is not None:
        part = Assignment({"main": (Part(f"GPU-{at}", at, core, memory << 10),)})
        said = to_annotations(part, request_of(bound), node, 0)
        bound = msgspec.structs.replace(bound, metadata=msgspec.structs.replace(bound.metadata, annotations=said))
    return bound


def test_shares_are_shown_on_their_gpus() -> None:
    pods = [share("tune", "n1", 30, 5, 0), share("serve", "n1", 20, 5, 0), share("eval", "n1", 40, 4, 1)]
    seen = made([gpunode("n1")], pods, {"n1": {VCUDA_CORE: "200"}})
    assert gpus_page(seen, screen()).splitlines() == [
        "n1   L4 22 GiB ×2                               0.9 held   1.1 free   ✓ ready",
        "    CORE                  MEMORY                HELD BY",
        " 0  AAAABBBBBB░░░░░░░░░░  aaaabbbbb░░░░░░░░░░░  A ml/serve 20% 5G",
        "                                                B ml/tune 30% 5G",
        " 1  AAAAAAAA░░░░░░░░░░░░  aaaa░░░░░░░░░░░░░░░░  A ml/eval 40% 4G",
    ]
    assert seen.fits == {"2": 0, "1": 0, "0.5": 2}
    page = nodes_page("prod", seen, screen(), NOW)
    assert "0.9 of 2 GPUs   45%" in page and "½ GPU  ×2" in page


def test_on_a_node_with_one_gpu_there_is_no_doubt_which_a_pod_holds() -> None:
    seen = made([gpunode("n1", gpus=1)], [share("tune", "n1", 30, 5, None)], {"n1": {VCUDA_CORE: "100"}})
    assert " 0  AAAAAA░░░░░░░░░░░░░░  aaaa░░░░░░░░░░░░░░░░  A ml/tune 30% 5G" in gpus_page(seen, screen())
    sick = made([gpunode("n1", sick=True)], [share("a", "n1", 40, 4, 1)], {"n1": {VCUDA_CORE: "100"}})
    assert "1  AAAAAAAA░░░░░░░░░░░░  aaaa░░░░░░░░░░░░░░░░  ✗ Xid 79" in gpus_page(sick, screen())
    assert sick.fits == {"1": 0, "0.5": 2}


def asking(name: str, node: str, resource: str, number: int = 1) -> Pod:
    container = Container(name="main", resources=Resources(limits={resource: str(number)}))
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ml"),
        spec=PodSpec(node_name=node, containers=(container,)),
        status=PodStatus(phase="Running" if node else "Pending"),
    )


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared"])
def test_ten_replicas_of_a_gpu_are_one_gpu(resource: str) -> None:
    pods = [asking("a", "n1", resource), asking("b", "n1", resource, 2), asking("c", "", resource)]
    seen = made([gpunode("n1", gpus=1)], pods, {"n1": {resource: "10"}})
    assert nodes_page("prod", seen, screen(), NOW).splitlines()[2:] == [
        " Held   ███████▎░░░░░░░░░░░░░░░░  0.3 of 1 GPU   30%    Fits now  replica ×7",
        " Pods   2 running   1 waiting",
        "",
        " MODEL   NODES   GPUS   HELD                     FREE   NOT READY",
        " L4          1      1   ████▌░░░░░░░░░░   30%     0.7           0",
        "",
        " ! 1 pod waits for GPUs",
        "     what   ml/c",
        "     cure   gpuplane explain ml/c",
    ]
    assert gpus_page(seen, screen()).splitlines()[2:] == [
        " 0  AABBBB░░░░░░░░░░░░░░  ░░░░░░░░░░░░░░░░░░░░  A ml/a 1 replica",
        "                                                B ml/b 2 replicas",
    ]
    assert "0.3 held   0.7 free" in gpus_page(seen, screen())


def test_a_replica_is_one_also_where_an_annotation_says_whole() -> None:
    bound = pod("a", "n1", 1)
    said = to_annotations(Assignment({"main": (Part("GPU-0", 0, 100, 0),)}), request_of(bound), "n1", 0)
    bound = msgspec.structs.replace(bound, metadata=msgspec.structs.replace(bound.metadata, annotations=said))
    page = gpus_page(overview([gpunode("n1", gpus=1)], [bound], {"n1": 10}), screen())
    assert " 0  AA░░░░░░░░░░░░░░░░░░  ░░░░░░░░░░░░░░░░░░░░  A ml/a 1 replica" in page
    assert "whole" in gpus_page(overview([gpunode("n1", gpus=1)], [bound], {"n1": 1}), screen())


def test_replicas_of_several_gpus_are_listed_below_them() -> None:
    pods = [pod("a", "n1", 1), pod("b", "n1", 1)]
    seen = overview([gpunode("n1")], pods, {"n1": 20})
    assert "0.2 held   1.8 free" in gpus_page(seen, screen())
    assert "held by ml/b: 1 replica, its node alone knows which" in gpus_page(seen, screen())
    assert seen.fits == {"replica": 18}


def test_mig_devices_are_the_parts_of_gpus_that_they_are() -> None:
    node = gpunode("n1")
    split, other = (msgspec.structs.replace(gpu, mig="enabled") for gpu in node.status.gpus)
    status = msgspec.structs.replace(node.status, gpus=(split, msgspec.structs.replace(other, mig="disabled")))
    node = msgspec.structs.replace(node, status=status)
    offer = {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "4", "nvidia.com/mig-3g.40gb": "1"}
    pods = [asking("a", "n1", "nvidia.com/mig-3g.40gb"), asking("b", "n1", "nvidia.com/gpu")]
    seen = made([node], pods, {"n1": offer})
    assert seen.fits == {"1": 0, "mig-1g.10gb": 4, "mig-3g.40gb": 0}
    assert (seen.held, seen.nodes[0].free, seen.running) == (1.43, 0.57, 2)
    assert "held by ml/a: 1 mig-3g.40gb, its node" in gpus_page(seen, screen())


def test_stages_take_the_time_since_the_one_before() -> None:
    node = overview([gpunode("n1")], [], {}).nodes[0]
    assert node.took["driver"] == 1.0
    assert node.took["ready"] == 1.0


def without_headers(name: str, kernel: str = "6.8.0-71") -> GPUNode:
    """A node of a pool whose driver cannot be compiled."""
    stages = {
        "discovered": Stage(state=StageState.DONE, since=at(0)),
        "driver": Stage(
            state=StageState.FAILED,
            since=at(1),
            reason="KernelHeadersMissing",
            message=f"no linux-headers-{kernel} in the node's repositories",
            where=f"apt-get install linux-headers-{kernel}, in / of {name}",
            cure="boot a kernel that they have headers for, or ClusterPolicy spec.driver.repoConfig",
        ),
    }
    status = GPUNodeStatus(stages=stages, machine=Machine(os="ubuntu24.04", kernel=kernel))
    return GPUNode(metadata=ObjectMeta(name=name), status=msgspec.structs.replace(status, summary=summarize(status)))


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
        " ✗ operator refused   30s   what is there goes on",
        '     what   daemonsets.apps "x" is forbidden',
        "     where  ClusterPolicy p status.conditions",
        "     cure   gpuplane install brings rights and definitions up to date; what the message names otherwise",
    ]
    well = msgspec.structs.replace(condition, status="False")
    assert refusal([msgspec.structs.replace(policy, status=ClusterPolicyStatus(conditions=(well,)))]) is None
    assert refusal([]) is None


@pytest.mark.parametrize("columns", [80, 120])
def test_people_get_lines_that_fit_and_programs_whole_ones(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    node = without_headers("bad")
    long = "no linux-headers-6.8.0-71 in the node's repositories " * 4
    stages = {**node.status.stages, "driver": msgspec.structs.replace(node.status.stages["driver"], message=long)}
    seen = overview([GPUNode(metadata=node.metadata, status=GPUNodeStatus(stages=stages))], [], {})
    monkeypatch.delenv("COLUMNS", raising=False)
    assert long.strip() in nodes_page("prod", seen, screen(), NOW)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = nodes_page("prod", seen, screen(), NOW).splitlines()
    assert columns - 20 < max(map(len, lines[-8:])) <= columns


LONG = "ip-10-0-123-234.eu-central-1.compute.internal.with.a.long.domain"


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        "Xid 79: fallen off the bus",
        "lost: it is on the PCI bus, and NVML does not list it",
        "fails the vectorAdd: element 13 of 50000 is 2.5094 and should be 3.5094",
    ],
)
def test_every_line_of_every_page_fits_eighty_columns(
    fault: str, ascii_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        with_faults(gpunode(LONG), fault, "Xid 48: double bit ECC error"),
        with_faults(gpunode("n2", failed=StageName.DEVICE_PLUGIN), fault),
        with_faults(gpunode("n3", gpus=1), fault),
        gpunode(f"n4.{LONG}", failed=StageName.CUDA),
        gpunode("n5"),
    ]
    model = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    named = tuple(msgspec.structs.replace(gpu, model=model, mig="enabled") for gpu in nodes[4].status.gpus)
    status = msgspec.structs.replace(nodes[4].status, gpus=named)
    nodes[4] = msgspec.structs.replace(nodes[4], status=status)
    name = "a-notebook-with-quite-a-long-name-7d9c8bf6c-x2x9p"
    pods = [pod(f"{name}-{node.metadata.name}", node.metadata.name, 1) for node in nodes[:4]]
    pods += [share(f"{name}-{at}", "n2", 30, 5, at) for at in (0, 1)]
    pods += [asking(name, "n5", f"nvidia.com/mig-{size}") for size in ("1g.24gb.me", "2g.48gb")]
    upgrades = {
        LONG: UpgradeView("upgrade-failed", at(0), f"the driver of {fault} could not be installed, so it is back " * 2),
        "n2": UpgradeView("pod-deletion-required", at(0), f"waits for ml/{name} to go"),
    }
    offered: dict[str, Any] = {node.metadata.name: {"nvidia.com/gpu": "2"} for node in nodes[:4]}
    offered["n5"] = {"nvidia.com/mig-1g.24gb.me": "800", "nvidia.com/mig-2g.48gb": "1000"}
    away = {"n3": "the node is not Ready: Kubelet stopped posting node status."}
    seen = made(nodes, pods, offered, away, upgrades, version="0.1.0-rc1")
    monkeypatch.setenv("COLUMNS", "80")
    told = screen(ascii_only)
    for page in (nodes_page(LONG, seen, told, NOW), gpus_page(seen, told), gpus_page(seen, told, wide=True)):
        lines = page.splitlines()
        assert max(map(len, lines)) <= 80, max(lines, key=len)
        words = " ".join(page.split())
        assert fault.split()[-1] in words and f"{fault.split()[0]} {fault.split()[1]}" in words


def test_an_error_fits_the_window_and_is_whole_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    cure = "gpuplane install --dry-run prints what an installation is; gpuplane install puts it there"
    for columns, longest in (("", 100), ("80", 80)):
        monkeypatch.setenv("COLUMNS", columns)
        told = screen()
        told.error(Terminal("gpuplane is not on this cluster", where="prod", cure=cure))
        lines = told.err.getvalue().splitlines()  # type: ignore[attr-defined]
        assert max(map(len, lines)) in range(longest - 20, longest + 1)
        assert " ".join(" ".join(lines).split()).endswith(f"cure {cure}")
        assert all(line.startswith(" " * 11) for line in lines[3:])


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
