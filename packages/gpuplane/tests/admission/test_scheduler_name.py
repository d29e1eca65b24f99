"""Pods that request GPUs get the pod scheduler's name, where the ClusterPolicy says so and the scheduler leads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuplane import names
from gpuplane.admission.scheduler_name import PodSchedulerWatch, scheduler_patch
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.operator.installation import installation
from kubekit.api.core import LeaseObject
from kubekit.errors import InvalidInput
from kubekit.kube import ApiError
from tests.support.until import until
from tests.support.virtual_time import VirtualClock

OURS = names.SCHEDULER_NAME
OWNER = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}


@pytest.mark.parametrize("scheduler", ["", "default-scheduler"])
def test_a_pod_that_requests_gpus_and_names_no_scheduler_is_given_to_ours(make_pod: Any, scheduler: str) -> None:
    for limits in ({"gpu": 1}, {"vcuda_core": 30, "vcuda_memory": 4}, {"alpha": 1}):
        pod = make_pod(**limits)
        pod["spec"]["schedulerName"] = scheduler
        assert scheduler_patch(pod, OURS) == ({"op": "add", "path": "/spec/schedulerName", "value": OURS},)
    first = make_pod()
    first["spec"]["initContainers"] = make_pod(gpu=1)["spec"]["containers"]
    assert scheduler_patch(first, OURS)


@pytest.mark.parametrize(
    ("metadata", "spec"),
    [
        ({}, {"schedulerName": "volcano"}),
        ({}, {"schedulerName": OURS}),
        ({}, {"nodeName": "n1"}),
        ({"ownerReferences": [OWNER]}, {}),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, {}),
        ({"annotations": {"scheduling.volcano.sh/group-name": "g"}}, {}),
        ({}, {"workloadRef": {"name": "w"}}),
        ({}, {"containers": [{"name": "c", "image": "i"}]}),
    ],
)
def test_every_other_pod_keeps_its_scheduler(make_pod: Any, metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    pod = make_pod(gpu=1)
    pod["metadata"] |= metadata
    pod["spec"] |= spec
    assert scheduler_patch(pod, OURS) == ()


@pytest.mark.parametrize("options", [{"pod_scheduler": False}, {"pod_scheduler": True, "admission": ""}])
def test_an_installation_that_could_not_do_it_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="not installed"):
        installation(settings=["operator.setSchedulerName=true"], **options)


def test_the_webhook_is_installed_with_the_pod_scheduler_and_never_in_the_way() -> None:
    def of(kind: str, name: str, **options: Any) -> list[dict[str, Any]]:
        return [one for one in installation(**options) if (one["kind"], one["metadata"]["name"]) == (kind, name)]

    webhook = "MutatingWebhookConfiguration", names.SCHEDULER_NAME_WEBHOOK
    assert not of(*webhook) and not of(*webhook, pod_scheduler=True, admission="")
    (made,) = of(*webhook, pod_scheduler=True, admission="closed", settings=["operator.setSchedulerName=true"])
    assert [one["failurePolicy"] for one in made["webhooks"]] == ["Ignore"]
    for options, named in (({}, False), ({"pod_scheduler": True}, True)):
        (server,) = of("Deployment", names.ADMISSION_NAME, **options)
        (container,) = server["spec"]["template"]["spec"]["containers"]
        assert (f"--scheduler-name={OURS}" in container["args"]) is named


# -- the policy and the lease --------------------------------------------------------------------------------------
class Leading:
    """The scheduler's lease on the API server, renewed by hand."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.renewed = 0

    async def renew(self, holder: str = "replica") -> None:
        self.renewed += 1
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "renewTime": f"2026-01-01T00:00:{self.renewed:02}.000000Z",
        }
        meta = {"name": names.EXTENDER_NAME, "namespace": names.OPERATOR_NAMESPACE}
        body = {"metadata": meta, "spec": spec}
        await self.world.admin.apply(body, "test", resource=LeaseObject.RESOURCE)


