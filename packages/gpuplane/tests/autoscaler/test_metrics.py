"""The metrics of the autoscaler: Karpenter's names, over the life of a node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from gpuplane.autoscaler.catalogue import aws_catalogue
from gpuplane.autoscaler.cloud_calls import MeteredProvider
from gpuplane.autoscaler.counting import Durations
from gpuplane.autoscaler.metrics import autoscaler_metrics
from gpuplane.autoscaler.process import AutoscalerProcess
from gpuplane.autoscaler.providers.provider import Interruption, LaunchRequest, MachineClass, NoCapacity, Offering
from kubekit.errors import NoAnswer
from kubekit.kube.exposition import Metric, MetricType, exposition
from packages.gpuplane.tests.autoscaler.disruption.replicated import add_node_pool
from tests.support.autoscaler_world import CLAIMS, AutoscalerWorld
from tests.support.fake_cloud import CloudFault, FakeCloud
from tests.support.virtual_time import VirtualClock

DOCS: Final = Path(__file__).parents[4] / "docs/components/autoscaler.md"
# The names of Karpenter 1.14 and of its provider for AWS; those of libraries that it is built of are left out.
KARPENTERS: Final = """
build_info consolidation_moves_total consolidation_score cluster_utilization_percent
nodeclaims_created_total nodeclaims_disrupted_total nodeclaims_instance_termination_duration_seconds
nodeclaims_terminated_total nodeclaims_termination_duration_seconds nodeclaims_unhealthy_disrupted_total
nodes_allocatable nodes_created_total nodes_current_lifetime_seconds nodes_drained_total
nodes_lifetime_duration_seconds nodes_system_overhead nodes_terminated_total nodes_termination_duration_seconds
nodes_total_daemon_limits nodes_total_daemon_requests nodes_total_pod_limits nodes_total_pod_requests
pods_bound_duration_seconds pods_disruption_initiated_total pods_drained_total pods_eviction_requests_total
pods_provisioning_bound_duration_seconds pods_provisioning_scheduling_undecided_time_seconds
pods_provisioning_startup_duration_seconds pods_provisioning_unbound_time_seconds
pods_provisioning_unstarted_time_seconds pods_scheduling_decision_duration_seconds pods_startup_duration_seconds
pods_state pods_unbound_time_seconds pods_unstarted_time_seconds
voluntary_disruption_consolidation_timeouts_total voluntary_disruption_decision_evaluation_duration_seconds
voluntary_disruption_decisions_by_nodepool_total voluntary_disruption_decisions_total
voluntary_disruption_eligible_nodes voluntary_disruption_failed_validations_total
voluntary_disruption_queue_failures_total
scheduler_ignored_pods_count scheduler_pending_pods_by_effective_zone_count scheduler_queue_depth
scheduler_scheduling_duration_seconds scheduler_unfinished_work_seconds scheduler_unschedulable_pods_count
nodepools_allowed_disruptions nodepools_cost_total nodepools_cost_tracker_errors_total nodepools_limit
nodepools_nodes_consuming_budgets nodepools_usage
interruption_deleted_messages_total interruption_instance_status_unhealthy_total
interruption_message_queue_duration_seconds interruption_received_messages_total
ec2nodeclasses_userdata_bytes
cluster_state_node_count cluster_state_synced cluster_state_unsynced_time_seconds
cloudprovider_batcher_batch_size cloudprovider_batcher_batch_time_seconds cloudprovider_duration_seconds
cloudprovider_errors_total cloudprovider_instance_launch_failures_total
cloudprovider_instance_termination_failures_total cloudprovider_instance_type_cpu_cores
cloudprovider_instance_type_memory_bytes cloudprovider_instance_type_offering_available
cloudprovider_instance_type_offering_price_estimate
"""


@pytest.fixture
async def world() -> AutoscalerWorld:
    made = AutoscalerWorld()
    await made.furnish()
    await add_node_pool(made, "g4dn.xlarge")
    return made


def scrape(process: AutoscalerProcess) -> dict[str, float]:
    """Return series -> value, in Karpenter's names without their prefix."""
    text = exposition(autoscaler_metrics(process.state())).decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("karpenter_")]
    return {name.removeprefix("karpenter_"): float(value) for name, _, value in lines}


async def test_every_name_of_karpenter_is_there_or_left_out_with_a_reason(world: AutoscalerWorld) -> None:
    async with world.autoscaling() as process:
        text = exposition(autoscaler_metrics(process.state())).decode()
    ours = set(re.findall(r"^# TYPE karpenter_(\w+)", text, re.MULTILINE))
    table = DOCS.read_text().partition("## Metrics that are left out")[2].partition("\n\nMetrics of the libraries")[0]
    explained = set(re.findall(r"`karpenter_(\w+)`", table))
    assert set(KARPENTERS.split()) == ours | explained
    assert not ours & explained


