"""Pods and the RuntimeClass that they name: its overhead, its nodes and the taints that it tolerates."""

from __future__ import annotations

from typing import Any

import pytest

from tinykube.apiserver import ApiFailure

EVERYTHING = {"operator": "Exists"}
UNREADY = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in ("not-ready", "unreachable")
]


async def runtime_class(cluster: Any, **fields: Any) -> None:
    await cluster.create("runtimeclasses", {"metadata": {"name": "kata"}, "handler": "kata", **fields})


async def pod(cluster: Any, **spec: Any) -> Any:
    return (await cluster.pod(runtimeClassName="kata", **spec))["spec"]


async def refused(cluster: Any, **spec: Any) -> str:
    with pytest.raises(ApiFailure) as failure:
        await pod(cluster, **spec)
    assert failure.value.status == 403
    return str(failure.value).removeprefix('pods "p" is forbidden: ')


async def test_a_pod_has_the_overhead_of_its_class_and_no_other(cluster: Any) -> None:
    await runtime_class(cluster, overhead={"podFixed": {"cpu": "250m", "memory": "1Gi"}})
    other = {"cpu": "100m", "memory": "1Gi"}
    mismatch = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
    assert await refused(cluster, overhead=other) == mismatch
    assert await refused(cluster, overhead={"cpu": "250m"}) == mismatch
    found = await pod(cluster, overhead={"cpu": "0.25", "memory": "1024Mi"})
    assert found["overhead"] == {"cpu": "250m", "memory": "1Gi"}


@pytest.mark.parametrize("overhead", [{"cpu": "1"}, {}])
async def test_a_pod_has_no_overhead_where_its_class_has_none(cluster: Any, overhead: Any) -> None:
    await runtime_class(cluster)
    text = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
    assert await refused(cluster, overhead=overhead) == text


async def test_a_pod_and_its_class_agree_about_nodes(cluster: Any) -> None:
    await runtime_class(cluster, scheduling={"nodeSelector": {"gpu": "true", "zone": "a"}})
    text = "conflict: runtimeClass.scheduling.nodeSelector[gpu] = true; pod.spec.nodeSelector[gpu] = false"
    assert await refused(cluster, nodeSelector={"gpu": "false"}) == text
    found = await pod(cluster, nodeSelector={"gpu": "true", "disk": "fast"})
    assert found["nodeSelector"] == {"gpu": "true", "zone": "a", "disk": "fast"}


@pytest.mark.parametrize(
    ("own", "of_class", "expected"),
    [
        ([], [{"key": "gpu", "operator": "Exists"}], [*UNREADY, {"key": "gpu", "operator": "Exists"}]),
        ([], [EVERYTHING], [EVERYTHING]),
        (
            [{"key": "gpu", "operator": "Equal", "value": "a"}],
            [{"key": "gpu", "operator": "Exists"}],
            [*UNREADY, {"key": "gpu", "operator": "Exists"}],
        ),
        (
            [{"key": "gpu", "operator": "Exists"}],
            [{"key": "gpu", "operator": "Equal", "value": "a"}],
            [{"key": "gpu", "operator": "Exists"}, *UNREADY],
        ),
        (
            [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}],
            [
                {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
                *UNREADY,
                {"key": "gpu", "operator": "Exists", "effect": "NoExecute"},
            ],
        ),
        ([], [{**UNREADY[0], "tolerationSeconds": 60}], [*UNREADY]),
        ([], [{**UNREADY[0], "tolerationSeconds": 600}], [UNREADY[1], {**UNREADY[0], "tolerationSeconds": 600}]),
    ],
)
async def test_of_two_tolerations_the_wider_one_stays(cluster: Any, own: Any, of_class: Any, expected: Any) -> None:
    await runtime_class(cluster, scheduling={"tolerations": of_class})
    assert (await pod(cluster, tolerations=own))["tolerations"] == expected
