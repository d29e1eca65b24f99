"""The client's server and user, from kubeconfig files, service accounts and token files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kubekit.api.core import Node
from kubekit.kube import ConfigError, Unauthorized
from kubekit.kube.auth import FileAuth
from kubekit.kube.config import from_file, load
from packages.kubekit.tests.kube.kubeconfigs import write

NODES = "/api/v1/nodes"


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
