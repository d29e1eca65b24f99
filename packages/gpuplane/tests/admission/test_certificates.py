"""Certificates of the webhook: agreed on, announced, renewed in time, whatever clocks, replicas and people do."""

from __future__ import annotations

import asyncio
import base64
import datetime
from typing import Any

import pytest

from gpuplane import names
from gpuplane.admission.trust import announce
from gpuplane.operator.installation import installation, resource_of
from kubekit.api.core import Secret
from kubekit.kube import NotFound
from kubekit.kube.certificate_keeper import LOOK_SECONDS, SPREAD_SECONDS, CertificateKeeper
from kubekit.kube.server_certificates import LIFETIME, CertificatePlan, ServerCertificates, make, read, trusts
from kubekit.server_tls import ServerTls

NOW = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
PLAN = CertificatePlan("test", ("a.b.svc", "localhost"))
NAMESPACE = names.OPERATOR_NAMESPACE


def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


# -- keeping -----------------------------------------------------------------------------------------------------------


class Replica:
    """A keeper in virtual time; `shows` is what its server would show."""

    def __init__(self, world: Any) -> None:
        self.client = world.client("admission")
        self.wall = NOW
        self.now = 0.0
        self.shows: list[ServerCertificates] = []
        self.keeper = CertificateKeeper(
            self.client,
            names.ADMISSION_SECRET,
            NAMESPACE,
            PLAN,
            lambda kept: announce(self.client, kept),
            self.shows.append,
            cure="gpuplane install --admission open",
            wall=lambda: self.wall,
            now=lambda: self.now,
            sleep=asyncio.sleep,
        )

    async def look(self, *, after: float = 0.0) -> float:
        """A look `after` seconds."""
        self.now += after
        self.wall += datetime.timedelta(seconds=after)
        return await self.keeper.look()


@pytest.fixture
async def replicas(world: Any) -> Any:
    """The installation's objects and two replicas that have not looked yet."""
    await world.install()
    both = Replica(world), Replica(world)
    yield both
    for replica in both:
        await replica.client.aclose()


async def stored(world: Any) -> ServerCertificates:
    return read((await world.admin.get(Secret, names.ADMISSION_SECRET, NAMESPACE)).data)


def bundles(world: Any) -> set[bytes]:
    return {base64.b64decode(bundle) for bundle in world.bundles()}


async def test_the_first_look_makes_a_certificate_and_the_api_server_trusts_it(world, replicas):
    first, second = replicas
    assert not first.keeper.ready
    assert await first.look() == LOOK_SECONDS
    kept = await stored(world)
    assert first.shows == [kept] and first.keeper.ready and bundles(world) == {kept.authorities}
    await second.look()
    assert second.shows == [kept] and second.keeper.renewals == 0
    before = world.server.registry.store.version
    await first.look(after=60)
    assert world.server.registry.store.version == before, "nothing to do is no write"


async def test_replicas_that_start_together_agree(world, replicas):
    done = await asyncio.gather(*(replica.look() for replica in replicas), return_exceptions=True)
    for replica, result in zip(replicas, done, strict=True):
        if isinstance(result, Exception):
            await replica.look()
    assert sum(replica.keeper.renewals for replica in replicas) == 1
    assert {replica.shows[-1] for replica in replicas} == {await stored(world)}


async def test_renewal_comes_before_the_end_and_trust_before_the_certificate(world, replicas):
    first, second = replicas
    await first.look()
    await second.look()
    old = await stored(world)
    for replica in replicas:
        replica.wall += LIFETIME * 0.7
    wait = await first.look()
    new = await stored(world)
    assert new != old and trusts(new.authorities, old.authorities) and bundles(world) == {new.authorities}
    # Both still show the old one, which is trusted, until every API server has heard of the new authority.
    assert first.shows == [old] and wait == SPREAD_SECONDS
    await second.look()
    assert second.shows == [old] and second.keeper.renewals == 0
    await first.look(after=SPREAD_SECONDS)
    await second.look(after=SPREAD_SECONDS)
    assert first.shows == second.shows == [old, new]


