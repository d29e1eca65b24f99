"""`gpuplane explain` as a command on an API server: what is read, which forms there are, what a wrong name means."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubekit.api.core import Namespace
from kubekit.api.kinds import built_in
from tests.support.extender_world import World, gpu_pod, world
from tests.support.until import until
from tinykube.apiserver import User

RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """An API server with the namespaces ml and others."""
    async with world(tmp_path) as made:
        (tmp_path / "config").write_text(made.kubeconfig(namespace="ml"))
        for name in ("ml", "others"):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await made.client.create(body, resource=Namespace.RESOURCE)
        yield made


async def explain(tmp_path: Path, *words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `gpuplane explain`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuplane", "explain", *words, "--kubeconfig", str(tmp_path / "config"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def bind(cluster: World, kind: str, **metadata: str) -> None:
    """Let the user vera view the cluster, or a namespace."""
    cluster.server.extensions.identity.add("vera", User("vera", ("system:authenticated",)))
    binding: dict[str, Any] = {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": {"name": "vera", **metadata},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "vera"}],
    }
    await cluster.client.apply(binding, "test", resource=built_in(f"{RBAC}/v1", kind))


async def test_a_mistyped_pod_is_answered_with_the_one_that_was_meant(cluster: World, tmp_path: Path) -> None:
    for name, namespace in (("tune-42", "ml"), ("tune-43-large", "others"), ("serving", "others")):
        await cluster.pod(gpu_pod(name, (40, 8), namespace=namespace))
    for wrong, meant in (("tune-4", "ml/tune-42"), ("serving", "others/serving"), ("servign", "others/serving")):
        code, out, err = await explain(tmp_path, wrong)
        assert (code, out) == (1, "")
        assert f"there is no pod {wrong}; did you mean {meant}?" in err
        assert f"cure   gpuplane explain {meant}" in err
    code, _, err = await explain(tmp_path, "xylophone")
    assert code == 1 and "did you mean" not in err and "kubectl get pods -A" in err


async def test_a_user_of_one_namespace_hears_of_no_pod_of_another(cluster: World, tmp_path: Path) -> None:
    await bind(cluster, "RoleBinding", namespace="ml")
    (tmp_path / "config").write_text(cluster.kubeconfig("vera", namespace="ml"))
    await cluster.pod(gpu_pod("tune-42", (40, 8), namespace="ml"))
    await cluster.pod(gpu_pod("payroll", (40, 8), namespace="others"))

    async def allowed() -> bool:
        return "did you mean ml/tune-42?" in (await explain(tmp_path, "tune-4"))[2]

    await until(allowed)
    for wrong in ("payroll", "payrol"):
        code, _, err = await explain(tmp_path, wrong)
        assert code == 1 and f"there is no pod {wrong}" in err
        assert "did you mean" not in err and "others" not in err


async def test_waiting_pods_are_one_list_in_json_and_yaml(cluster: World, tmp_path: Path) -> None:
    assert yaml.safe_load((await explain(tmp_path, "-A", "-o", "yaml"))[1])["items"] == []
    for name in ("first", "second"):
        await cluster.pod(gpu_pod(name, (40, 8), namespace="ml"))
    _, as_json, _ = await explain(tmp_path, "-A", "-o", "json")
    _, as_yaml, _ = await explain(tmp_path, "-A", "-o", "yaml")
    found = yaml.safe_load(as_yaml)
    assert found["kind"] == json.loads(as_json)["kind"] == "ExplanationList"
    assert [one["pod"] for one in found["items"]] == ["ml/first", "ml/second"]
