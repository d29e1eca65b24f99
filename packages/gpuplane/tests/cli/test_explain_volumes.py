"""`gpuplane explain` names a node to buy only where the volumes of the pod are, as far as the user may read that."""

from __future__ import annotations

import io
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.api.karpenter import PoolRequirement, Provisioner
from gpuplane.api.karpenter_crds import karpenter_crds
from gpuplane.autoscaler.volumes import VolumeFacts
from gpuplane.cli.explain_text import page
from gpuplane.cli.terminal import Console
from gpuplane.explain.answer import Explanation
from gpuplane.explain.pools import PoolFacts, pool_answers
from gpuplane.explain.volume_reading import read_volumes
from gpuplane.explain.with_pools import with_pools
from gpuplane.operator.installation import resource_of
from kubekit.kube import ApiEndpoint, Client
from kubekit.kube.auth import StaticAuth
from packages.gpuplane.tests.autoscaler.volume_objects import ZONE, claim, storage, term, volume
from packages.gpuplane.tests.cli.explained_pools import SHARING, TYPES, pod, pool
from tinykube.apiserver.identity import ADMIN, service_account_user
from tinykube.apiserver.server import ApiServer

HERE, THERE = "eu-central-1a", "eu-central-1b"
DATA = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
SCRATCH = [{"name": "s", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "zonal"}}}}]


def in_zones(*zones: str) -> PoolRequirement:
    return PoolRequirement(key=ZONE, operator="In", values=zones)


def facts(**more: Any) -> PoolFacts:
    claims = {"ml/data": claim("data", volumeName="pv")}
    volumes = VolumeFacts(
        claims.get, {"pv": volume("pv", term(zone=[THERE]))}.get, {"zonal": storage("zonal", [THERE])}.get
    )
    pools = [pool("gpu"), pool("here")]
    requirements = (*pools[1].requirements, in_zones(HERE))
    pools[1] = type(pools[1])("here", requirements=requirements)
    return PoolFacts(pools, sharing=SHARING, region="eu-central-1", **{"volumes": volumes, **more})


@pytest.mark.parametrize("volumes", [DATA, SCRATCH], ids=["bound", "to come"])
def test_a_pool_of_another_zone_than_the_volume_buys_nothing(volumes: list[dict[str, Any]]) -> None:
    free, other = pool_answers(pod(volumes=volumes), facts())
    assert (free.pool, free.type) == ("gpu", "g4dn.xlarge")
    assert other.why_not == f"a volume of the pod wants {ZONE} In {THERE}, and no node of the pool would have it"
    assert not other.cures


def test_a_claim_that_no_node_can_help_is_the_answer_of_every_pool() -> None:
    lost = [{"name": "data", "persistentVolumeClaim": {"claimName": "lost"}}]
    assert {one.why_not for one in pool_answers(pod(volumes=lost), facts())} == {"its volume claim lost does not exist"}


def test_volumes_in_two_zones_are_the_reason_together() -> None:
    both = [*DATA, {"name": "more", "persistentVolumeClaim": {"claimName": "more"}}]
    claims = {f"ml/{name}": claim(name, volumeName=name) for name in ("data", "more")}
    volumes = {name: volume(name, term(zone=[zone])) for name, zone in (("data", HERE), ("more", THERE))}
    found = pool_answers(pod(volumes=both), facts(volumes=VolumeFacts(claims.get, volumes.get)))
    assert {one.pool: one.why_not for one in found}["gpu"] == (
        "no node of the pool would have what the volumes of the pod want together"
    )


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = await ApiServer.start(tmp_path / "pki")
    server.extensions.identity.add("admin", ADMIN)
    server.extensions.identity.add("guest", service_account_user("ml", "guest"))
    yield server
    await server.stop()


class Counting(Client):
    """A client that notes the paths of its requests."""

    paths: list[str]

    async def request(self, method: str, path: str, *more: Any, **fields: Any) -> bytes:
        self.paths.append(path)
        return await super().request(method, path, *more, **fields)


def connected(server: ApiServer, who: str = "admin") -> Counting:
    tls = ssl.create_default_context(cafile=str(server.authority))
    client = Counting(ApiEndpoint(host="127.0.0.1", port=server.port, auth=StaticAuth(token=who), tls=tls))
    client.paths = []
    return client


