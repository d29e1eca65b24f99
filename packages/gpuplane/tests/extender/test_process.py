"""`gpuplane run scheduler` as its pods run it: replicas with a lease, HTTPS, and what it prints."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import ssl
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from cryptography import x509

from gpuplane import names
from gpuplane.cli.parser import parse
from gpuplane.scheduler import component
from gpuplane.scheduler.component import lead
from gpuplane.scheduler.configuration import kube_configuration, printed, second_scheduler
from gpuplane.scheduler.extender import Extender
from gpuplane.scheduler.forwarding import Forwarder, address_of, identity
from gpuplane.scheduler.leader import Leader
from gpuplane.scheduler.policies import Chosen, Policies
from gpuplane.scheduler.standby import Standby
from gpuplane.scheduler.tls import LONGEST_PEM, Files, forwarding_context, serving_context
from gpuplane.sharing import POLICIES, of_pod
from kubekit.errors import InvalidInput, UsageError
from kubekit.http_server import HttpAnswer, serving
from kubekit.kube import EventRecorder, SystemClock
from kubekit.kube.certificates import CLIENT, SERVER, Validity, issue, make_authority
from tests.support.extender_world import PATIENCE, World, gpu_pod, http
from tests.support.until import until
from tinykube.scheduler.config import TLSConfig
from tinykube.scheduler.config_file import parse as parse_scheduler_config


# -- what it prints ------------------------------------------------------------------------------------------------
def test_the_configuration_is_one_that_schedulers_read() -> None:
    config = parse_scheduler_config(printed("kube", "https://extender:3456/"))
    (extender,) = config.extenders
    assert extender.url_prefix == "https://extender:3456" and extender.enable_https and extender.node_cache_capable
    managed = [names.VCUDA_CORE, names.VCUDA_MEMORY, names.GPU_RESOURCE]
    assert [resource.name for resource in extender.managed_resources] == managed
    folder = names.EXTENDER_CLIENT_DIRECTORY
    tls = TLSConfig(
        server_name="gpuplane-scheduler.gpu-operator.svc",
        ca_file=f"{folder}/ca.crt",
        cert_file=f"{folder}/tls.crt",
        key_file=f"{folder}/tls.key",
    )
    assert extender.tls_config == tls
    (by_http,) = parse_scheduler_config(printed("kube", "http://extender:3456")).extenders
    assert by_http.tls_config is None and not by_http.enable_https
    (elsewhere,) = parse_scheduler_config(printed("kube", certificates="/pki/")).extenders
    assert elsewhere.url_prefix == "https://gpuplane-scheduler.gpu-operator:3456" and elsewhere.tls_config is not None
    assert elsewhere.tls_config.key_file == "/pki/tls.key"
    assert extender.timeout_s > 9, "longer than the extender takes for its answer to bind at most"
    assert set(kube_configuration("http://x")["extenders"][0]) <= {
        *("urlPrefix", "filterVerb", "prioritizeVerb", "bindVerb", "preemptVerb", "weight", "enableHTTPS"),
        *("httpTimeout", "nodeCacheCapable", "managedResources", "ignorable", "tlsConfig"),
    }


def test_the_old_policy_calls_the_path_of_gpu_admission() -> None:
    policy = json.loads(printed("policy"))
    (extender,) = policy["extenders"]
    assert policy["kind"] == "Policy" and policy["apiVersion"] == "v1" and extender["enableHttps"]
    (read,) = parse_scheduler_config(printed("policy")).extenders
    assert read.tls_config is not None and read.tls_config.ca_file.endswith("/ca.crt")
    (plain,) = json.loads(printed("policy", "http://x"))["extenders"]
    assert plain["enableHttps"] is False and "tlsConfig" not in plain
    assert f"{extender['urlPrefix']}/{extender['filterVerb']}".endswith(":3456/scheduler/predicates")
    assert "bindVerb" not in extender and "prioritizeVerb" not in extender


def test_the_second_scheduler_has_a_name_a_lease_and_rights_of_its_own() -> None:
    objects = {manifest["kind"]: manifest for manifest in second_scheduler("http://x:1")}
    config = parse_scheduler_config(objects["ConfigMap"]["data"]["config.yaml"])
    assert config.names == {"gpuplane"}
    assert config.leader_election["resourceName"] == objects["Deployment"]["metadata"]["name"]
    text = printed("second", "https://x:1", "/tls")
    assert list(yaml.safe_load_all(text)) == second_scheduler("https://x:1", "/tls")
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (mounted,) = [volume["name"] for volume in pod["volumes"] if "secret" in volume]
    (mount,) = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == mounted]
    assert mount["mountPath"] == names.EXTENDER_CLIENT_DIRECTORY
    assert "&id" not in text, "a manifest that people read has no YAML anchors"
    with pytest.raises(UsageError):
        printed("third")


def test_flags() -> None:
    options = parse(["run", "scheduler"])
    assert Chosen(options.node_policy, options.gpu_policy) == Chosen()
    assert component.tls_files(options) is None
    for policy in POLICIES:
        Policies(Chosen(parse(["run", "scheduler", "--node-policy", policy]).node_policy))
    with pytest.raises(UsageError, match="certificate and its key"):
        component.tls_files(parse(["run", "scheduler", "--tls-cert-file", "x"]))
    with pytest.raises(UsageError, match="takes no certificates"):
        component.tls_files(parse(["run", "scheduler", "--plain-http", "--client-ca-file", "x"]))
    with pytest.raises(UsageError, match="no placement policy"):
        Policies(Chosen("best"))


async def test_print_config_needs_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    await component.run(parse(["run", "scheduler", "--print-config", "kube", "--url", "http://here:1"]))
    assert yaml.safe_load(capsys.readouterr().out)["extenders"][0]["urlPrefix"] == "http://here:1"


# -- replicas ------------------------------------------------------------------------------------------------------
def test_a_leader_says_where_it_is() -> None:
    for address in ("10.0.0.3", "fd00::3"):
        assert address_of(identity("gpuplane-scheduler-abc", address, 3456)) == (address, 3456)
    for nowhere in ("", "somebody", "a/b", "a/:1", "a/b:0", "a/b:99999", "a/b:x"):
        assert address_of(nowhere) is None


@pytest.fixture
def options(cluster: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    authority = cluster.server.authority
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": cluster.server.url, "certificate-authority": str(authority)}}],
        "users": [{"name": "u", "user": {"token": "admin"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("POD_IP", "127.0.0.1")
    return parse(["run", "scheduler", "--kubeconfig", str(path), "--port", "0", "--plain-http"])


@contextlib.asynccontextmanager
async def replica(
    options: Namespace, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[tuple[int, asyncio.Task[None]]]:
    """A whole process' worth of extender; yields its port."""
    before = len(caplog.records)
    task = asyncio.create_task(component.run(options))
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                said = [record.getMessage() for record in caplog.records[before:]]
                port = next((int(text.partition("=")[2]) for text in said if text.startswith("serving port=")), 0)
                if port:
                    break
                await asyncio.sleep(0.01)
        yield port, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def answered(port: int, path: str, body: bytes = b"", wanted: int = 200) -> Any:
    """The answer when it is as wanted; asked until then."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await http(port, "POST" if body else "GET", path, body)
            if answer.status == wanted:
                return answer
            await asyncio.sleep(0.05)


def reads(caplog: pytest.LogCaptureFixture) -> int:
    """Count how often a replica has read the cluster."""
    return sum(record.getMessage().startswith("cluster read") for record in caplog.records)


@pytest.mark.parametrize("in_pod", [True, False])
async def test_any_replica_may_be_called_and_another_takes_over(
    cluster: World,
    options: Namespace,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    in_pod: bool,
) -> None:
    """In a pod, the second replica knows the cluster before it leads; elsewhere it reads the cluster then."""
    caplog.set_level("INFO", "gpuplane.scheduler")
    await cluster.client.request("POST", "/api/v1/namespaces", None, {"metadata": {"name": "gpu-operator"}})
    if in_pod:
        monkeypatch.setenv("POD_NAME", "replica")
        pod = {"metadata": {"name": "replica", "namespace": "gpu-operator"}}
        await cluster.pod({**pod, "spec": {"containers": [{"name": "c", "image": "app"}]}})
    await cluster.node("n1", 1)
    pods = [await cluster.pod(gpu_pod(name, (60, 10))) for name in ("a", "b")]
    async with replica(options, caplog) as (first, first_task):
        await answered(first, "/readyz")
        async with replica(options, caplog) as (second, _):
            await answered(second, "/readyz")
            bind = json.dumps(
                {"PodName": "a", "PodNamespace": "default", "PodUID": pods[0]["metadata"]["uid"], "Node": "n1"}
            ).encode()
            assert (await answered(second, "/bind", bind)).json == {"Error": ""}, "handed to the leader"
            assert of_pod(await cluster.get("a")) is not None
            assert (await http(second, "POST", "/leader/bind", bind)).status == 503, "no going round in circles"
            assert "gpuplane_scheduler_leader 0" in (await http(second, "GET", "/metrics")).body.decode()
            await until(lambda: reads(caplog) == (2 if in_pod else 1), seconds=PATIENCE)
            first_task.cancel()
            await asyncio.gather(first_task, return_exceptions=True)
            # The lease was given up, so the next one leads at once, and knows what the first one did.
            args = json.dumps({"Pod": pods[1], "NodeNames": ["n1"]}).encode()
            answer = await answered(second, "/leader/filter", args)
            assert answer.json["NodeNames"] == []
            assert answer.json["FailedNodes"] == {"n1": "no GPU has 60 percent core and 2560 MiB together"}
            assert reads(caplog) == 2


async def test_without_a_leader_the_answer_is_503() -> None:
    extender = Extender(Forwarder(), lambda: "")
    async with serving(extender.paths(), "127.0.0.1", 0, posts=extender.posts()) as port:
        assert (await http(port, "POST", "/filter", b"{}")).status == 503
        assert (await http(port, "GET", "/readyz")).status == 503
        assert (await http(port, "GET", "/healthz")).status == 200
        extender.leading = True
        answer = await http(port, "POST", "/filter", b"{}")
        assert answer.status == 503 and b"reads the cluster" in answer.body


async def test_a_leader_that_does_not_answer_is_503() -> None:
    forwarder = Forwarder()
    extender = Extender(forwarder, lambda: "somebody/127.0.0.1:1")
    async with serving(extender.paths(), "127.0.0.1", 0, posts=extender.posts()) as port:
        answer = await http(port, "POST", "/filter", b"{}")
        assert answer.status == 503 and b"127.0.0.1:1 does not answer" in answer.body
    await forwarder.aclose()


async def test_who_stops_leading_stops_answering(cluster: World) -> None:
    extender = Extender(Forwarder(), lambda: "")
    async with serving(extender.paths(), "127.0.0.1", 0) as port:
        recorder, clock = EventRecorder(cluster.client, "me"), SystemClock()
        standby = Standby(lambda: Leader(cluster.client, recorder, Chosen(), clock, time.time_ns), None)
        task = asyncio.create_task(lead(extender, standby, recorder))
        await answered(port, "/readyz")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert extender.leader is None and not extender.leading


# -- HTTPS ---------------------------------------------------------------------------------------------------------
def certificate(directory: Path) -> int:
    """A new certificate for the extender in `directory`, with its authority; returns its serial number."""
    now = datetime.datetime.now(datetime.UTC)
    validity = Validity(now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=1))
    authority = make_authority("extender", validity)
    made = issue(authority, "localhost", validity, hosts=("localhost",), usages=(SERVER, CLIENT))
    (directory / "ca.crt").write_bytes(authority.certificate_pem)
    (directory / "tls.key.new").write_bytes(made.key_pem)
    (directory / "tls.crt.new").write_bytes(made.certificate_pem)
    (directory / "tls.key.new").replace(directory / "tls.key")
    (directory / "tls.crt.new").replace(directory / "tls.crt")
    return made.certificate.serial_number


async def serial_of(port: int, context: ssl.SSLContext) -> int:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(shown).serial_number


async def test_certificates_are_exchanged_under_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def hello() -> HttpAnswer:
        return HttpAnswer(b"hello")

    first = certificate(tmp_path)
    files = Files(tmp_path / "tls.crt", tmp_path / "tls.key")
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    async with serving({"/": hello}, "127.0.0.1", 0, tls=serving_context(files)) as port:
        assert await serial_of(port, anybody) == first
        second = certificate(tmp_path)
        assert await serial_of(port, anybody) == second, "also for clients that name no server"
        assert (await http(port, "GET", "/", tls=forwarding_context(files))).body == b"hello"
        (tmp_path / "tls.key").write_text("half of")
        assert await serial_of(port, anybody) == second
        assert "the old one stays" in caplog.text
        third = certificate(tmp_path)
        assert await serial_of(port, anybody) == third


@pytest.mark.parametrize("which", ["certificate", "key", "clients"])
def test_a_pipe_and_an_endless_file_are_no_certificate(tmp_path: Path, which: str) -> None:
    certificate(tmp_path)
    good = Files(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "tls.crt")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"x" * (LONGEST_PEM + 1))
    for name, why in (("pipe", "it is a pipe"), ("/dev/zero", "it is a device"), ("long", "longer than 1 MiB")):
        with pytest.raises(InvalidInput, match=why):
            serving_context(msgspec.structs.replace(good, **{which: tmp_path / name}))


async def test_with_an_authority_only_its_clients_are_answered(tmp_path: Path) -> None:
    async def hello() -> HttpAnswer:
        return HttpAnswer(b"hello")

    async def echo(body: bytes) -> HttpAnswer:
        return HttpAnswer(body)

    certificate(tmp_path)
    files = Files(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt")
    async with serving(
        {"/": hello}, "127.0.0.1", 0, posts={"/bind": echo}, tls=serving_context(files), callers_only=True
    ) as port:
        assert (await http(port, "POST", "/bind", b"x", tls=forwarding_context(files))).body == b"x"
        anonymous = forwarding_context(Files(files.certificate, files.key))
        assert (await http(port, "POST", "/bind", b"x", tls=anonymous)).status == 401
        assert (await http(port, "GET", "/", tls=anonymous)).body == b"hello", "a kubelet's probe has no certificate"


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no TLS certificate"):
        serving_context(Files(tmp_path / "a", tmp_path / "b"))


async def test_moves_are_those_of_the_pod_scheduler() -> None:
    with pytest.raises(UsageError, match="--defragment moves pods of the pod scheduler"):
        await component.run(parse(["run", "scheduler", "--defragment"]))
