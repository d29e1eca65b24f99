"""Requests of a pod: by the life of its containers, and the same number for every reader."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.api.offers import core_asked
from gpuplane.sharing import request_of
from gpuplane.sharing.assignment import Assignment, Part
from kubekit.api.core import Pod
from kubekit.api.pod_requests import PodAmounts, phases, read_amounts
from kubekit.scheduling.podinfo import compile_pod
from tinykube.apiserver.builtin import RESOURCES as KINDS
from tinykube.apiserver.quotas import uses
from tinykube.kubelet.devices.ledger import (
    ContainerDevices,
    DeviceHolding,
    DeviceLedger,
    ListedDevice,
    candidates,
    choose,
)

RESOURCES = ("cpu", names.GPU_RESOURCE)
lists = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 4))
init_containers = st.lists(st.tuples(lists, st.booleans()), max_size=4)


def lived(main: list[dict[str, int]], init: list[tuple[dict[str, int], bool]]) -> dict[str, int]:
    """Play the pod's life, start by start and end by end, and return the most that runs of each resource."""
    running: Counter[str] = Counter()
    peak: dict[str, int] = {}

    def start(container: dict[str, int]) -> None:
        for name, amount in container.items():
            running[name] += amount
            peak[name] = max(peak.get(name, 0), running[name])

    for container, sidecar in init:
        start(container)
        if not sidecar:
            running.subtract(container)
    for container in main:
        start(container)
    return peak


@given(st.lists(lists, min_size=1, max_size=3), init_containers)
def test_a_pod_requests_the_most_that_it_ever_uses(main: Any, init: Any) -> None:
    assert PodAmounts(tuple(main), tuple(init)).requests() == lived(main, init)


@given(st.lists(lists, min_size=1, max_size=3), init_containers, lists, lists)
def test_pod_level_comes_instead_of_the_containers_and_overhead_on_top(
    main: Any, init: Any, level: dict[str, int], overhead: dict[str, int]
) -> None:
    amounts = PodAmounts(tuple(main), tuple(init), level, overhead)
    expected = lived(main, init) | {name: amount for name, amount in level.items() if name == "cpu"}
    assert amounts.requests() == {
        name: expected.get(name, 0) + overhead.get(name, 0) for name in {*expected, *overhead}
    }
    assert amounts.limits() == {
        name: amount + (overhead.get(name, 0) if amount else 0) for name, amount in expected.items()
    }


def container(name: str, amount: int, **more: Any) -> dict[str, Any]:
    resources = {"limits": {names.GPU_RESOURCE: str(amount)}, "requests": {"cpu": amount, names.GPU_RESOURCE: amount}}
    return {"name": name, "resources": resources, **more}


def pod(main: list[int], init: list[tuple[int, bool]], **spec: Any) -> dict[str, Any]:
    always = {"restartPolicy": "Always"}
    return {
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {
            "containers": [container(f"m{at}", amount) for at, amount in enumerate(main)],
            "initContainers": [
                container(f"i{at}", amount, **(always if sidecar else {})) for at, (amount, sidecar) in enumerate(init)
            ],
            **spec,
        },
    }