@pytest.mark.parametrize("jump", [LIFETIME * 2, 5000 * DAY])
async def test_a_clock_that_jumps_past_the_end_renews_at_once(world, replicas, jump):
    first, second = replicas
    await first.look()
    await second.look()
    first.wall += jump
    assert not first.keeper.ready
    await first.look()
    assert first.keeper.ready and len(first.shows) == 2
    # The other's clock is right: it takes what there is, which is valid for it as well, and does not fight.
    await second.look()
    await second.look(after=SPREAD_SECONDS)
    assert second.keeper.renewals == 0 and second.shows[-1] == first.shows[-1]
    # And back again.
    first.wall -= jump
    await first.look()
    assert first.keeper.ready and first.keeper.renewals == 2


async def test_what_people_broke_is_mended(world, replicas):
    first, _ = replicas
    await first.look()
    registry = world.server.registry
    await registry.patch("secrets", NAMESPACE, names.ADMISSION_SECRET, {"data": {"tls.key": "AAAA"}}, "merge")
    await first.look()
    assert first.keeper.renewals == 2
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        found = registry.get(plural, None, names.ADMISSION_NAME)
        patch = [
            {"op": "remove", "path": f"/webhooks/{n}/clientConfig/caBundle"} for n in range(len(found["webhooks"]))
        ]
        await registry.patch(plural, None, names.ADMISSION_NAME, patch, "json")
    assert world.bundles() == ["", "", "", ""]
    await first.look(after=60)
    assert bundles(world) == {(await stored(world)).authorities}


async def test_without_the_secret_it_says_so_and_shows_what_it_has(world, replicas):
    first, _ = replicas
    await first.look()
    await world.server.registry.delete("secrets", NAMESPACE, names.ADMISSION_SECRET)
    with pytest.raises(NotFound, match="gpuplane install --admission open"):
        await first.look()
    assert first.keeper.ready


async def test_installing_again_keeps_certificate_and_trust(world, replicas):
    first, _ = replicas
    await first.look()
    kept, trusted = await stored(world), world.bundles()
    for manifest in installation(scheduler=False):
        if manifest["metadata"]["name"].startswith("gpuplane-admission") and manifest["kind"] != "Deployment":
            await world.admin.apply(manifest, "test", resource=resource_of(manifest))
    assert await stored(world) == kept and world.bundles() == trusted


async def test_an_expired_certificate_is_a_failed_call(world, make_pod):
    """The API server reports an expired certificate as a failed call; the webhook uses none while it can write."""
    await world.install("closed")
    await world.start()
    plan = CertificatePlan("test", ("localhost", f"{names.ADMISSION_NAME}.{NAMESPACE}.svc"))
    expired = make(plan, NOW - 600 * DAY)
    for task in list(world.replicas.values()):
        task.cancel()
    await asyncio.gather(*world.replicas.values(), return_exceptions=True)
    world.replicas.clear()
    shown = ServerTls()
    shown.take(expired.certificate, expired.key)
    port = int(world.server.registry.list("pods", NAMESPACE)[0]["spec"]["containers"][0]["ports"][0]["containerPort"])
    server = await asyncio.start_server(closed, "127.0.0.1", port, ssl=shown.context)
    for plural, number in (("mutatingwebhookconfigurations", 1), ("validatingwebhookconfigurations", 2)):
        bundle = base64.b64encode(expired.authorities).decode()
        patch = [{"op": "add", "path": f"/webhooks/{n}/clientConfig/caBundle", "value": bundle} for n in range(number)]
        await world.server.registry.patch(plural, None, names.ADMISSION_NAME, patch, "json")
    said = await world.refused(make_pod(gpu=1))
    assert "failed calling webhook" in said and "certificate has expired" in said
    server.close()
