"""`gpuplane run autoscaler` as a process would run it: settings, lease, HTTP to a real API server, metrics."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.crds import crds
from gpuplane.api.karpenter_crds import karpenter_crds
from gpuplane.autoscaler import component
from gpuplane.autoscaler.cloud import ClosedOfferings, CloudView
from gpuplane.autoscaler.counting import LabelledCounts
from gpuplane.autoscaler.metrics import AutoscalerState, autoscaler_metrics
from gpuplane.autoscaler.options import SharingSettings, make_options
from gpuplane.autoscaler.overhead import allocatable
from gpuplane.autoscaler.settings import read_settings
from kubekit.errors import InvalidInput, Terminal
from kubekit.kube.clock import SystemClock
from kubekit.kube.exposition import exposition
from packages.gpuplane.tests.autoscaler.worlds import pool as pool_of_types
from tests.support.autoscaler_world import PROVISIONERS, TYPES
from tests.support.fake_cloud import FakeCloud
from tests.support.until import until
from tests.support.virtual_time import VirtualClock
from tinykube.apiserver.identity import ADMIN
from tinykube.apiserver.server import ApiServer

LEASES = ("coordination.k8s.io", "leases")


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({}, "CLUSTER_NAME"),
        ({"CLUSTER_NAME": "c", "BATCH_IDLE_DURATION": "soon"}, "'soon' is no duration"),
        ({"CLUSTER_NAME": "c", "BATCH_MAX_DURATION": "0s"}, "'0s' is no duration above 0"),
        ({"CLUSTER_NAME": "c", "MIN_VALUES_POLICY": "strict"}, "'strict' is no policy"),
        ({"CLUSTER_NAME": "c", "VM_MEMORY_OVERHEAD_PERCENT": "7.5"}, "'7.5' is no part of the memory"),
        ({"CLUSTER_NAME": "c", "VM_MEMORY_OVERHEAD_PERCENT": "much"}, "'much' is no part of the memory"),
    ],
)
def test_a_wrong_setting_is_named(environment: dict[str, str], what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        read_settings(environment)


def test_settings_have_karpenters_names() -> None:
    read = read_settings({"CLUSTER_NAME": "demo", "BATCH_IDLE_DURATION": "500ms", "BATCH_MAX_DURATION": "1m"})
    assert (read.cluster, read.batch_idle, read.batch_longest, read.nominated_seconds) == ("demo", 0.5, 60.0, 120.0)


def test_the_policy_of_min_values_and_the_memory_overhead_have_karpenters_names_and_defaults() -> None:
    read = read_settings({"CLUSTER_NAME": "demo"})
    assert (read.relax_min_values, read.memory_overhead) == (False, 0.075)
    asked = {"MIN_VALUES_POLICY": "BestEffort", "VM_MEMORY_OVERHEAD_PERCENT": "0.1"}
    read = read_settings({"CLUSTER_NAME": "demo", **asked})
    assert (read.relax_min_values, read.memory_overhead) == (True, 0.1)


@pytest.mark.parametrize(("overhead", "taken"), [(0.075, 1229), (0.1, 1639)])
async def test_the_memory_overhead_counts_in_what_types_offer(overhead: float, taken: int) -> None:
    clock = VirtualClock()
    cloud = CloudView(FakeCloud(clock, list(TYPES.values())), ClosedOfferings(clock), overhead=overhead)
    (machine,) = [one for one in await cloud.types() if one.name == "g4dn.xlarge"]
    # 16384 MiB, less the overhead, 255 MiB and 11 MiB for each of 29 pods, and 100 MiB below which pods are evicted.
    assert machine.labels()["karpenter.k8s.aws/instance-memory"] == "16384"
    assert allocatable(machine)["memory"] == (16384 - taken - 255 - 11 * 29 - 100) << 20
    options = make_options(pool_of_types("gpu"), (), [machine], SharingSettings()).options
    assert {one.capacity["memory"] for one in options} == {(16384 - taken) << 20}


def test_metrics_of_an_autoscaler_without_nodes_are_a_valid_text() -> None:
    created = LabelledCounts()
    created.add(2, reason="provisioned", nodepool="gpu")
    text = exposition(autoscaler_metrics(AutoscalerState(created=created))).decode()
    assert 'karpenter_nodeclaims_created_total{reason="provisioned",nodepool="gpu"} 2' in text
    assert "karpenter_cluster_state_synced 0" in text


async def test_the_component_stands_aside_for_karpenter_and_else_buys_while_it_holds_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await ApiServer.start(tmp_path / "pki")
    server.extensions.identity.add("admin", ADMIN)
    registry = server.registry
    await registry.create("namespaces", None, {"metadata": {"name": "gpu-operator"}})
    for crd in (*crds(), *karpenter_crds()):
        await registry.create("customresourcedefinitions", None, crd)
    cloud = FakeCloud(SystemClock(), list(TYPES.values()))  # type: ignore[arg-type]  # asks for the time only

    async def connect(client: Any) -> FakeCloud:
        return cloud

    monkeypatch.setattr(component, "connect", connect)
    for name, value in {"CLUSTER_NAME": "demo", "BATCH_IDLE_DURATION": "50ms", "POD_IP": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority": str(server.authority)}}],
        "users": [{"name": "u", "user": {"token": "admin"}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    spec = {"requirements": [], "provider": {"launchTemplate": "gpu", "subnetSelector": {"a": "b"}}}
    spec["requirements"] = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g4dn.xlarge"]}]
    pool = {"apiVersion": "karpenter.sh/v1alpha5", "kind": "Provisioner", "metadata": {"name": "gpu"}, "spec": spec}
    await registry.create(PROVISIONERS, None, pool)
    limits = {"nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "i", "resources": {"limits": limits, "requests": limits}}
    await registry.create("pods", "default", {"metadata": {"name": "p"}, "spec": {"containers": [container]}})
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"status": {"phase": "Pending", "conditions": [condition]}}
    await registry.patch("pods", "default", "p", status, "merge", subresource="status")
    options = Namespace(kubeconfig=tmp_path / "config", context=None, port=0)
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    meta = {"name": "karpenter", "labels": {"app.kubernetes.io/name": "karpenter"}}
    await registry.create(("apps", "deployments"), "default", {"metadata": meta, "spec": spec})
    with pytest.raises(Terminal, match="default/karpenter: Karpenter works on this cluster"):
        await component.run(options)
    assert not cloud.launched
    await registry.delete(("apps", "deployments"), "default", "karpenter")
    task = asyncio.create_task(component.run(options))
    try:
        await until(lambda: cloud.launched, task=task)
        held = registry.get(LEASES, "gpu-operator", names.AUTOSCALER_NAME) or {}
        assert held["spec"]["holderIdentity"].startswith("gpuplane-autoscaler-")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop()
    assert [instance.machine for instance in cloud.launched] == ["g4dn.xlarge"]
