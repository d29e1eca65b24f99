"""The extender as it is installed: certificates of its own, callers that show one, a scheduler that asks with it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import ssl
from argparse import Namespace
from pathlib import Path

import pytest

from gpulab.distribution import GPUPLANE
from gpuplane import names
from gpuplane.cli.parser import parse
from gpuplane.scheduler.configuration import printed
from gpuplane.scheduler.tls import OwnTls, plan_of
from gpuplane.sharing import of_pod
from kubekit.api.core import Pod, Secret
from kubekit.api.kinds import built_in
from kubekit.kube import Client, NotFound
from kubekit.kube.server_certificates import LIFETIME, ServerCertificates, end, make, make_client, read
from kubekit.server_tls import client_context
from packages.gpuplane.tests.extender.test_process import replica
from tests.support.extender_world import PATIENCE, Answered, World, gpu_pod, http
from tests.support.until import until
from tinykube.scheduler import Scheduler
from tinykube.scheduler.config_file import parse as parse_scheduler_config

NAMESPACE = names.OPERATOR_NAMESPACE
NAMESPACES = built_in("v1", "Namespace")


@pytest.fixture
def options(cluster: World, account: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    path = tmp_path / "kubeconfig"
    path.write_text(cluster.kubeconfig("scheduler"))
    monkeypatch.setenv("POD_IP", "127.0.0.1")
    return parse(["run", "scheduler", "--kubeconfig", str(path), "--port", "0"])


def anybody() -> ssl.SSLContext:
    """The TLS of a caller without a certificate, as a kubelet's probe has it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def of(shown: ServerCertificates) -> ssl.SSLContext:
    """The TLS of a caller with these files, which calls the extender by its address."""
    return client_context(shown.authorities, shown.certificate, shown.key)


async def stored(cluster: World, secret: str) -> ServerCertificates:
    return read((await cluster.client.get(Secret, secret, NAMESPACE)).data)


async def answered(port: int, path: str, tls: ssl.SSLContext, wanted: int = 200, body: bytes = b"") -> Answered:
    """The answer when it has the wanted status; asked until then."""

    async def ask() -> Answered | None:
        answer = await http(port, "POST" if body else "GET", path, body, tls=tls)
        return answer if answer.status == wanted else None

    found: Answered = await until(ask, poll=0.05, seconds=PATIENCE)
    return found


