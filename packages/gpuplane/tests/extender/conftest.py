"""What the extender's tests share; what it is made of stands in extender_world.py."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.operator.installation import installation, resource_of
from kubekit.kube import ApiEndpoint, Client
from kubekit.kube.auth import StaticAuth
from tests.support.extender_world import Running, World, extender, world
from tinykube.apiserver.identity import User

ACCOUNT = "system:serviceaccount:gpu-operator:gpuplane-scheduler"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """An API server without nodes."""
    async with world(tmp_path) as made:
        yield made


@pytest.fixture
async def running(cluster: World) -> AsyncIterator[Running]:
    """An extender that follows it; in the end nothing may be given twice."""
    async with extender(cluster.client) as made:
        yield made
        made.well()


@pytest.fixture
async def account(cluster: World) -> AsyncIterator[Client]:
    """A client with the extender's own account, by the token "scheduler", on a cluster with the installation."""
    for manifest in installation():
        if manifest["kind"] not in ("CustomResourceDefinition", "ClusterPolicy"):
            await cluster.client.apply(manifest, "test", resource=resource_of(manifest))
    groups = ("system:serviceaccounts", "system:serviceaccounts:gpu-operator", "system:authenticated")
    cluster.server.extensions.identity.add("scheduler", User(name=ACCOUNT, groups=groups))
    tls = ssl.create_default_context(cafile=str(cluster.server.authority))
    endpoint = ApiEndpoint(host="127.0.0.1", port=cluster.server.port, auth=StaticAuth(token="scheduler"), tls=tls)
    async with Client(endpoint) as client:
        yield client