def everyone(raw: dict[str, Any]) -> dict[str, float]:
    """Return the GPUs that a pod requests, by each part of gpuplane that counts them."""
    typed = msgspec.convert(raw, Pod)
    request = request_of(typed)
    parts = {ask.container: (Part("", 0, ask.core, 0),) for ask in request.asks}
    devices = {str(at): ListedDevice(healthy=True) for at in range(32)}
    ledger = DeviceLedger()
    ends = frozenset(c["name"] for c in raw["spec"]["initContainers"] if "restartPolicy" not in c)
    for each in (*raw["spec"]["initContainers"], *raw["spec"]["containers"]):
        wanted = int(each["resources"]["limits"][names.GPU_RESOURCE])
        choice = candidates(devices, ledger.in_use("gpu"), ledger.reusable("p", "gpu", ends), wanted)
        assert choice is not None
        ids = choose(choice, (), wanted)
        ledger.hold(
            DeviceHolding(pod_uid="p", container=each["name"], resource="gpu", ids=ids, given=ContainerDevices())
        )
    held = Assignment(parts, tuple(ask.container for ask in request.asks if not ask.lasts)).held()
    quota = uses(next(info for info in KINDS if info.plural == "pods"), raw)
    return {
        "scheduler": compile_pod(raw).requests[names.GPU_RESOURCE],
        "quota": int(quota[f"requests.{names.GPU_RESOURCE}"]),
        "status": core_asked(typed) / 100,
        "request": request.core / 100,
        "kubelet": len(ledger.in_use("gpu")),
        "assignment": held.get(("", 0), (0, 0))[0] / 100,
    }


@pytest.mark.parametrize(
    ("main", "init", "spec", "cpu_milli"),
    [
        ([1, 2], [], {}, 3000),
        ([1], [(3, False)], {}, 3000),
        ([1], [(1, True), (2, False)], {}, 3000),
        ([1], [(2, False), (1, True)], {}, 2000),
        ([1], [], {"overhead": {"cpu": "250m"}}, 1250),
        ([1], [], {"resources": {"requests": {"cpu": "4"}}}, 4000),
    ],
)
def test_scheduler_and_policies_count_the_cpu_as_kubernetes(
    main: list[int], init: list[tuple[int, bool]], spec: dict[str, Any], cpu_milli: int
) -> None:
    raw = pod(main, init, **spec)
    assert compile_pod(raw).requests["cpu"] == cpu_milli
    assert request_of(msgspec.convert(raw, Pod)).cpu_milli == cpu_milli


def test_a_sidecar_counts_next_to_the_init_containers_after_it() -> None:
    raw = pod([1], [(1, True), (2, False)])
    assert set(everyone(raw).values()) == {3}


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=4),
)
def test_everyone_counts_the_same(main: list[int], init: list[tuple[int, bool]]) -> None:
    assert len(set(everyone(pod(main, init)).values())) == 1


def test_limits_of_a_quota_count_sidecars_and_overhead() -> None:
    def limited(cpu: str, **more: Any) -> dict[str, Any]:
        return {"name": "c", "resources": {"limits": {"cpu": cpu}}, **more}

    spec = {
        "containers": [limited("1")],
        "initContainers": [limited("1", restartPolicy="Always"), limited("2")],
        "overhead": {"cpu": "500m", "memory": "1Gi"},
    }
    found = uses(next(info for info in KINDS if info.plural == "pods"), {"metadata": {}, "spec": spec})
    assert found["limits.cpu"] == Decimal("3.5")
    assert "limits.memory" not in found


def test_a_container_without_a_request_counts_in_scores_with_what_is_assumed() -> None:
    raw = pod([], [])
    raw["spec"] |= {"containers": [{"name": "m"}], "initContainers": [{"name": "s", "restartPolicy": "Always"}]}
    info = compile_pod(raw)
    assert (info.requests, info.scored_cpu_milli, info.scored_memory_bytes) == ({}, 200, 400 * 1024 * 1024)


@pytest.mark.parametrize("field", ["requests", "limits"])
def test_a_limit_is_a_request_where_there_is_no_request(field: Any) -> None:
    spec = {"containers": [{"resources": {"limits": {"cpu": "2", "x/y": "1"}, "requests": {"cpu": "1"}}}]}
    amounts = read_amounts(spec, field, lambda _, value: int(value))
    total = amounts.requests() if field == "requests" else amounts.limits()
    assert total == {"cpu": 1 if field == "requests" else 2, "x/y": 1}


def test_phases_keep_the_order_of_containers() -> None:
    init = [("early", False), ("sidecar", True), ("late", False)]
    assert list(phases(["main"], init)) == [("sidecar", "main"), ("early",), ("sidecar", "late")]
