"""Rights to read of a user who may view a namespace or the cluster."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.operator.installation import manifests
from kubekit.api.core import Event, Namespace
from kubekit.api.kinds import built_in
from packages.gpuplane.tests.cli.status_clusters import gpuplane, installed, report
from tests.support.aggregated_roles import write_aggregated_roles
from tests.support.extender_world import World, gpu_pod
from tests.support.until import until
from tinykube.apiserver import User


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    async with installed(tmp_path) as made:
        yield made


async def test_an_operator_that_may_not_be_read_counts_as_there(cluster: World, tmp_path: Path) -> None:
    roles = [one for one in manifests() if one["metadata"]["name"] == "gpuplane:view"]
    cluster.server.extensions.identity.add("vera", User("vera", ("system:authenticated",)))
    group = "rbac.authorization.k8s.io"
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    rules = [*roles[0]["rules"], pods]
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "view"}, "rules": rules}
    for made in (role, granted("ClusterRoleBinding")):
        await cluster.client.apply(made, "test", resource=built_in(made["apiVersion"], made["kind"]))
    (tmp_path / "config").write_text(cluster.kubeconfig("vera"))

    async def answered() -> bool:
        code, out, _ = await gpuplane(tmp_path, "status")
        return code == 0 and "no GPU nodes" in out

    await until(answered)


def granted(kind: str, **metadata: str) -> dict[str, Any]:
    """A binding of the role `view` to the user vera."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": {"name": "vera", **metadata},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "vera"}],
    }


async def let_in(cluster: World, binding: dict[str, Any]) -> None:
    cluster.server.extensions.identity.add("vera", User("vera", ("system:authenticated",)))
    await cluster.client.apply(binding, "test", resource=built_in(binding["apiVersion"], binding["kind"]))


async def test_a_user_who_may_view_one_namespace_is_told_what_its_events_say(cluster: World, tmp_path: Path) -> None:
    for name in ("ml", "others"):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await cluster.client.create(body, resource=Namespace.RESOURCE)
    await let_in(cluster, granted("RoleBinding", namespace="ml"))
    (tmp_path / "config").write_text(cluster.kubeconfig("vera", namespace="ml"))
    await cluster.node("n1")
    await cluster.pod(gpu_pod("secret", (90, 8), namespace="others", nodeName="n1"))
    made = await cluster.pod(gpu_pod("tune", (40, 8), namespace="ml"))
    code, out, _ = await gpuplane(tmp_path, "explain", "tune")
    assert code == 0
    assert "ml/tune   waiting" in out and "for 40% core + 2 GiB of one GPU" in out
    assert "can ever run: unknown" in out and '"canEverRun": null' in (await told(tmp_path, "tune", "-o", "json"))
    assert "may not list pods of all namespaces, nodes, gpunodes" in out and "no scheduler has" in out
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "tune.1", "namespace": "ml"},
        "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "tune", "uid": made["metadata"]["uid"]},
        "reason": "FailedScheduling",
        "message": "0/1 nodes are available: 1 no GPU has 40% core",
        "type": "Warning",
    }
    await cluster.client.create(event, resource=Event.RESOURCE)
    code, out, _ = await gpuplane(tmp_path, "explain", "tune")
    assert (code, "FailedScheduling: 0/1 nodes are available: 1 no GPU has 40% core" in out) == (0, True)
    assert "secret" not in out and "n1" not in out
    assert "cure     an administrator runs gpuplane explain ml/tune" in out
    await cluster.pod(gpu_pod("second", (40, 8), namespace="ml"))
    await cluster.pod(gpu_pod("runs", (40, 8), namespace="ml", nodeName="n1"))
    everything = await told(tmp_path, "-n", "ml")
    # Pods of the same second come by name, others by age.
    pages = {page.split()[0]: page for page in re.split("(?m)^(?=ml/)", everything) if page.strip()}
    assert set(pages) == {"ml/tune", "ml/second"}
    assert "FailedScheduling: 0/1 nodes" in pages["ml/tune"]
    assert "FailedScheduling" not in pages["ml/second"] and "no scheduler has looked at it yet" in pages["ml/second"]
    for words in (("secret", "-n", "others"), ("-n", "others"), ("-A",)):
        code, _, err = await gpuplane(tmp_path, "explain", *words)
        assert (code, "forbidden" in err) == (3, True)


async def told(tmp_path: Path, *words: str) -> str:
    code, out, err = await gpuplane(tmp_path, "explain", *words)
    assert code == 0, err
    return out


async def test_who_may_view_the_cluster_sees_status_and_explain(cluster: World, tmp_path: Path) -> None:
    await let_in(cluster, granted("ClusterRoleBinding"))
    (tmp_path / "config").write_text(cluster.kubeconfig("vera"))
    await cluster.node("n1")
    await report(cluster, "n1", ready=True)
    await cluster.pod(gpu_pod("tune", (40, 8)))
    for words in (("status",), ("status", "--watch"), ("status", "--wait"), ("status", "--watch", "-o", "json")):
        code, out, err = await gpuplane(tmp_path, *words)
        assert (code, out, "forbidden" in err) == (3, "", True), words
    [role] = [one for one in manifests() if one["metadata"]["name"] == "gpuplane:view"]
    await cluster.client.apply(role, "test", resource=built_in(role["apiVersion"], role["kind"]))
    await write_aggregated_roles(cluster.client)

    async def allowed() -> bool:
        return (await gpuplane(tmp_path, "status"))[0] == 0

    await until(allowed)
    assert "1 GPU node" in (await gpuplane(tmp_path, "status"))[1]
    assert "1 node" in (await gpuplane(tmp_path, "explain", "tune"))[1]
