"""A namespace with a GPU quota on a real API server: no pod that names its node gets GPUs, for any creator."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.operator.installation import installation, resource_of
from kubekit.api.core import ConfigMap, Event, Pod
from kubekit.api.kinds import built_in
from kubekit.kube import Client
from packages.gpuplane.tests.kubernetes.test_rbac import creation, in_force
from packages.gpuplane.tests.operator.rights.test_quota_node_name import POLICY, QUOTA, pod
from tests.support.realkube.life import account_config
from tests.support.realkube.watching import until_objects

LIMITED, FREE = sorted(QUOTA), "free"
TENANT = "tenant"
GPUS = (names.GPU_RESOURCE, names.VCUDA_CORE, "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared")


def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture
async def admin(own_control_plane: ControlPlane) -> AsyncIterator[Client]:
    """The installation's policies, quotas for two of three namespaces, and in each a tenant who may do all there."""
    async with Client.connect(own_control_plane.kubeconfig) as client:
        for manifest in installation():
            if manifest["kind"] not in ("ClusterPolicy", "Deployment"):
                await client.apply(manifest, "test", resource=resource_of(manifest))
        for namespace in (*LIMITED, FREE):
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
            subject = {"kind": "ServiceAccount", "name": TENANT, "namespace": namespace}
            for version, kind, body in (
                ("v1", "Namespace", {"metadata": {"name": namespace}}),
                ("v1", "ServiceAccount", {}),
                ("rbac.authorization.k8s.io/v1", "RoleBinding", {"roleRef": role, "subjects": [subject]}),
            ):
                resource = built_in(version, kind)
                manifest = {"apiVersion": version, "kind": kind, "metadata": {"name": TENANT}, **body}
                await client.create(manifest, namespace=namespace if resource.namespaced else None, resource=resource)
        quotas = {"metadata": {"name": names.QUOTA_CONFIGMAP, "namespace": names.QUOTA_NAMESPACE}}
        data = {names.QUOTA_KEY: json.dumps(QUOTA)}
        await client.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", **quotas, "data": data}, "test", resource=ConfigMap.RESOURCE
        )
        await in_force(functools.partial(creation, client, pods(LIMITED[0]), pod()))
        yield client


async def test_a_tenant_with_a_quota_does_not_go_round_it_by_naming_a_node(
    own_control_plane: ControlPlane, admin: Client
) -> None:
    for namespace in (*LIMITED, FREE):
        account = await account_config(own_control_plane, admin, namespace, TENANT)
        async with Client.connect(account) as tenant:
            for body in (*map(pod, GPUS), pod(init=True)):
                said = await creation(tenant, pods(namespace), body)
                if namespace == FREE:
                    assert POLICY not in said, body
                else:
                    assert POLICY in said and "remove spec.nodeName" in said, (namespace, body)
            assert "Limit must be set" in await creation(tenant, pods(namespace), pod(requests=True))
            # The scheduler's own way, and pods without GPUs, are free.
            for passes in (pod(nodeName=""), pod(None), pod("cpu")):
                assert POLICY not in await creation(tenant, pods(namespace), passes)


async def test_no_controller_makes_such_a_pod_for_a_tenant(own_control_plane: ControlPlane, admin: Client) -> None:
    account = await account_config(own_control_plane, admin, LIMITED[0], TENANT)
    labels = {"app": "round"}
    template = {"metadata": {"labels": labels}, "spec": pod()["spec"]}
    spec: dict[str, Any] = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    resource = built_in("apps/v1", "ReplicaSet")
    manifest = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "round"}, "spec": spec}
    async with Client.connect(account) as tenant:
        await tenant.create(manifest, namespace=LIMITED[0], resource=resource)
    await until_objects(admin, Event, lambda events: any(POLICY in event.message for event in events))
    assert await admin.list(Pod, LIMITED[0]) == []
