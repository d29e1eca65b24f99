"""Credential plugins of kubeconfig files: calls, errors, ends."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest

from kubekit.kube import ConfigError
from kubekit.kube.auth import ExecAuth, ExecSpec
from kubekit.kube.config import from_file
from packages.kubekit.tests.kube.kubeconfigs import answer, plugin, write
from tests.support.until import until


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
