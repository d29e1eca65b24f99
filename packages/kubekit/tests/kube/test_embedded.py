"""The client against the embedded API server: the same protocol that kubectl and the production components speak.

These tests cover what the small fake server lacks: TLS, real resource versions and 410s, field ownership, CRDs.
"""

from __future__ import annotations

import asyncio
import ssl
import time

import pytest

from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.crds import crds
from gpuplane.api.gpunode import GPUNode
from kubekit.api.core import ConfigMap, CustomResourceDefinition, Event, Node, Pod
from kubekit.api.meta import ObjectMeta
from kubekit.kube import (
    AlreadyExists,
    ApiEndpoint,
    Client,
    Conflict,
    EventRecorder,
    Gone,
    Informer,
    Invalid,
    Lease,
    NotFound,
    ServerError,
    Unauthorized,
)
from kubekit.kube.auth import StaticAuth
from tinykube.apiserver.identity import ADMIN
from tinykube.apiserver.server import ApiServer


@pytest.fixture
async def server(tmp_path):
    server = await ApiServer.start(tmp_path / "pki")
    server.extensions.identity.add("admin", ADMIN)
    yield server
    await server.stop()


@pytest.fixture
async def client(server):
    async with connect(server) as client:
        yield client


def connect(server, token="admin"):
    tls = ssl.create_default_context(cafile=str(server.authority))
    return Client(ApiEndpoint(host="127.0.0.1", port=server.port, auth=StaticAuth(token=token), tls=tls))


async def install(client):
    """The CRDs, and a wait until they are served."""
    for definition in crds():
        await client.apply(definition, "test")
    async with asyncio.timeout(60):
        for definition in crds():
            name = definition["metadata"]["name"]
            while not any(
                condition.type == "Established" and condition.status == "True"
                for condition in (await client.get(CustomResourceDefinition, name)).status.conditions
            ):
                pass


async def test_the_servers_clock_is_read_from_its_answers(client):
    assert abs(await client.server_time() - time.time()) < 5


async def test_the_servers_clock_needs_a_known_user(server):
    async with connect(server, "nobody") as stranger:
        with pytest.raises(Unauthorized):
            await stranger.server_time()


async def test_verbs(client):
    made = await client.create(ConfigMap(metadata=ObjectMeta(name="c", namespace="default"), data={"a": "1"}))
    assert made.metadata.uid
    with pytest.raises(AlreadyExists):
        await client.create(ConfigMap(metadata=ObjectMeta(name="c", namespace="default")))
    await client.patch(ConfigMap, "c", {"data": {"b": "2"}}, "default")
    await client.patch(ConfigMap, "c", [{"op": "remove", "path": "/data/a"}], "default", type="json")
    assert (await client.get(ConfigMap, "c", "default")).data == {"b": "2"}
    with pytest.raises(Conflict):
        await client.replace(made)
    with pytest.raises(Conflict):
        await client.delete(ConfigMap, "c", "default", uid="another")
    await client.delete(ConfigMap, "c", "default", uid=made.metadata.uid)
    with pytest.raises(NotFound):
        await client.get(ConfigMap, "c", "default")


async def test_who_is_unknown_is_refused(server):
    async with connect(server, "nobody") as client:
        with pytest.raises(Unauthorized):
            await client.list(Node)


async def test_apply_owns_fields(client):
    meta = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}}
    await client.apply({**meta, "data": {"a": "1"}}, "one")
    with pytest.raises(Conflict) as caught:
        await client.apply({**meta, "data": {"a": "2"}}, "two", force=False)
    assert caught.value.causes
    await client.apply({**meta, "data": {"b": "1"}}, "two")
    assert (await client.apply(meta, "one"))["data"] == {"b": "1"}


async def test_an_informer_follows_pages_and_changes(client):
    for i in range(30):
        await client.create(Node(metadata=ObjectMeta(name=f"n{i:02}")))
    informer = Informer(client, Node)
    gone, changed = asyncio.Event(), asyncio.Event()

    def seen(old, new):
        if new is None:
            gone.set()
        elif new.metadata.labels.get("a") == "b":
            changed.set()

    informer.add_handler(seen)
    informer.start()
    await informer.synced()
    assert len(informer) == 30
    await client.patch(Node, "n03", {"metadata": {"labels": {"a": "b"}}})
    await client.delete(Node, "n04")
    async with asyncio.timeout(60):
        await asyncio.gather(gone.wait(), changed.wait())
    assert informer.get("n04") is None
    assert informer.lists == 1
    await informer.stop()


async def test_a_version_of_another_life_does_not_wait_for_ever(client):
    """A server without persistence counts versions from 1 again; informers hold versions of the previous server."""
    with pytest.raises((Gone, ServerError)):
        async with asyncio.timeout(60):
            await anext(client.watch(Pod, resource_version="99999999"))


async def test_election_and_events(client):
    led = asyncio.Event()

    async def work():
        led.set()

    await Lease(client, "operator", "default", "me").lead(work)
    assert led.is_set()
    node = await client.create(Node(metadata=ObjectMeta(name="n1")))
    recorder = EventRecorder(client, "gpuplane-test")
    for _ in range(3):
        recorder.event(node, "Normal", "StageDone", "driver: 570.133.20")
    await recorder.aclose()
    (event,) = await client.list(Event, "default", fields="involvedObject.name=n1")
    assert (event.count, event.reason, event.involved_object.kind) == (3, "StageDone", "Node")


async def test_a_bad_policy_is_refused_with_every_error(client):
    await install(client)
    bad = {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"mig": {"strategy": "some"}, "driver": {"enabled": "yes"}, "toolkit": {"installDir": "usr"}},
    }
    with pytest.raises(Invalid) as caught:
        await client.create(bad, resource=ClusterPolicy.RESOURCE)
    assert {cause.partition(":")[0] for cause in caught.value.causes} >= {
        "spec.driver.enabled",
        "spec.mig.strategy",
        "spec.toolkit.installDir",
    }
    combination = bad | {"spec": {"cdi": {"enabled": False, "nriPluginEnabled": True}}}
    with pytest.raises(Invalid, match="nriPluginEnabled needs enabled"):
        await client.create(combination, resource=ClusterPolicy.RESOURCE)
    await client.create(bad | {"spec": {}}, resource=ClusterPolicy.RESOURCE)
    assert (await client.get(ClusterPolicy, "p")).spec == ClusterPolicy().spec


async def test_a_gpunode_is_written_section_by_section(client):
    await install(client)
    meta = {"apiVersion": "gpuplane.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": "n1"}}
    driver = {"stages": {"driver": {"state": "done"}}, "summary": {"stage": "toolkit", "gpus": "8/8"}}
    toolkit = {"stages": {"toolkit": {"state": "failed", "reason": "NoSocket"}}, "summary": {"stage": "toolkit"}}
    await client.apply({**meta, "status": driver}, "gpuplane-driver", resource=GPUNode.RESOURCE)
    await client.apply({**meta, "status": toolkit}, "gpuplane-toolkit", resource=GPUNode.RESOURCE)
    node = await client.get(GPUNode, "n1")
    assert set(node.status.stages) == {"driver", "toolkit"}
    for status in (
        {"stages": {"driver": {"state": "failed"}}},
        {"stages": {"drivr": {"state": "done"}}},
        {"summary": {"gpus": "eight"}},
    ):
        with pytest.raises(Invalid):
            await client.apply({**meta, "status": status}, "gpuplane-driver", resource=GPUNode.RESOURCE)