async def policy(world: Any, *, sets: bool) -> None:
    body = {"metadata": {"name": "cluster-policy"}, "spec": {"operator": {"setSchedulerName": sets}}}
    await world.admin.apply(body, "test", resource=ClusterPolicy.RESOURCE)


async def given_to(world: Any, pod: dict[str, Any], wanted: str) -> None:
    """Until new pods like this one get the wanted scheduler: the webhook hears of policy and lease by watches."""
    made = 0

    async def is_wanted() -> bool:
        nonlocal made
        made += 1
        named = {**pod, "metadata": {**pod["metadata"], "name": f"{pod['metadata']['name']}-{made}"}}
        try:
            stored = await world.create(named)
        except ApiError:
            return False  # the webhook refuses what can never run, and has no certificate yet
        name: str = stored["spec"].get("schedulerName") or "default-scheduler"
        return name == wanted

    await until(is_wanted, what=f"pods are given to {wanted}")


async def test_new_pods_are_given_to_the_pod_scheduler_while_the_policy_says_so(world: Any, make_pod: Any) -> None:
    await world.install("open", pod_scheduler=True)
    leading = Leading(world)
    await leading.renew()
    await policy(world, sets=False)
    await world.start()
    assert (await world.create(make_pod("before", gpu=1)))["spec"].get("schedulerName") in (None, "default-scheduler")
    await policy(world, sets=True)
    await given_to(world, make_pod("whole", gpu=1), OURS)
    assert (await world.create(make_pod("share", vcuda_core=30, vcuda_memory=4)))["spec"]["schedulerName"] == OURS
    plain = await world.create(make_pod("plain"))
    assert plain["spec"].get("schedulerName") in (None, "default-scheduler")
    theirs = make_pod("theirs", gpu=1)
    theirs["spec"]["schedulerName"] = "volcano"
    assert (await world.create(theirs))["spec"]["schedulerName"] == "volcano"
    placed = make_pod("placed", gpu=1)
    placed["spec"]["nodeName"] = "n1"
    assert (await world.create(placed))["spec"].get("schedulerName") in (None, "default-scheduler")
    owned = make_pod("owned", gpu=1)
    owned["metadata"]["ownerReferences"] = [OWNER]
    assert (await world.create(owned))["spec"].get("schedulerName") in (None, "default-scheduler")
    await policy(world, sets=False)
    await given_to(world, make_pod("after", gpu=1), "default-scheduler")


async def test_without_the_webhook_or_a_leader_pods_stay_with_default_scheduler(world: Any, make_pod: Any) -> None:
    await world.install("open", pod_scheduler=True)
    leading = Leading(world)
    await policy(world, sets=True)
    port = await world.start()
    assert (await world.create(make_pod("early", gpu=1)))["spec"].get("schedulerName") in (None, "default-scheduler")
    await leading.renew()
    await given_to(world, make_pod("led", gpu=1), OURS)
    await leading.renew(holder="")
    await given_to(world, make_pod("left", gpu=1), "default-scheduler")
    await leading.renew()
    await given_to(world, make_pod("again", gpu=1), OURS)
    await world.stop(port)
    assert (await world.create(make_pod("away", gpu=1)))["spec"].get("schedulerName") in (None, "default-scheduler")


async def test_a_lease_that_is_not_renewed_has_no_leader(world: Any) -> None:
    await world.install("open", pod_scheduler=True)
    clock, leading = VirtualClock(), Leading(world)
    await leading.renew()
    await policy(world, sets=True)
    watch = PodSchedulerWatch(world.client("admission"), names.OPERATOR_NAMESPACE, OURS, clock)
    task = asyncio.create_task(watch.run())
    try:
        await until(watch.sets_name, what="it leads")
        clock.jump(14)
        assert watch.sets_name()
        clock.jump(1)
        assert not watch.sets_name()
        await leading.renew()
        await until(watch.sets_name, what="it leads again")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
