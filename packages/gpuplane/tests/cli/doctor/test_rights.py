"""The doctor with the rights of a reader: enough with its ClusterRole, and honest without one of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.cli.doctor.checks.registry import CHECKS
from gpuplane.cli.doctor.reading import ROLE, SOURCES
from gpuplane.operator.installation import manifests, resource_of
from kubekit.kube import Client
from packages.gpuplane.tests.cli.doctor.cured import kubectl
from packages.gpuplane.tests.cli.doctor.healthy_cluster import HealthyCluster, healthy_cluster
from packages.gpuplane.tests.cli.status_clusters import gpuplane
from tests.support import find_kubectl
from tinykube.apiserver.hooks import User


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[HealthyCluster]:
    """A healthy cluster, and a kubeconfig of ann, who has no rights."""
    async with healthy_cluster(tmp_path) as made:
        made.world.server.extensions.identity.add("ann", User("ann", ("system:authenticated",)))
        made.config.write_text(made.world.kubeconfig("ann"))
        yield made


async def grant(cluster: HealthyCluster) -> None:
    """Bind the role of the doctor to ann."""
    subject = {"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "ann"},
        "roleRef": {"kind": "ClusterRole", "name": ROLE, "apiGroup": "rbac.authorization.k8s.io"},
        "subjects": [subject],
    }
    await cluster.client.apply(binding, "test", resource=resource_of(binding))


def roles() -> list[dict[str, Any]]:
    return [one for one in manifests() if one["metadata"]["name"] == ROLE]


def test_the_roles_only_read_and_no_secret() -> None:
    rules = [rule for role in roles() for rule in role["rules"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list"}
    assert not any("secrets" in rule["resources"] or "*" in rule["resources"] for rule in rules)


async def test_the_role_of_the_installation_is_enough(cluster: HealthyCluster, tmp_path: Path) -> None:
    await grant(cluster)
    code, out, err = await gpuplane(tmp_path, "doctor")
    assert (code, err) == (0, ""), out


async def test_without_rights_nothing_is_called_healthy(cluster: HealthyCluster, tmp_path: Path) -> None:
    code, out, _ = await gpuplane(tmp_path, "doctor", "-o", "json")
    found = json.loads(out)["checks"]
    assert code == 3
    assert {one["state"] for one in found} == {"could not look"}
    missing = {source["right"] for one in found for source in one["unread"]}
    assert missing == {source.right for source in SOURCES.values() if "/version" not in source.right}
    code, out, _ = await gpuplane(tmp_path, "doctor")
    assert code == 3 and out.endswith(f"prod: {len(CHECKS)} checks could not look\n")
    assert "leases: could not look" in out and "no right to list leases.coordination.k8s.io in gpu-operator" in out


async def test_the_printed_command_gives_the_rights(cluster: HealthyCluster, tmp_path: Path) -> None:
    try:
        find_kubectl.find()
    except find_kubectl.NoKubectl as problem:
        pytest.skip(str(problem))
    _, out, _ = await gpuplane(tmp_path, "doctor", "--check", "gpus", "-o", "json")
    [cure] = {source["cure"] for source in json.loads(out)["checks"][0]["unread"]}
    cluster.config.write_text(cluster.world.kubeconfig())  # an administrator carries it out
    await kubectl(cluster, cure.removeprefix("kubectl "))
    cluster.config.write_text(cluster.world.kubeconfig("ann"))
    assert (await gpuplane(tmp_path, "doctor"))[0] == 0


@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
async def test_each_right_that_is_missing_ends_each_check_that_needs_it(
    check: Any, cluster: HealthyCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role without one resource after the other: the check does not look, and the others do."""
    await grant(cluster)
    [role] = [one for one in roles() if one["kind"] == "ClusterRole"]
    for rule in role["rules"]:
        for resource in rule["resources"]:
            left = [{**r, "resources": [one for one in r["resources"] if one != resource or r is not rule]}
                    for r in role["rules"]]  # fmt: skip
            changed = {**role, "rules": [r for r in left if r["resources"]]}
            await cluster.client.apply(changed, "test", resource=resource_of(role))
            code, out, _ = await gpuplane(tmp_path, "doctor", "--check", check.name, "-o", "json")
            [report] = json.loads(out)["checks"]
            needed = [source.right for name, source in SOURCES.items() if name in check.sources]
            blind = any(resource in right.replace(".", " ").split() for right in needed)
            assert (code, report["state"]) == ((3, "could not look") if blind else (0, "healthy")), resource


async def test_a_finding_counts_more_than_a_check_that_could_not_look(cluster: HealthyCluster, tmp_path: Path) -> None:
    await grant(cluster)
    [role] = [one for one in roles() if one["kind"] == "ClusterRole"]
    rules = [rule for rule in role["rules"] if "leases" not in rule["resources"]]
    await cluster.client.apply({**role, "rules": rules}, "test", resource=resource_of(role))
    await cluster.gpus("gpu-1", {"GPU-gpu-1-0": "lost"})
    code, out, _ = await gpuplane(tmp_path, "doctor")
    assert code == 1
    assert "1 finding, 2 checks could not look" in out


async def test_without_the_api_servers_clock_no_time_is_judged(
    cluster: HealthyCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_date(client: Client) -> None:
        return None

    await grant(cluster)
    monkeypatch.setattr(Client, "server_time", no_date)
    code, out, _ = await gpuplane(tmp_path, "doctor", "-o", "json")
    blind = {one["name"] for one in json.loads(out)["checks"] if one["state"] == "could not look"}
    assert (code, blind) == (3, {"leases", "clocks", "webhooks"})
