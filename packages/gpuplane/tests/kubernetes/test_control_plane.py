"""The fixture itself: a control plane of the pinned version, there again after any process of it is killed."""

from __future__ import annotations

import json
import uuid

import pytest

from gpulab.kubernetes import binaries
from gpulab.kubernetes.control_plane import PARTS, ControlPlane
from kubekit.kube import Client


async def test_it_is_the_version_that_the_module_pins(control_plane: ControlPlane) -> None:
    async with Client.connect(control_plane.kubeconfig) as client:
        found = json.loads(await client.request("GET", "/version"))
    assert found["gitVersion"] == binaries.version("kubernetes")


@pytest.mark.parametrize("part", PARTS)
async def test_a_killed_process_starts_again_and_nothing_is_lost(control_plane: ControlPlane, part: str) -> None:
    name = f"kept-{part}-{uuid.uuid4().hex[:8]}"  # a second try finds what the first one left
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}}
    control_plane.start()  # an API server may end a while after it lost etcd; what keeps it running starts it again
    async with Client.connect(control_plane.kubeconfig) as client:
        await client.create(manifest, namespace="default")
    control_plane.kill(part)
    control_plane.start()
    async with Client.connect(control_plane.kubeconfig) as client:
        found = json.loads(await client.request("GET", f"/api/v1/namespaces/default/configmaps/{name}"))
    assert found["data"] == {"a": "1"}
