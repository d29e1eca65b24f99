"""An extender by HTTPS, as kube-scheduler calls it: certificates and names from files, data and Secrets."""

from __future__ import annotations

import base64
import datetime
import ssl
from urllib.parse import urlsplit

import pytest

from kubekit.kube.server_certificates import CertificatePlan, ServerCertificates, make, make_client
from kubekit.server_tls import ServerTls
from packages.tinykube.tests.scheduler.test_scheduler import ExtenderServer
from tinykube.apiserver import Registry
from tinykube.scheduler.config import ExtenderConfig, TLSConfig
from tinykube.scheduler.config_file import parse
from tinykube.scheduler.extender import ExtenderClient, ExtenderError
from tinykube.scheduler.secret_mounts import SecretMounts

NAME = "extender.example.svc"
NODES = [{"metadata": {"name": "a"}}]
POD = {"metadata": {"name": "p"}, "spec": {}}
MOUNT = "/etc/extender"


class Secured(ExtenderServer):
    """An extender that answers callers with a certificate of its authority only."""

    def __init__(self):
        super().__init__()
        self.tls = ServerTls()
        self.plan = CertificatePlan("extender", (NAME,), lasting=True)
        self.kept = self.renew()
        self.tls.context.verify_mode = ssl.CERT_REQUIRED
        self.server.socket = self.tls.context.wrap_socket(self.server.socket, server_side=True)
        self.url = self.url.replace("http:", "https:")
        self.answers["filter"] = lambda body: {"NodeNames": ["a"]}

    def renew(self):
        """New certificates, of another authority; those of a caller."""
        now = datetime.datetime.now(datetime.UTC)
        made = make(self.plan, now)
        self.tls.take(made.certificate, made.key, made.authorities)
        self.tls.context.verify_mode = ssl.CERT_REQUIRED
        self.kept = made
        return made

    def caller(self) -> ServerCertificates:
        return make_client(self.kept, "caller", datetime.datetime.now(datetime.UTC))


@pytest.fixture
def extender():
    server = Secured()
    yield server
    server.close()


def client_of(extender, read=None, **tls):
    config = ExtenderConfig(
        url_prefix=extender.url,
        filter_verb="filter",
        enable_https=True,
        node_cache_capable=True,
        tls_config=TLSConfig(**tls),
    )
    more = {} if read is None else {"read": read}
    return ExtenderClient(config, lambda *service: None, **more)


async def filtered(client):
    try:
        return (await client.filter(POD, NODES)).kept
    finally:
        client.close()


def data_of(caller):
    return {"ca_data": caller.authorities, "cert_data": caller.certificate, "key_data": caller.key}


async def test_data_in_the_configuration(extender):
    caller = extender.caller()
    assert await filtered(client_of(extender, server_name=NAME, **data_of(caller))) == ("a",)
    encoded = base64.b64encode(caller.certificate).decode()
    tls = {"serverName": NAME, "caData": encoded, "certData": encoded, "keyData": encoded}
    text = str({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
                "extenders": [{"urlPrefix": "https://x", "tlsConfig": tls}]})  # fmt: skip
    assert parse(text).extenders[0].tls_config.cert_data == caller.certificate, "as Go reads bytes: base64"


async def test_what_does_not_fit_is_an_error_of_the_pod(extender):
    caller = extender.caller()
    for tls, why in (
        (data_of(caller), "IP address mismatch"),
        ({**data_of(caller), "server_name": "other.svc"}, "Hostname mismatch"),
        (
            {"server_name": NAME, "ca_data": caller.authorities},
            "Post .* (EOF|Connection|Remote end|.*certificate required)",
        ),
        ({"server_name": NAME, "ca_data": b"x"}, "PEM|certificate"),
        ({"server_name": NAME, "ca_file": "/none/ca.crt"}, "No such file"),
    ):
        with pytest.raises(ExtenderError, match=why):
            await filtered(client_of(extender, **tls))


async def test_without_an_authority_https_verifies_nothing_as_kube_scheduler(extender):
    caller = extender.caller()
    client = client_of(extender, cert_data=caller.certificate, key_data=caller.key)
    assert await filtered(client) == ("a",)


async def test_files_and_secrets_are_read_again_when_they_change(extender, tmp_path):
    registry = Registry()
    await registry.create("namespaces", None, {"metadata": {"name": "n"}})
    mounts = SecretMounts(registry, {MOUNT: ("n", "caller")})

    def clients():
        for folder in (tmp_path, MOUNT):
            files = {"ca_file": f"{folder}/ca.crt", "cert_file": f"{folder}/tls.crt", "key_file": f"{folder}/tls.key"}
            yield client_of(extender, mounts.read, server_name=NAME, **files)

    async def provide():
        data = extender.caller().data()
        for name, content in data.items():
            (tmp_path / name).write_bytes(content)
        encoded = {name: base64.b64encode(content).decode() for name, content in data.items()}
        await registry.patch("secrets", "n", "caller", {"data": encoded}, "merge")

    by_file, by_secret = clients()
    with pytest.raises(ExtenderError, match=r"Secret n/caller has no ca\.crt yet"):
        await by_secret.filter(POD, NODES)
    await registry.create("secrets", "n", {"metadata": {"name": "caller"}})
    for _ in range(2):
        await provide()
        for client in (by_file, by_secret):
            assert (await client.filter(POD, NODES)).kept == ("a",)
        extender.renew()
    for client in (by_file, by_secret):
        client.close()
    assert urlsplit(extender.url).scheme == "https"
