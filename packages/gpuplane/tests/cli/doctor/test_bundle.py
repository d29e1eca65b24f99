"""The file for support: complete, bounded, without secrets, and whole or not there."""

from __future__ import annotations

import json
import stat
import tarfile
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuplane import names
from gpuplane.cli.doctor import bundle
from gpuplane.cli.doctor.bundle import write_bundle
from kubekit.api.core import DaemonSet, Node, Secret
from kubekit.kube import Client
from kubekit.kube.codec import decode_any
from packages.gpuplane.tests.cli.doctor.healthy_cluster import (
    NODE,
    PLUGIN,
    PLUGIN_POD,
    SPACE,
    HealthyCluster,
    healthy_cluster,
)
from packages.gpuplane.tests.cli.status_clusters import gpuplane

HIDDEN = "zQsup3rs3cr3tQz"
LOG = f"2026-01-01T00:00:00Z starting\npassword={HIDDEN}\nconnected to https://me:{HIDDEN}@db.example.com\nlast line\n"


class WithKubelets(Client):
    """A client of an API server whose kubelets answer: logs and metrics; `asked` has the paths."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.asked: list[str] = []
        self.log = LOG.encode()

    async def request(
        self, method: str, path: str, params: Mapping[str, str] | None = None, *rest: Any, **more: Any
    ) -> bytes:
        self.asked.append(path)
        if path.endswith("/log"):
            return self.log
        if path.endswith("/proxy/metrics"):
            return b"gpuplane_share_memory_bytes 1\n"
        return await super().request(method, path, params, *rest, **more)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[HealthyCluster]:
    async with healthy_cluster(tmp_path) as made:
        yield made


@pytest.fixture
async def client(cluster: HealthyCluster) -> AsyncIterator[WithKubelets]:
    async with WithKubelets(cluster.client.endpoint) as made:
        yield made


async def written(client: Client, place: Path) -> tuple[dict[str, bytes], str]:
    """Write a bundle and return its files, with the line about it."""
    said = await write_bundle(client, place, {"cluster": "prod"}, datetime(2026, 1, 1, tzinfo=UTC))
    with tarfile.open(place) as archive:
        found = {member.name.removeprefix("gpuplane-doctor/"): member for member in archive}
        return {name: archive.extractfile(member).read() for name, member in found.items()}, said  # type: ignore[union-attr]


async def test_it_has_objects_events_logs_and_metrics(
    cluster: HealthyCluster, client: WithKubelets, tmp_path: Path
) -> None:
    files, said = await written(client, tmp_path / "b.tar.gz")
    assert files.keys() == {
        *("doctor.json", "contents.json", *bundle.OBJECTS),
        *(f"logs/{PLUGIN_POD}/device-plugin.log", f"metrics/{PLUGIN_POD}.txt"),
    }
    assert [one["metadata"]["name"] for one in json.loads(files["objects/gpunodes.json"])["items"]] == ["gpu-1"]
    assert b"last line" in files[f"logs/{PLUGIN_POD}/device-plugin.log"]
    contents = json.loads(files["contents.json"])
    assert contents["files"] == {name: len(data) for name, data in files.items() if name != "contents.json"}
    assert contents["notRead"] == {} and contents["cut"] == []
    assert f"secrets removed: {contents['secretsRemoved']}" in said
    assert stat.S_IMODE((tmp_path / "b.tar.gz").stat().st_mode) == 0o600


async def test_a_device_plugin_without_shares_serves_no_metrics_and_is_not_asked(
    cluster: HealthyCluster, client: WithKubelets, tmp_path: Path
) -> None:
    # Nodes of healthy_cluster offer shares.
    gone = {"metadata": {"labels": {names.SHARE_LABEL: None}}}
    await cluster.client.patch(Node, NODE, gone)
    none = {"status": {"capacity": {names.VCUDA_CORE: None}}}
    await cluster.client.patch(Node, NODE, none, subresource="status")
    files, said = await written(client, tmp_path / "b.tar.gz")
    assert f"metrics/{PLUGIN_POD}.txt" not in files
    assert json.loads(files["contents.json"])["notRead"] == {} and "not read" not in said
    assert not [path for path in client.asked if path.endswith("/proxy/metrics")]


async def test_secrets_are_removed_counted_and_never_asked_for(
    cluster: HealthyCluster, client: WithKubelets, tmp_path: Path
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": SPACE},
              "stringData": {"x": HIDDEN}}  # fmt: skip
    await cluster.client.create(secret, resource=Secret.RESOURCE)
    before = json.loads((await written(client, tmp_path / "a.tar.gz"))[0]["contents.json"])["secretsRemoved"]
    assert before >= 2, "the log has two"
    variable = {"name": "NGC_API_KEY", "value": HIDDEN}
    change = {"spec": {"template": {"spec": {"containers": [{"name": "device-plugin", "env": [variable]}]}}}}
    await cluster.client.patch(DaemonSet, PLUGIN, change, SPACE, type="strategic")
    note = {"metadata": {"annotations": {"example.com/token": HIDDEN}}}
    await cluster.client.patch(DaemonSet, PLUGIN, note, SPACE)
    files, _ = await written(client, tmp_path / "b.tar.gz")
    assert not [name for name, data in files.items() if HIDDEN.encode() in data]
    assert json.loads(files["contents.json"])["secretsRemoved"] == before + 2
    assert not [path for path in client.asked if "secrets" in path]


async def test_sizes_are_bounded_and_a_log_keeps_its_end(
    client: WithKubelets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.log = b"".join(b"line %d\n" % number for number in range(200_000))
    monkeypatch.setattr(bundle, "LONGEST_FILE", 10_000)
    files, _ = await written(client, tmp_path / "b.tar.gz")
    log = f"logs/{PLUGIN_POD}/device-plugin.log"
    contents = json.loads(files["contents.json"])
    assert len(files[log]) == 10_000 and files[log].endswith(b"line 199999\n") and log in contents["cut"]
    monkeypatch.setattr(bundle, "LARGEST", 15_000)
    files, _ = await written(client, tmp_path / "c.tar.gz")
    contents = json.loads(files["contents.json"])
    assert sum(contents["files"].values()) <= 15_000
    assert "has" in contents["notRead"][f"metrics/{PLUGIN_POD}.txt"]


async def test_what_cannot_be_read_is_listed(cluster: HealthyCluster, tmp_path: Path) -> None:
    place = tmp_path / "b.tar.gz"
    code, out, err = await gpuplane(tmp_path, "doctor", "--bundle", str(place))
    assert code == 0 and "no finding" in out
    assert "wrote " in err and "see contents.json" in err
    with tarfile.open(place) as archive:
        member = archive.extractfile("gpuplane-doctor/contents.json")
        assert member is not None
        assert f"logs/{PLUGIN_POD}/device-plugin.log" in decode_any(member.read())["notRead"]


async def test_a_place_that_cannot_be_written_leaves_nothing(
    client: WithKubelets, cluster: HealthyCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = await gpuplane(tmp_path, "doctor", "--bundle", str(tmp_path / "absent/b.tar.gz"))
    assert code == 1 and "cannot write the file" in err

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    place = tmp_path / "b.tar.gz"
    place.write_text("before")
    monkeypatch.setattr("gpuplane.cli.output_files.os.fsync", full)
    code, _, err = await gpuplane(tmp_path, "doctor", "--bundle", str(place))
    assert code == 1 and "no space left on device" in err
    assert place.read_text() == "before" and not list(tmp_path.glob(".b.tar.gz-*"))


def test_every_component_whose_metrics_are_read_is_installed() -> None:
    assert {names.EXTENDER_NAME, names.ADMISSION_NAME, PLUGIN} <= set(bundle.METRICS)
