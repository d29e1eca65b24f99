"""A fault of each kind that the doctor names, injected into a healthy cluster."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gpuplane import names
from gpuplane.admission.trust import MutatingConfiguration, ValidatingConfiguration, plan_of
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import NOT_LISTED, GPUNode
from kubekit.api.core import CustomResourceDefinition, DaemonSet, Deployment, Event, LeaseObject
from kubekit.kube.server_certificates import CertificatePlan, make
from packages.gpuplane.tests.cli.doctor.healthy_cluster import NODE, PLUGIN, PLUGIN_POD, SPACE, HealthyCluster
from tinykube.apiserver import discovery

Inject = Callable[[HealthyCluster], Awaitable[Any]]
KINDS: Final = (MutatingConfiguration, ValidatingConfiguration)
CRD = "gpunodes.gpuplane.dev"


async def old_kubernetes(cluster: HealthyCluster) -> None:
    discovery.VERSION["gitVersion"] = "v1.28.4"


async def other_program(cluster: HealthyCluster) -> None:
    image = "registry:5000/gpuplane:0.0.7"
    container = {"name": "gpu-operator", "image": image, "env": [{"name": "GPUPLANE_IMAGE", "value": image}]}
    await patch_template(cluster, Deployment, "gpu-operator", {"containers": [container]})
    for one in await cluster.client.list(DaemonSet, SPACE):
        containers = [{"name": c.name, "image": image} for c in one.spec.template.spec.containers]
        others = [{"name": c.name, "image": image} for c in one.spec.template.spec.init_containers]
        await patch_template(
            cluster, DaemonSet, one.metadata.name, {"containers": containers, "initContainers": others or None}
        )
        await cluster.observed(one.metadata.name)
    await cluster.world.delete(PLUGIN_POD, SPACE)
    await cluster.plugin_pod()


async def patch_template(cluster: HealthyCluster, kind: Any, name: str, spec: dict[str, Any]) -> None:
    await cluster.client.patch(kind, name, {"spec": {"template": {"spec": spec}}}, SPACE, type="strategic")


async def missing_definition(cluster: HealthyCluster) -> None:
    await cluster.client.delete(CustomResourceDefinition, CRD)


async def other_definition(cluster: HealthyCluster) -> None:
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/summary/properties/free"
    await cluster.client.patch(CustomResourceDefinition, CRD, [{"op": "remove", "path": path}], type="json")


async def no_operator(cluster: HealthyCluster) -> None:
    await cluster.client.delete(Deployment, "gpu-operator", SPACE)


async def crashing_extender(cluster: HealthyCluster) -> None:
    await cluster.available(names.EXTENDER_NAME, 1)


async def nobody_leads(cluster: HealthyCluster) -> None:
    await cluster.client.delete(LeaseObject, names.AUTOSCALER_NAME, SPACE)


async def silent_leader(cluster: HealthyCluster) -> None:
    await cluster.renew("gpuplane-operator", seconds=-300)


async def no_policy(cluster: HealthyCluster) -> None:
    await cluster.client.delete(ClusterPolicy, "cluster-policy")


async def second_policy(cluster: HealthyCluster) -> None:
    body = {"metadata": {"name": "zz-mine"}, "spec": {}}
    await cluster.client.apply(body, "test", resource=ClusterPolicy.RESOURCE)


async def paused(cluster: HealthyCluster) -> None:
    change = {"metadata": {"annotations": {names.PAUSED_ANNOTATION: "true"}}}
    await cluster.client.patch(ClusterPolicy, "cluster-policy", change)


async def refused(cluster: HealthyCluster) -> None:
    error = {"type": "Error", "status": "True", "reason": "Forbidden", "message": "daemonsets are forbidden",
             "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    await cluster.client.patch(
        ClusterPolicy, "cluster-policy", {"status": {"conditions": [error]}}, subresource="status"
    )


async def no_pod_scheduler(cluster: HealthyCluster) -> None:
    change = {"spec": {"operator": {"setSchedulerName": True}}}
    await cluster.client.patch(ClusterPolicy, "cluster-policy", change)


async def other_image(cluster: HealthyCluster) -> None:
    containers = [{"name": "device-plugin", "image": "registry:5000/gpuplane:0.0.1"}]
    await patch_template(cluster, DaemonSet, PLUGIN, {"containers": containers})
    await cluster.observed(PLUGIN)
    await cluster.world.delete(PLUGIN_POD, SPACE)


async def no_controllers(cluster: HealthyCluster) -> None:
    await patch_template(cluster, DaemonSet, PLUGIN, {"terminationGracePeriodSeconds": 16})


async def old_pod(cluster: HealthyCluster) -> None:
    await cluster.world.delete(PLUGIN_POD, SPACE)
    labels = {"app.kubernetes.io/name": PLUGIN}
    await cluster.pod(PLUGIN_POD, SPACE, [{"name": "device-plugin", "image": "gpuplane:0.0.1"}], labels=labels)


async def crashing_operand(cluster: HealthyCluster) -> None:
    ended = {"exitCode": 1, "message": "starting\nno /dev/nvidiactl\n", "startedAt": None, "finishedAt": None}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    await cluster.runs(
        PLUGIN_POD, "device-plugin", waiting, restartCount=7, lastState={"terminated": ended}, ready=False
    )


async def lost_gpu(cluster: HealthyCluster) -> None:
    await cluster.gpus(NODE, {f"GPU-{NODE}-1": NOT_LISTED})


async def silent_node(cluster: HealthyCluster) -> None:
    await cluster.client.delete(GPUNode, NODE)


async def clock_ahead(cluster: HealthyCluster) -> None:
    await cluster.renew(NODE, "kube-node-lease", seconds=120)


async def clock_behind(cluster: HealthyCluster) -> None:
    await cluster.renew(NODE, "kube-node-lease", seconds=-600)


async def plain_scheduler(cluster: HealthyCluster) -> None:
    await cluster.scheduler()


async def bypassed(cluster: HealthyCluster) -> None:
    await cluster.world.delete("tune")
    uid = await cluster.share("past", by_extender=False)
    event = {
        "metadata": {"name": "past.1", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "past", "uid": uid},
        "reason": names.EXTENDER_NOT_ASKED,
        "type": "Warning",
    }
    await cluster.client.request("POST", Event.RESOURCE.path("default"), None, event)


async def never_called(cluster: HealthyCluster) -> None:
    await cluster.world.delete("tune")
    await cluster.share("past", by_extender=False)


async def bundles(cluster: HealthyCluster, bundle: bytes, kinds: tuple[Any, ...] = KINDS) -> None:
    """Write another caBundle into all webhooks of these configurations."""
    for kind in kinds:
        found = await cluster.client.get(kind, names.ADMISSION_NAME)
        change = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
            for index, _ in enumerate(found.webhooks)
        ]
        await cluster.client.patch(kind, names.ADMISSION_NAME, change, type="json")


def authorities(days: float, plan: CertificatePlan | None = None) -> bytes:
    """Return the authorities of a certificate that was made `days` ago."""
    moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
    return make(plan or plan_of(SPACE), moment).authorities


async def untrusted(cluster: HealthyCluster) -> None:
    await bundles(cluster, authorities(1, CertificatePlan("another", ("localhost",))))


async def different(cluster: HealthyCluster) -> None:
    await bundles(cluster, authorities(10), (MutatingConfiguration,))


async def expired(cluster: HealthyCluster) -> None:
    await bundles(cluster, authorities(91))


async def expires(cluster: HealthyCluster) -> None:
    await bundles(cluster, authorities(80))


async def no_server(cluster: HealthyCluster) -> None:
    await cluster.client.delete(Deployment, names.ADMISSION_NAME, SPACE)


async def full_quota(cluster: HealthyCluster) -> None:
    await cluster.quota("5", "5")


async def broken_quotas(cluster: HealthyCluster) -> None:
    await cluster.world.quota('{"ml": {"quota": {"T4": "many"}}}')


FAULTS: Final[dict[str, Inject]] = {
    "kubernetes-too-old": old_kubernetes,
    "program-differs": other_program,
    "crd-missing": missing_definition,
    "crd-differs": other_definition,
    "no-operator": no_operator,
    "component-unavailable": crashing_extender,
    "lease-not-held": nobody_leads,
    "lease-stale": silent_leader,
    "no-policy": no_policy,
    "policy-ignored": second_policy,
    "policy-paused": paused,
    "policy-refused": refused,
    "scheduler-name-not-set": no_pod_scheduler,
    "operand-image-differs": other_image,
    "operand-not-observed": no_controllers,
    "operand-pod-old": old_pod,
    "operand-not-running": crashing_operand,
    "gpu-lost": lost_gpu,
    "node-without-report": silent_node,
    "clock-ahead": clock_ahead,
    "clock-behind": clock_behind,
    "scheduler-unconfigured": plain_scheduler,
    "extender-not-asked": bypassed,
    "extender-never-called": never_called,
    "webhook-untrusted": untrusted,
    "webhook-authorities-differ": different,
    "webhook-expired": expired,
    "webhook-expires-soon": expires,
    "webhook-without-server": no_server,
    "resource-quota-full": full_quota,
    "gpu-quotas-unreadable": broken_quotas,
}
