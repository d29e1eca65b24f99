"""`gpuplane status` lists GPUs that are lost, not usable or out of reach: cause, holders, cure and count."""

from __future__ import annotations

import pytest

from gpuplane.api.gpunode import StageName
from gpuplane.cli.overview import overview as made
from gpuplane.cli.status_text import nodes_page
from gpuplane.cli.status_views import of_namespace
from gpuplane.names import VCUDA_CORE
from packages.gpuplane.tests.cli.status_objects import (
    NOW,
    asking,
    gpunode,
    overview,
    pod,
    screen,
    share,
    trouble_lines,
    with_faults,
)


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