async def test_the_life_of_a_node_is_counted(world: AutoscalerWorld) -> None:
    async with world.autoscaling() as process:
        await world.add_pods(1, cpu="1")
        await world.until(lambda: scrape(process)["scheduler_queue_depth"] == 1)
        await world.pass_time(5)
        seen = scrape(process)
        pod = 'name="p-1",namespace="default"'
        assert seen[f"pods_provisioning_unbound_time_seconds{{{pod}}}"] >= 4
        assert f"pods_provisioning_scheduling_undecided_time_seconds{{{pod}}}" not in seen
        assert seen['scheduler_scheduling_duration_seconds_count{controller="provisioner"}'] >= 1
        assert seen["pods_scheduling_decision_duration_seconds_count"] == 1

        await world.until(lambda: world.bound() and scrape(process)["cluster_state_node_count"] == 1)
        running = {"status": {"phase": "Running"}}
        await world.registry.patch("pods", "default", "p-1", running, "merge", subresource="status")
        await world.pass_time(10)
        seen = scrape(process)
        [node] = [one["metadata"]["name"] for one in world.nodes()]
        of_node = f'node_name="{node}",nodepool="gpu"'
        assert seen['nodes_created_total{nodepool="gpu",zone="zone-1"}'] == 1
        assert seen["pods_bound_duration_seconds_count"] == seen["pods_startup_duration_seconds_count"] == 1
        assert seen["pods_provisioning_bound_duration_seconds_sum"] >= 30, "a machine boots for 30 s"
        assert f"pods_unstarted_time_seconds{{{pod}}}" not in seen
        assert seen[f'nodes_total_pod_requests{{{of_node},resource_type="cpu"}}'] == 1.0
        assert seen[f'nodes_system_overhead{{{of_node},resource_type="cpu"}}'] == pytest.approx(0.08)
        assert 5 <= seen[f"nodes_current_lifetime_seconds{{{of_node}}}"] < 60
        assert seen['cluster_utilization_percent{resource_type="nvidia.com/gpu"}'] == 100.0
        price = 'instance_type="g4dn.xlarge",capacity_type="on-demand"'
        assert seen[f"cloudprovider_instance_type_offering_price_estimate{{{price}}}"] == 0.526
        assert seen['cloudprovider_duration_seconds_count{method="Create"}'] == 1

        [claim] = [one["metadata"]["name"] for one in world.claims()]
        await world.registry.delete(CLAIMS, None, claim)
        await world.until(lambda: claim not in str(world.claims()), seconds=200)
        seen = scrape(process)
        assert seen['nodeclaims_terminated_total{nodepool="gpu",capacity_type="on-demand",zone="zone-1"}'] == 1
        assert seen['nodes_terminated_total{nodepool="gpu",zone="zone-1"}'] == 1
        assert seen['nodes_drained_total{nodepool="gpu"}'] == 1
        assert seen['pods_drained_total{reason=""}'] == 1
        for name in ("nodeclaims_termination", "nodeclaims_instance_termination", "nodes_lifetime"):
            assert seen[f'{name}_duration_seconds_count{{nodepool="gpu"}}'] == 1, name


async def test_pods_of_disrupted_nodes_are_counted(world: AutoscalerWorld) -> None:
    async with world.autoscaling() as process:
        await world.add_pods(1)
        await world.until(world.bound)
        await world.pass_time(10)
        assert scrape(process)['nodepools_nodes_consuming_budgets{nodepool="gpu"}'] == 0
        await world.registry.delete("pods", "default", "p-1", grace=0)
        await world.until(lambda: not world.claims(), seconds=300)
        seen = scrape(process)
    labels = 'reason="empty",nodepool="gpu",capacity_type="on-demand",policy="WhenEmpty"'
    assert seen[f"pods_disruption_initiated_total{{{labels}}}"] == 0
    by_pool = 'nodepool="gpu",decision="delete",reason="empty",policy="WhenEmpty"'
    assert seen[f"voluntary_disruption_decisions_by_nodepool_total{{{by_pool}}}"] == 1


async def test_calls_of_the_cloud_are_counted_with_their_failures() -> None:
    clock = VirtualClock()
    cloud = FakeCloud(clock, aws_catalogue())
    metered = MeteredProvider(cloud, clock)
    cloud.closed = {("on-demand", "g4dn.xlarge", "zone-1")}
    offers = (Offering(0.526, "g4dn.xlarge", "zone-1", "on-demand"),)
    with pytest.raises(NoCapacity):
        await metered.launch(LaunchRequest("c", "t", "gpu", MachineClass("EC2NodeClass", "c"), offers))
    cloud._fault = lambda: CloudFault.BEFORE
    with pytest.raises(NoAnswer):
        await metered.terminate("aws:///zone-2/i-1")
    cloud._fault = lambda: CloudFault.NONE
    await metered.acknowledge(Interruption("health", "i-1", "receipt"))
    await metered.acknowledge(Interruption("impaired", "i-1", ""))
    text = exposition(metered.metrics()).decode()
    launch = 'zone="zone-1",capacity_type="on-demand",reason="InsufficientCapacity"'
    assert f"karpenter_cloudprovider_instance_launch_failures_total{{{launch}}} 1" in text
    assert 'karpenter_cloudprovider_instance_termination_failures_total{zone="zone-2"} 1' in text
    assert 'karpenter_cloudprovider_errors_total{method="Delete",error="NoAnswer"} 1' in text
    assert "karpenter_interruption_deleted_messages_total 1" in text


def test_durations_are_a_histogram() -> None:
    found = Durations((1.0, 10.0))
    for seconds in (0.5, 1.0, 5.0, 100.0, -3.0):
        found.observe(seconds, pool="a")
    text = exposition([found.family(Metric("x_seconds", MetricType.HISTOGRAM, "X."))]).decode()
    assert [line.rpartition(" ")[2] for line in text.splitlines()[2:]] == ["3", "4", "5", "106.5", "5"]