async def test_only_a_caller_with_its_certificate_is_answered(
    cluster: World, options: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gpuplane.scheduler")
    await cluster.node("n1", 1)
    pod = await cluster.pod(gpu_pod("a", (60, 10)))
    async with replica(options, caplog) as (port, _):
        await answered(port, "/readyz", anybody())
        kube_scheduler = of(await stored(cluster, names.EXTENDER_CLIENT_SECRET))
        args = json.dumps({"Pod": pod, "NodeNames": ["n1"], "Nodes": None}).encode()
        assert (await answered(port, "/filter", kube_scheduler, body=args)).json["NodeNames"] == ["n1"]
        for path in ("/filter", "/scheduler/predicates", "/bind", "/leader/bind", "/preempt"):
            assert (await http(port, "POST", path, args, tls=anybody())).status == 401
        assert (await http(port, "GET", "/healthz", tls=anybody())).status == 200
        other = make(plan_of(NAMESPACE), datetime.datetime.now(datetime.UTC))
        stranger = of(make_client(other, "kube-scheduler", datetime.datetime.now(datetime.UTC)))
        stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await http(port, "GET", "/healthz", tls=stranger)


async def test_metrics_name_tenants_to_callers_with_a_certificate_only(
    cluster: World, options: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gpuplane.scheduler")
    await cluster.node("n1", 1)
    await cluster.client.create({"metadata": {"name": "secret-project"}}, resource=NAMESPACES)
    pod = await cluster.pod(gpu_pod("a", (60, 10), namespace="secret-project"))
    async with replica(options, caplog) as (port, _):
        await answered(port, "/readyz", anybody())
        known = of(await stored(cluster, names.EXTENDER_CLIENT_SECRET))
        meta = pod["metadata"]
        bind = {"PodName": "a", "PodNamespace": "secret-project", "PodUID": meta["uid"], "Node": "n1"}
        assert (await answered(port, "/bind", known, body=json.dumps(bind).encode())).json == {"Error": ""}
        text = (await http(port, "GET", "/metrics", tls=anybody())).body.decode()
        assert "gpuplane_scheduler_bound_total 1" in text and "secret-project" not in text
        text = (await http(port, "GET", "/metrics", tls=known)).body.decode()
        assert 'gpuplane_scheduler_quota_used_gpus{namespace="secret-project",model=' in text
        assert "gpuplane_scheduler_bound_total 1" in text


async def test_replicas_call_each_other_by_their_certificate(
    cluster: World, options: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gpuplane.scheduler")
    await cluster.node("n1", 1)
    pod = await cluster.pod(gpu_pod("a", (60, 10)))
    async with replica(options, caplog) as (first, _):
        await answered(first, "/readyz", anybody())
        async with replica(options, caplog) as (second, _):
            await answered(second, "/readyz", anybody())
            known = of(await stored(cluster, names.EXTENDER_CLIENT_SECRET))
            body = {"PodName": "a", "PodNamespace": "default", "PodUID": pod["metadata"]["uid"], "Node": "n1"}
            assert (await answered(second, "/bind", known, body=json.dumps(body).encode())).json == {"Error": ""}
            assert of_pod(await cluster.get("a")) is not None
            text = (await http(second, "GET", "/metrics", tls=known)).body.decode()
            assert "gpuplane_scheduler_leader 0" in text, "the other replica has bound it"


async def test_the_embedded_scheduler_places_shares_by_the_printed_configuration(
    cluster: World, options: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gpuplane.scheduler")
    await cluster.node("n1", 1)
    async with replica(options, caplog) as (port, _):
        await serve(cluster, port)
        config = parse_scheduler_config(printed("kube"))
        scheduler = Scheduler(cluster.server.registry, config, GPUPLANE.scheduler_mounts)
        task = asyncio.create_task(scheduler.run())
        try:
            await cluster.pod(gpu_pod("a", (60, 10)))

            async def bound() -> bool:
                return of_pod(await cluster.get("a")) is not None

            await until(bound, poll=0.05, seconds=PATIENCE)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def serve(cluster: World, port: int) -> None:
    """Put a ready pod behind the installed Service that listens on a port of this machine."""
    ports = {"spec": {"ports": [{"name": "extender", "port": 3456, "targetPort": port}]}}
    await cluster.server.registry.patch("services", NAMESPACE, names.EXTENDER_NAME, ports, "merge")
    container = {"name": "c", "image": "i"}
    labels = {"app.kubernetes.io/name": names.EXTENDER_NAME}
    body = {"metadata": {"name": "e", "namespace": NAMESPACE, "labels": labels}, "spec": {"containers": [container]}}
    await cluster.client.create(body, resource=Pod.RESOURCE)
    ready = {"status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}}
    await cluster.client.patch(Pod, "e", ready, NAMESPACE, subresource="status")


# -- the Secrets -------------------------------------------------------------------------------------------------------
async def keep(cluster: World, wall: datetime.datetime | None = None) -> OwnTls:
    """Put the Secrets in order once, as a replica that has just started does."""
    when = wall or datetime.datetime.now(datetime.UTC)
    tls = OwnTls(cluster.client, NAMESPACE, wall=lambda: when)
    await tls.keeper.look()
    assert tls.keeper.ready
    return tls


async def test_certificates_renew_themselves_and_the_authority_stays(cluster: World, account: Client) -> None:
    now = datetime.datetime.now(datetime.UTC)
    await keep(cluster, now)
    first, caller = [await stored(cluster, secret) for secret in (names.EXTENDER_SECRET, names.EXTENDER_CLIENT_SECRET)]
    assert caller.authorities == first.authorities and not caller.authority_keys
    await keep(cluster, now + LIFETIME * 0.7)
    second = await stored(cluster, names.EXTENDER_SECRET)
    assert end(second.certificate) > end(first.certificate) and second.authorities == first.authorities
    assert await stored(cluster, names.EXTENDER_CLIENT_SECRET) == caller, "nothing that a copy would have to follow"


async def test_what_people_broke_is_mended_and_a_missing_secret_is_named(cluster: World, account: Client) -> None:
    tls = await keep(cluster)
    kept = await stored(cluster, names.EXTENDER_SECRET)
    await cluster.client.patch(Secret, names.EXTENDER_CLIENT_SECRET, {"data": {"tls.key": "AAAA"}}, NAMESPACE)
    await tls.keeper.look()
    caller = await stored(cluster, names.EXTENDER_CLIENT_SECRET)
    assert of(caller) and await stored(cluster, names.EXTENDER_SECRET) == kept
    for secret in (names.EXTENDER_CLIENT_SECRET, names.EXTENDER_SECRET):
        await cluster.client.delete(Secret, secret, NAMESPACE)
        with pytest.raises(NotFound, match=f"Secret {secret} is gone.*--plain-http"):
            await tls.keeper.look()
    assert tls.keeper.ready, "it serves what it has"
