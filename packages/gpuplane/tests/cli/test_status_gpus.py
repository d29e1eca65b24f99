"""The page of `gpuplane status gpus`: who holds which GPU, share, replica or MIG device."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane.cli.gpus_text import gpus_page
from gpuplane.cli.overview import overview as made
from gpuplane.cli.status_text import nodes_page
from gpuplane.names import VCUDA_CORE
from gpuplane.sharing import Assignment, Part, request_of, to_annotations
from packages.gpuplane.tests.cli.status_objects import NOW, asking, gpunode, overview, pod, screen, share


def test_who_holds_what_is_listed_under_the_node_and_ended_pods_hold_nothing() -> None:
    pods = [pod("train", "n1", 1), pod("done", "n1", 1, "Succeeded"), pod("waits", "", 1, "Pending")]
    seen = overview([gpunode("n1")], pods, {"n1": 2})
    page = gpus_page(seen, screen())
    assert "held by ml/train: 1 GPU, its node alone knows which" in page
    assert "done" not in page
    assert "1 held   1 free" in page
    assert (seen.running, seen.waiting) == (1, 1)


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