async def furnish(server: ApiServer, claims: int = 1) -> None:
    size = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    create = server.registry.create
    await create("namespaces", None, {"metadata": {"name": "ml"}})
    for number in range(claims):
        name = f"data-{number}" if number else "data"
        spec = {**size, "volumeName": "pv"} if not number else {**size, "storageClassName": "zonal"}
        await create("persistentvolumeclaims", "ml", {"metadata": {"name": name}, "spec": spec})
    required = {"nodeSelectorTerms": [term(zone=[THERE])]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "d", "volumeHandle": "v"},
    }
    await create(
        "persistentvolumes",
        None,
        {"metadata": {"name": "pv"}, "spec": {**spec, "nodeAffinity": {"required": required}}},
    )
    allowed = [{"matchLabelExpressions": [{"key": ZONE, "values": [HERE]}]}]
    body = {"metadata": {"name": "zonal"}, "provisioner": "d", "allowedTopologies": allowed}
    await create(("storage.k8s.io", "storageclasses"), None, {**body, "volumeBindingMode": "WaitForFirstConsumer"})


async def test_a_pod_without_claims_costs_no_request_and_another_one_few(server: ApiServer) -> None:
    await furnish(server)
    async with connected(server) as client:
        assert (await read_volumes(client, [pod(volumes=[{"name": "tmp", "emptyDir": {}}])])).facts.complete
        assert client.paths == []
        found = await read_volumes(client, [pod(volumes=[*DATA, *SCRATCH])])
        assert len(client.paths) == 4, "the claim, that of the template, the volume, the class"
    named = found.facts.claim("ml/data")
    placed, made = found.facts.volume("pv"), found.facts.storage_class("zonal")
    assert named is not None and placed is not None and made is not None
    assert (named.spec.volume_name, len(placed.terms), len(made.terms)) == ("pv", 1, 1)
    assert found.facts.complete and not found.unread


async def test_many_claims_are_one_list(server: ApiServer) -> None:
    await furnish(server, claims=30)
    pods = [
        pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": f"data-{number}"}}])
        for number in range(1, 30)
    ]
    async with connected(server) as client:
        found = await read_volumes(client, pods)
        assert len(client.paths) == 2
    assert all(found.facts.claim(f"ml/data-{number}") is not None for number in range(1, 30))


async def test_a_user_who_may_not_read_them_gets_the_answer_without_them_and_a_line_that_says_so(
    server: ApiServer,
) -> None:
    await furnish(server)
    zones = [{"key": TYPES.key, "operator": "In", "values": ["g4dn.xlarge"]}]
    zones.append({"key": ZONE, "operator": "In", "values": [HERE]})
    provisioner: dict[str, Any] = {
        "apiVersion": Provisioner.RESOURCE.api_version,
        "kind": "Provisioner",
        "metadata": {"name": "gpu"},
        "spec": {"provider": {"launchTemplate": "gpu", "subnetSelector": {"a": "b"}}, "requirements": zones},
    }
    asked, waits = pod(volumes=DATA), Explanation("ml/train", "waiting", asks="1 GPU")
    rules = [
        {"apiGroups": ["karpenter.sh"], "resources": ["*"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get"]},
    ]
    group = "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "some"}
    subject = {"kind": "ServiceAccount", "name": "guest", "namespace": "ml"}
    async with connected(server) as admin, connected(server, "guest") as guest:
        for definition in karpenter_crds():
            await admin.apply(definition, "test", resource=resource_of(definition))
        await admin.request("POST", Provisioner.RESOURCE.path(), None, provisioner)
        meta = {"metadata": {"name": "some"}}
        await server.registry.create((group, "clusterroles"), None, {**meta, "rules": rules})
        binding = {**meta, "roleRef": role, "subjects": [subject]}
        await server.registry.create((group, "clusterrolebindings"), None, binding)
        [full] = await with_pools(admin, [asked], [waits], [])
        [part] = await with_pools(guest, [asked], [waits], [])
        [none] = await with_pools(guest, [pod()], [waits], [])
    assert "a volume of the pod wants" in full.pools[0].why_not and not full.unread_volumes
    assert part.pools[0].type == "g4dn.xlarge"
    line = "Where its volumes are is left out: persistentvolumes may not be read."
    assert [line in page(one, Console(io.StringIO(), io.StringIO())) for one in (full, part, none)] == [
        False,
        True,
        False,
    ]
