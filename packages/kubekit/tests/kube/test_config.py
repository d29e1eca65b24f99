"""Where the client connects and as whom: kubeconfig files, service accounts, credential plugins."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import os
import ssl
import stat
import sys
from pathlib import Path

import pytest
import yaml

from kubekit.api.core import Node
from kubekit.kube import Client, ConfigError, Unauthorized, Unreachable
from kubekit.kube.auth import ExecAuth, ExecSpec, FileAuth
from kubekit.kube.certificates import CLIENT, SERVER, Validity, issue, make_authority
from kubekit.kube.config import from_file, load
from tests.support.until import until

NODES = "/api/v1/nodes"


def write(path: Path, server="https://127.0.0.1:6443", user=None, cluster=None, **changes) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [
            {"name": "a", "context": {"cluster": "c", "user": "u", "namespace": "ml"}},
            {"name": "b", "context": {"cluster": "c", "user": "u"}},
        ],
    }
    path.write_text(yaml.safe_dump(config | changes))
    return path


@pytest.fixture(scope="session")
def pki(tmp_path_factory) -> Path:
    """A CA, a certificate for 127.0.0.1, a client certificate."""
    directory = tmp_path_factory.mktemp("pki")

    now = datetime.datetime.now(datetime.UTC)
    validity = Validity(now - datetime.timedelta(hours=1), now + datetime.timedelta(days=2))
    authority = make_authority("ca", validity)
    (directory / "ca.crt").write_bytes(authority.certificate_pem)
    for name, hosts, usage in (("server", ("127.0.0.1",), SERVER), ("client", (), CLIENT)):
        made = issue(authority, name, validity, hosts=hosts, usages=(usage,))
        (directory / f"{name}.crt").write_bytes(made.certificate_pem)
        (directory / f"{name}.key").write_bytes(made.key_pem)
    return directory


# -- files ---------------------------------------------------------------------------------------------------------


def test_the_current_context_or_the_one_asked_for(tmp_path):
    path = write(tmp_path / "config", server="https://example:8443/prefix/", user={"token": "t"})
    first, second = from_file(path), from_file(path, "b")
    assert (first.host, first.port, first.prefix, first.namespace) == ("example", 8443, "/prefix", "ml")
    assert (second.context, second.namespace) == ("b", "default")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"current-context": ""}, "no current context"),
        ({"current-context": "", "contexts": []}, "is no kubeconfig: it has no contexts; export KUBECONFIG=FILE"),
        ({"current-context": "zzz"}, "no context named 'zzz'; known: a, b"),
        ({"clusters": []}, "unknown cluster 'c'"),
        ({"users": []}, "unknown user 'u'"),
        ({"users": [{"name": "u", "user": {"auth-provider": {"name": "gcp"}}}]}, "auth-provider is gone"),
        ({"clusters": [{"name": "c", "cluster": {"server": "ftp://x"}}]}, "is no server URL"),
        ({"clusters": [{"name": "c", "cluster": {"server": "https://x:99999"}}]}, "is no server URL"),
        ({"clusters": [{"name": "c", "cluster": {"server": "https://x", "proxy-url": "http://p"}}]}, "proxy-url"),
        ({"clusters": [{"name": "c", "cluster": {"server": 7}}]}, r"malformed.*clusters\[0\]\.cluster\.server"),
        (
            {"clusters": [{"name": "c", "cluster": {"server": "https://x", "certificate-authority-data": "%%"}}]},
            "no base64",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_place(tmp_path, changes, complaint):
    path = write(tmp_path / "config", **changes)
    with pytest.raises(ConfigError, match=complaint) as caught:
        from_file(path)
    assert str(path) in str(caught.value)


def test_no_yaml_and_no_file(tmp_path):
    (tmp_path / "bad").write_text("{:")
    with pytest.raises(ConfigError, match="no YAML"):
        from_file(tmp_path / "bad")
    with pytest.raises(ConfigError, match="No such file"):
        from_file(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"[" * 100_000, "no YAML: is nested more than 100 deep"),
        (b"a: &a [x]\n" + b"b: &b [" + b"*a," * 40_000 + b"]", "no YAML: has aliases that stand for more"),
        (b"users: \xff", "no YAML: is no UTF-8 text"),
        (b"a: !!int x", "no YAML: this is no int"),
        (b"#" * (1 << 20) + b"\n", "is longer than 1 MiB"),
    ],
    ids=["deep", "aliases", "not UTF-8", "tag", "long"],
)
def test_a_kubeconfig_that_attacks_the_reader_is_refused(tmp_path, text, complaint):
    (tmp_path / "bad").write_bytes(text)
    with pytest.raises(ConfigError, match=complaint) as caught:
        from_file(tmp_path / "bad")
    assert str(tmp_path / "bad") in caught.value.where


def test_pipes_and_devices_are_refused_as_kubeconfig_token_and_certificate(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="the kubeconfig cannot be read: it is a pipe; write the text to a file"):
        load(environ={"KUBECONFIG": str(tmp_path / "pipe")})
    with pytest.raises(ConfigError, match="it is a device"):
        from_file(Path("/dev/zero"))
    for fields in ({"cluster": {"certificate-authority": "pipe"}}, {"user": {"client-certificate": "pipe"}}):
        with pytest.raises(ConfigError, match="the certificate cannot be read: it is a pipe"):
            from_file(write(tmp_path / "config", **fields))


async def test_a_pipe_as_a_token_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    endpoint = from_file(write(tmp_path / "config", user={"tokenFile": "pipe"}))
    with pytest.raises(ConfigError, match="the token cannot be read: it is a pipe"):
        await endpoint.auth.credential()


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"server": "https://[::1"}, "is no server URL"),
        ({"server": "https://[zz]:1"}, "is no server URL"),
        ({"cluster": {"certificate-authority-data": "é"}}, "is no base64"),
        ({"cluster": {"certificate-authority": "~nobody-here/ca.crt"}}, "has no home directory that is known"),
    ],
)
def test_odd_values_of_a_kubeconfig_are_errors_with_their_place(tmp_path, fields, complaint):
    with pytest.raises(ConfigError, match=complaint):
        from_file(write(tmp_path / "config", **fields))


def test_the_order_of_places(tmp_path):
    account = tmp_path / "account"
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    env = {"HOME": str(home)}
    with pytest.raises(ConfigError, match="export KUBECONFIG=FILE"):
        load(environ=env, service_account=account)
    write(home / ".kube" / "config", server="http://from-home:1")
    assert load(environ=env, service_account=account).host == "from-home"
    one = write(tmp_path / "one", server="http://from-one:1")
    two = write(tmp_path / "two", server="http://from-two:1", contexts=[{"name": "z", "context": {"cluster": "c"}}])
    several = env | {"KUBECONFIG": f"{tmp_path / 'absent'}{os.pathsep}{one}{os.pathsep}{two}"}
    assert load(environ=several, service_account=account).host == "from-one"
    assert load(context="z", environ=several, service_account=account).host == "from-two"
    assert load(two, "z", environ=several).host == "from-two"
    with pytest.raises(ConfigError, match=r"no such file.*export KUBECONFIG=FILE"):
        load(environ={"KUBECONFIG": str(tmp_path / "absent")})


def test_in_a_pod(tmp_path, pki):
    (tmp_path / "token").write_text("pod-token\n")
    (tmp_path / "ca.crt").write_text((pki / "ca.crt").read_text())
    (tmp_path / "namespace").write_text("gpu-operator")
    env = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOME": str(tmp_path)}
    found = load(environ=env, service_account=tmp_path)
    assert (found.host, found.port, found.namespace) == ("10.96.0.1", 443, "gpu-operator")
    assert found.tls is not None
    with pytest.raises(ConfigError, match="is no port number"):
        load(environ=env | {"KUBERNETES_SERVICE_PORT": "https"}, service_account=tmp_path)


# -- tokens --------------------------------------------------------------------------------------------------------


async def test_a_token_file_is_read_again_as_it_ages(tmp_path):
    path, now = tmp_path / "token", [0.0]
    path.write_text("one")
    auth = FileAuth(path, monotonic=lambda: now[0])
    assert (await auth.credential()).header == "Bearer one"
    path.write_text("two")
    assert (await auth.credential()).header == "Bearer one"
    now[0] = 61
    assert (await auth.credential()).header == "Bearer two"
    path.unlink()
    now[0] = 200
    assert (await auth.credential()).header == "Bearer two"
    with pytest.raises(ConfigError, match="the token cannot be read"):
        await auth.credential(refused=True)


async def test_after_a_401_the_token_is_read_again_once(harness, tmp_path, fault):
    path = tmp_path / "token"
    path.write_text("one")
    client = harness.client()
    client._auth = FileAuth(path, monotonic=lambda: 0.0)
    await harness.server.put(NODES, "n1")
    await client.get(Node, "n1")
    path.write_text("two")
    harness.server.faults.append(fault(status=401))
    await client.get(Node, "n1")
    assert [r.headers["authorization"] for r in harness.server.log] == ["Bearer one", "Bearer one", "Bearer two"]
    harness.server.faults += [fault(status=401), fault(status=401)]
    with pytest.raises(Unauthorized):
        await client.get(Node, "n1")


# -- credential plugins --------------------------------------------------------------------------------------------


def plugin(directory: Path, body: str) -> str:
    """A credential plugin: Python that may use `count`, how often it ran before, and prints."""
    path = directory / "plugin"
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, sys\n"
        f"seen = pathlib.Path({str(directory / 'seen')!r})\n"
        "count = len(seen.read_text().splitlines()) if seen.exists() else 0\n"
        "seen.open('a').write(os.environ['KUBERNETES_EXEC_INFO'] + '\\n')\n"
        f"{body}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def answer(version="client.authentication.k8s.io/v1", **status) -> str:
    return (
        f"print({json.dumps({'apiVersion': version, 'kind': 'ExecCredential', 'status': status})!r} % {{'n': count}})"
    )


async def test_a_plugin_runs_once_until_its_credential_expires(tmp_path):
    wall = [0.0]
    command = plugin(tmp_path, answer(token="token-%(n)d", expirationTimestamp="1970-01-01T00:10:00Z"))
    auth = ExecAuth(ExecSpec(command, "client.authentication.k8s.io/v1"), wall=lambda: wall[0])
    assert (await auth.credential()).header == "Bearer token-0"
    assert (await auth.credential()).header == "Bearer token-0"
    wall[0] = 595.0
    assert (await auth.credential()).header == "Bearer token-1"
    info = json.loads((tmp_path / "seen").read_text().splitlines()[0])
    assert info == {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }


async def test_a_refused_credential_is_made_anew(tmp_path):
    command = plugin(tmp_path, answer(token="token-%(n)d"))
    auth = ExecAuth(ExecSpec(command, "client.authentication.k8s.io/v1"), wall=lambda: 0.0)
    assert (await auth.credential()).header == "Bearer token-0"
    assert (await auth.credential(refused=True)).header == "Bearer token-1"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("sys.exit('not logged in')", "ended with 1: not logged in"),
        ("print('hello')", "no ExecCredential"),
        (answer("client.authentication.k8s.io/v1beta1", token="t"), "answered .*v1beta1, asked .*v1"),
        (answer(), "neither a token nor a certificate"),
        (answer(token="t", expirationTimestamp="soon"), "is no RFC 3339 time"),
    ],
)
async def test_a_broken_plugin_is_explained(tmp_path, body, complaint):
    command = plugin(tmp_path, body)
    auth = ExecAuth(ExecSpec(command, "client.authentication.k8s.io/v1"), wall=lambda: 0.0)
    with pytest.raises(ConfigError, match=complaint):
        await auth.credential()


async def test_of_many_that_wait_for_a_plugin_that_fails_only_the_first_runs_it(tmp_path):
    command = plugin(tmp_path, "sys.exit('not logged in')")
    auth = ExecAuth(ExecSpec(command, "client.authentication.k8s.io/v1"), wall=lambda: 0.0)
    found = await asyncio.gather(*(auth.credential() for _ in range(5)), return_exceptions=True)
    assert all(isinstance(error, ConfigError) for error in found)
    assert len((tmp_path / "seen").read_text().splitlines()) == 1
    with pytest.raises(ConfigError):  # who asks later runs it again
        await auth.credential()
    assert len((tmp_path / "seen").read_text().splitlines()) == 2


async def test_a_plugin_that_writes_without_end_is_refused_and_ended(tmp_path):
    command = plugin(tmp_path, "os.execvp('cat', ['cat', '/dev/zero'])")
    auth = ExecAuth(ExecSpec(command, "client.authentication.k8s.io/v1"), wall=lambda: 0.0)
    with pytest.raises(ConfigError, match="wrote more than"):
        await auth.credential()


async def test_a_plugin_ends_with_all_its_children_when_nobody_waits_for_it(tmp_path):
    ended = tmp_path / "pid"
    command = plugin(tmp_path, f"os.system('echo $$ > {ended}; exec sleep 600')")
    auth = ExecAuth(ExecSpec(command, "client.authentication.k8s.io/v1"), wall=lambda: 0.0)
    waiting = asyncio.create_task(auth.credential())
    await until(lambda: ended.exists() and ended.read_text().strip())
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: not _runs(int(ended.read_text())))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_missing_plugin_gives_its_install_hint(tmp_path):
    spec = ExecSpec("no-such-plugin", "client.authentication.k8s.io/v1beta1", install_hint="apt install it")
    with pytest.raises(ConfigError, match="apt install it"):
        await ExecAuth(spec, wall=lambda: 0.0).credential()


async def test_a_missing_plugin_is_named_as_missing_whatever_directories_the_path_has(tmp_path):
    (tmp_path / "file").write_text("")  # the system's reason for it is another than for a missing file
    spec = ExecSpec("no-such-plugin", "client.authentication.k8s.io/v1")
    auth = ExecAuth(spec, wall=lambda: 0.0, environ={"PATH": f"/usr/bin:{tmp_path / 'file'}"})
    with pytest.raises(ConfigError, match=r"no such program on PATH.*install it, or choose another --context"):
        await auth.credential()


def test_a_removed_plugin_version_is_refused_with_the_cure():
    with pytest.raises(ConfigError, match=r"use apiVersion: client\.authentication\.k8s\.io/v1"):
        ExecAuth(ExecSpec("x", "client.authentication.k8s.io/v1alpha1"), wall=lambda: 0.0)


async def test_a_plugin_named_in_a_kubeconfig_gets_the_cluster(tmp_path, pki):
    plugin(tmp_path, answer(token="t"))
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./plugin",
            "interactiveMode": "Never",
            "provideClusterInfo": True,
            "env": [{"name": "X", "value": "y"}],
        }
    }
    ca = {"certificate-authority": str(pki / "ca.crt")}
    endpoint = from_file(write(tmp_path / "config", user=user, cluster=ca))
    assert (await endpoint.auth.credential()).header == "Bearer t"
    info = json.loads((tmp_path / "seen").read_text())["spec"]["cluster"]
    assert info["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(info["certificate-authority-data"]) == (pki / "ca.crt").read_bytes()


# -- TLS -----------------------------------------------------------------------------------------------------------


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


async def secure(make_harness, pki, *, client_certificate=False):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "server.crt", pki / "server.key")
    if client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(pki / "ca.crt")
    harness = make_harness()
    await harness.start(context)
    await harness.server.put(NODES, "n1")
    return harness


async def get(harness, path) -> None:
    async with Client.connect(path) as client:
        assert (await client.get(Node, "n1")).metadata.name == "n1"


@pytest.mark.parametrize("inline", [True, False])
async def test_client_certificates(make_harness, tmp_path, pki, inline):
    harness = await secure(make_harness, pki, client_certificate=True)
    if inline:
        user = {
            "client-certificate-data": encoded(pki / "client.crt"),
            "client-key-data": encoded(pki / "client.key"),
        }
        cluster = {"certificate-authority-data": encoded(pki / "ca.crt")}
    else:
        user = {"client-certificate": str(pki / "client.crt"), "client-key": str(pki / "client.key")}
        cluster = {"certificate-authority": os.path.relpath(pki / "ca.crt", tmp_path)}
    path = write(tmp_path / "config", server=f"https://127.0.0.1:{harness.port}", user=user, cluster=cluster)
    await get(harness, path)
    await harness.aclose()


async def test_a_plugins_certificate(make_harness, tmp_path, pki):
    harness = await secure(make_harness, pki, client_certificate=True)
    status = {
        "clientCertificateData": (pki / "client.crt").read_text(),
        "clientKeyData": (pki / "client.key").read_text(),
    }
    plugin(tmp_path, answer(**status).removesuffix(" % {'n': count})") + ")")
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}}
    cluster = {"certificate-authority": str(pki / "ca.crt")}
    path = write(tmp_path / "config", server=f"https://127.0.0.1:{harness.port}", user=user, cluster=cluster)
    await get(harness, path)
    await harness.aclose()


async def test_a_certificate_nobody_trusts(make_harness, tmp_path, pki):
    harness = await secure(make_harness, pki)
    server = f"https://127.0.0.1:{harness.port}"
    with pytest.raises(Unreachable, match=r"its certificate is not trusted.*check certificate-authority"):
        await get(harness, write(tmp_path / "config", server=server))
    with pytest.raises(Unreachable, match="its certificate is not trusted"):
        other = {"certificate-authority": str(pki / "ca.crt"), "tls-server-name": "other.example"}
        await get(harness, write(tmp_path / "config", server=server, cluster=other))
    await get(harness, write(tmp_path / "config", server=server, cluster={"insecure-skip-tls-verify": True}))
    await harness.aclose()


def test_it_runs_on_uvloop_too(make_harness, tmp_path, pki):
    uvloop = pytest.importorskip("uvloop")

    async def run() -> None:
        harness = await secure(make_harness, pki)
        cluster = {"certificate-authority": str(pki / "ca.crt")}
        path = write(tmp_path / "config", server=f"https://127.0.0.1:{harness.port}", cluster=cluster)
        for _ in range(3):
            await get(harness, path)
        await harness.aclose()

    uvloop.run(run())
