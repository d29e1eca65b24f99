"""The dashboard's page for one namespace: its pods with their use, what waits, its quota, and manifests that fit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import yaml

from gpuplane import names
from gpuplane.cli.main import main
from gpuplane.cli.status_views import WaitingPod
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.mine import SPACES, fitting, manifest, quota_lines, running, spaces
from gpuplane.metering.use import GPUUse, PodUse
from gpuplane.scheduler.quota import NamespaceQuota
from kubekit.api.core import ConfigMap, Namespace
from packages.gpuplane.tests.cli.status_clusters import gpuplane, installed, report
from packages.gpuplane.tests.cli.status_objects import gpunode, overview, pod, share
from packages.gpuplane.tests.dashboard.scene import Started, dashboard, get, held
from tests.support.extender_world import World, gpu_pod

SEEN = overview(
    [gpunode("n1"), gpunode("n2")],
    [share("tune", "n1", 30, 1, 0), share("train", "n1", 100, 20, 1), pod("old", "n2", 1)],
    {"n1": 2, "n2": 2},
)
FIRST, SECOND = (gpu.uuid for gpu in SEEN.nodes[0].gpus)
USE = MeasuredUse(
    {
        FIRST: GPUUse("n1", 0, 29.6, pods={"ml/tune": PodUse(29.6, 900.0)}),
        SECOND: GPUUse("n1", 1, 0.0, idle_seconds=1900, pods={"ml/train": PodUse(0.0, 100.0)}),
    },
    "",
    "x",
)


def test_pods_have_what_they_hold_and_use_those_that_hold_most_first() -> None:
    rows = running(SEEN, "ml", USE)
    assert [(row["pod"], row["gpus"], row["idleMinutes"]) for row in rows] == [
        ("ml/old", 1.0, 0),
        ("ml/train", 1.0, 31),
        ("ml/tune", 0.3, 0),
    ]
    assert rows[2]["holds"][0].startswith("n1/0 30%") and rows[2]["use"][0]["core"] == 29.6
    assert rows[0]["holds"] == ["n2 1 GPU"] and rows[0]["use"] == []


def test_pods_of_other_namespaces_are_no_rows_also_where_a_name_begins_alike() -> None:
    assert running(SEEN, "m", USE) == [] and running(SEEN, "default", USE) == []


def test_namespaces_to_choose_from_are_bounded_and_have_the_own() -> None:
    assert spaces(SEEN, "zoo") == ["ml", "zoo"]
    waiting = tuple(WaitingPod(f"space-{number:03}/p", "") for number in range(2 * SPACES))
    many = spaces(msgspec.structs.replace(SEEN, waiting_pods=waiting), "zoo")
    assert len(many) == SPACES and "zoo" in many


def test_what_fits_is_listed_the_largest_first_with_a_manifest_of_whole_gpus() -> None:
    found = fitting({"1": 13, "8": 1, "0.5": 31, "4": 0, "mig-1g.10gb": 2})
    assert [(one["size"], one["pods"]) for one in found] == [("8", 1), ("1", 13), ("0.5", 31), ("mig-1g.10gb", 2)]
    assert ["manifest" in one for one in found] == [True, True, False, False]


def test_a_manifest_passes_check(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(manifest(8))
    assert yaml.safe_load(manifest(8))["spec"]["containers"][0]["resources"]["limits"] == {names.GPU_RESOURCE: "8"}
    assert main(["check", str(tmp_path / "pod.yaml")]) == 0


def test_a_quota_has_each_model_that_is_allowed() -> None:
    quota = NamespaceQuota({"T4": 800, "A100": 50})
    assert quota_lines(quota, {("ml", "T4"): 640, ("web", "A100"): 50}, "ml") == [
        {"model": "A100", "used": 0.0, "of": 0.5},
        {"model": "T4", "used": 6.4, "of": 8.0},
    ]


# -- served ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    async with installed(tmp_path) as made:
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
        await made.client.create(space, resource=Namespace.RESOURCE)
        await made.node("n1", labels={names.QUOTA_MODEL_LABEL: "T4"})
        await report(made, "n1", ready=True)
        await held(made, "tune", "n1", 0, 30)
        await made.pod(gpu_pod("late", whole=3, namespace="ml"))
        quotas = {names.QUOTA_KEY: json.dumps({"ml": {"quota": {"T4": 8}}})}
        meta = {"name": names.QUOTA_CONFIGMAP, "namespace": names.QUOTA_NAMESPACE}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": quotas}
        await made.client.create(body, resource=ConfigMap.RESOURCE)
        yield made


@pytest.fixture
async def page(cluster: World, tmp_path: Path) -> AsyncIterator[Started]:
    async with dashboard(tmp_path) as started:
        yield started


async def test_a_namespace_has_its_pods_its_cures_and_its_quota(page: Started, tmp_path: Path) -> None:
    found = (await get(page, "/api/mine?ns=ml")).json
    assert [one["pod"] for one in found["running"]] == ["ml/tune"]
    assert [one["pod"] for one in found["waiting"]] == ["ml/late"]
    assert found["waiting"][0]["cures"][0]["change"] == "ask 1 instead of 3 GPUs"
    assert found["quota"] == [{"model": "T4", "used": 0.3, "of": 8.0}]
    assert found["spaces"] == ["ml"] and not found["measured"]
    code, out, _ = await gpuplane(tmp_path, "status", "-o", "json")
    assert code == 0 and {one["size"]: one["pods"] for one in found["fits"]} == {
        size: pods for size, pods in json.loads(out)["fits"].items() if pods
    }


async def test_without_a_name_it_is_the_namespace_of_the_context(page: Started) -> None:
    found = (await get(page, "/api/mine")).json
    assert (found["namespace"], found["spaces"]) == ("default", ["default", "ml"])
    assert (found["running"], found["waiting"], found["quota"]) == ([], [], [])


@pytest.mark.parametrize("name", ["..%2Fsecrets", "A", "a%2Fb", "-", "%1b", "a" * 64])
async def test_what_is_no_namespace_is_not_asked_of_the_api_server(page: Started, name: str) -> None:
    answer = await get(page, f"/api/mine?ns={name}")
    assert answer.status == 404 and "is no namespace" in answer.json["what"] and "\x1b" not in answer.json["what"]
