"""Output of `gpuplane status` and `explain` for a cluster, also without gpuplane or without its operator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.cli.completion import candidates
from gpuplane.cli.status_reading import Follower
from gpuplane.operator.autoscaler_install import AutoscalerInstall
from gpuplane.operator.installation import installation
from kubekit.api.core import DaemonSet, Deployment, Namespace, Node, Pod
from kubekit.kube import Client, NotFound
from packages.gpuplane.tests.cli.status_clusters import gpuplane, installed, report
from tests.support import find_kubectl
from tests.support.extender_world import World, gpu_pod
from tests.support.until import until

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpunodes.gpuplane.dev"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    async with installed(tmp_path) as made:
        yield made


async def test_a_cluster_without_gpuplane_is_told_with_the_exit_code_of_no(cluster: World, tmp_path: Path) -> None:
    await cluster.client.request("DELETE", CRD)

    async def gone() -> bool:
        try:
            await cluster.client.list(GPUNode)
        except NotFound:
            return True
        return False

    await until(gone)
    for arguments in (("status",), ("status", "-o", "json"), ("status", "--watch"), ("status", "--wait")):
        code, out, err = await gpuplane(tmp_path, *arguments)
        assert (code, out) == (1, ""), arguments
        assert "gpuplane is not on this cluster" in err and "gpuplane install" in err
    code, _, err = await gpuplane(tmp_path, "status", "-v")
    assert code == 1, "a stack trace does not change the exit code"
    assert "Traceback" in err and "gpuplane is not on this cluster" in err


@pytest.mark.parametrize(
    ("arguments", "token", "code", "says"),
    [
        (("explain", "default/absent"), "admin", 1, "absent"),
        (("explain", "default/absent"), "nobody", 3, "Unauthorized"),
        (("install",), "admin", 1, "field is immutable"),
        (("install",), "nobody", 3, "Unauthorized"),
    ],
)
async def test_a_stack_trace_does_not_change_the_exit_code(
    cluster: World, tmp_path: Path, arguments: tuple[str, ...], token: str, code: int, says: str
) -> None:
    (tmp_path / "config").write_text(cluster.kubeconfig(token))
    for verbose in ((), ("-v",)):
        found, out, err = await gpuplane(tmp_path, *arguments, *verbose)
        assert (found, out) == (code, "")
        assert says in " ".join(err.split())
        assert ("Traceback" in err) == bool(verbose)


async def test_the_version_is_that_of_the_cluster(cluster: World, tmp_path: Path) -> None:
    _, out, _ = await gpuplane(tmp_path, "status")
    assert "gpuplane 0.0.7" in out


async def test_a_cluster_that_has_the_crds_alone_is_told_as_one_without_gpuplane(
    cluster: World, tmp_path: Path
) -> None:
    await cluster.client.delete(Deployment, "gpu-operator", names.OPERATOR_NAMESPACE)
    for arguments in (("status",), ("status", "gpus"), ("status", "--watch"), ("status", "--wait", "-o", "json")):
        code, out, err = await gpuplane(tmp_path, *arguments)
        assert (code, out) == (1, ""), arguments
        assert "gpuplane is not on this cluster: its CRDs are, its operator is not" in err
        assert "gpuplane install" in err and "kubectl" not in err


async def test_gpu_nodes_without_an_operator_are_listed_with_its_absence(cluster: World, tmp_path: Path) -> None:
    await cluster.node("n1")
    await report(cluster, "n1", ready=True)
    assert "no operator" not in (await gpuplane(tmp_path, "status"))[1]
    await cluster.client.delete(Deployment, "gpu-operator", names.OPERATOR_NAMESPACE)
    code, out, _ = await gpuplane(tmp_path, "status")
    assert code == 0 and "gpuplane 0.0.7" not in out
    assert "\n ✗ no operator\n     what   namespace gpu-operator has no deployment" in out
    assert out.splitlines()[-1].strip() == "cure   gpuplane install"
    assert json.loads((await gpuplane(tmp_path, "status", "-o", "json"))[1])["unattended"] is True
    code, out, _ = await gpuplane(tmp_path, "status", "-l", "pool=none")
    assert (code, "no GPU nodes" in out) == (0, True), "others have nodes"


async def test_an_autoscaler_without_a_pool_is_named_instead_of_discovery(cluster: World, tmp_path: Path) -> None:
    await cluster.node("cpu-only")
    for gpunode in await cluster.client.list(GPUNode):
        await cluster.client.delete(GPUNode, gpunode.metadata.name)
    assert "discovery runs" in (await gpuplane(tmp_path, "status"))[1]
    labels = {"app": "gpuplane-autoscaler"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "gpuplane"}]}}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": names.AUTOSCALER_NAME, "namespace": names.OPERATOR_NAMESPACE},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    await cluster.client.create(body, resource=Deployment.RESOURCE)
    _, out, _ = await gpuplane(tmp_path, "status")
    assert "what   the autoscaler has no node pool: it buys no nodes" in out and "discovery" not in out
    assert json.loads((await gpuplane(tmp_path, "status", "-o", "json"))[1])["buysNodes"] is True
    async with Client.connect(tmp_path / "config") as client:
        follower = Follower(client)
        await follower.start()
        try:
            await until(lambda: follower.seen().buys_nodes, what="the autoscaler")
        finally:
            await follower.aclose()


def test_the_deployment_that_is_looked_for_is_the_one_that_install_applies() -> None:
    applied = installation(autoscaler=AutoscalerInstall({"CLUSTER_NAME": "demo"}))
    found = [one["metadata"]["name"] for one in applied if one["kind"] == "Deployment"]
    assert names.AUTOSCALER_NAME in found


async def test_waiting_pods_are_named_with_the_command_that_explains(cluster: World, tmp_path: Path) -> None:
    await cluster.node("n1")
    await report(cluster, "n1", ready=True)
    for name in ("late", "later"):
        await cluster.pod(gpu_pod(name, (40, 8)))
    _, out, _ = await gpuplane(tmp_path, "status")
    assert " ! 2 pods wait for GPUs\n     what   default/late" in out
    assert "cure   gpuplane explain default/late" in out


async def test_reading_verbs_select_as_kubectl_does(cluster: World, tmp_path: Path) -> None:
    for node in ("a", "b"):
        await cluster.node(node, labels={"pool": node})
        await report(cluster, node, ready=True)
    for space in ("ml", "others"):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
        await cluster.client.create(body, resource=Namespace.RESOURCE)
        labels = {"name": f"late-{space}", "namespace": space, "labels": {"team": space}}
        await cluster.pod(gpu_pod(f"held-{space}", (30, 4), namespace=space, nodeName="a"))
        await cluster.pod(gpu_pod(f"late-{space}", namespace=space, whole=8, metadata=labels))
    _, out, _ = await gpuplane(tmp_path, "status", "-l", "pool=b", "-o", "name")
    assert out.split() == ["gpunode/b"]
    _, out, _ = await gpuplane(tmp_path, "status", "-n", "ml")
    assert "1 running   1 waiting" in out and "late-ml" in out and "late-others" not in out
    assert "0.6 of 4 GPUs" in out, "what is held is held, by whomever"
    _, out, _ = await gpuplane(tmp_path, "status", "gpus", "-n", "ml")
    assert "held-ml" in out and "held-others" not in out
    _, out, _ = await gpuplane(tmp_path, "status", "gpus", "-A")
    assert "held-ml" in out and "held-others" in out
    _, out, _ = await gpuplane(tmp_path, "explain", "-n", "ml", "-o", "name")
    assert out.split() == ["pod/late-ml"]
    _, out, _ = await gpuplane(tmp_path, "explain", "-A", "-o", "json")
    assert [one["pod"] for one in json.loads(out)["items"]] == ["ml/late-ml", "others/late-others"]
    _, out, _ = await gpuplane(tmp_path, "explain", "-A", "-l", "team=others")
    assert out.startswith("others/late-others   waiting") and "ml/late-ml" not in out
    _, out, _ = await gpuplane(tmp_path, "explain", "others/late-others", "-o", "yaml")
    assert yaml.safe_load(out)["pod"] == "others/late-others"
    code, out, err = await gpuplane(tmp_path, "explain", "-n", "default")
    assert (code, out, err) == (0, "", "no pod waits for GPUs\n")


async def test_completion_knows_pods_and_nodes(cluster: World, tmp_path: Path) -> None:
    await cluster.node("gpu-1")
    await cluster.pod(gpu_pod("tune", (30, 4)))
    plain = gpu_pod("web")
    plain["spec"]["containers"] = [{"name": "c", "image": "app"}]
    await cluster.pod(plain)
    ask = ("--kubeconfig", str(tmp_path / "config"))
    assert await asyncio.to_thread(candidates, ["explain", *ask, ""]) == ["default/tune"]
    assert await asyncio.to_thread(candidates, ["explain", *ask, "-n", "default", "t"]) == ["tune"]
    assert await asyncio.to_thread(candidates, ["status", *ask, "-n", "gpu"]) == [names.OPERATOR_NAMESPACE]
    assert await asyncio.to_thread(candidates, ["run", "driver", *ask, "--node-name", ""]) == ["gpu-1"]


@pytest.fixture(scope="session")
def kubectl() -> str:
    """The path of a kubectl."""
    try:
        return str(find_kubectl.find())
    except find_kubectl.NoKubectl as problem:
        pytest.skip(str(problem))


async def test_the_commands_that_cure_a_lost_gpu_do_what_is_said(cluster: World, tmp_path: Path, kubectl: str) -> None:
    await cluster.node("n1")
    await report(cluster, "n1", ready=True)
    await cluster.set_gpus("n1", 2, health={"GPU-n1-1": "Xid 79: fallen off the bus"})
    template = {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [{"name": "c", "image": "app"}]}}
    made = await cluster.client.create(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "agent", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": template},
        },
        resource=DaemonSet.RESOURCE,
    )
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": made["metadata"]["uid"]}
    at_once = {"nodeName": "n1", "terminationGracePeriodSeconds": 0}
    await cluster.pod(gpu_pod("scratch", (50, 4), volumes=[{"name": "data", "emptyDir": {}}], **at_once))
    owned = {"ownerReferences": [{**owner, "controller": True}]}
    await cluster.pod(gpu_pod("agent-1", (0, 0), metadata=owned, **at_once))
    _, out, _ = await gpuplane(tmp_path, "status")
    [drain] = [line.split() for line in out.splitlines() if line.strip().startswith("kubectl drain")]
    assert await call(kubectl, *drain[1:], "--timeout=30s", config=tmp_path / "config") == 0
    assert [pod.metadata.name for pod in await cluster.client.list(Pod)] == ["agent-1"]
    assert (await cluster.client.get(Node, "n1")).spec.unschedulable
    [_, uncordon] = out.partition("afterwards kubectl ")[1:]
    assert await call(kubectl, *uncordon.split()[:2], config=tmp_path / "config") == 0
    assert not (await cluster.client.get(Node, "n1")).spec.unschedulable


async def call(*command: str, config: Path) -> int:
    """The exit code of a kubectl that uses the kubeconfig `config`."""
    process = await asyncio.create_subprocess_exec(*command, "--kubeconfig", str(config))
    return await process.wait()


async def test_replicas_of_mps_are_told_from_time_slices(cluster: World, tmp_path: Path) -> None:
    await cluster.node("n1", gpus=1)
    await report(cluster, "n1", ready=True)
    await cluster.set_ready("n1", ready=True, amounts={names.GPU_RESOURCE: "4", "cpu": "8"})
    assert "Fits now  replica ×4" in (await gpuplane(tmp_path, "status"))[1]
    await cluster.client.patch(Node, "n1", {"metadata": {"labels": {names.MPS_LABEL: "true"}}})
    assert "Fits now  MPS replica ×4" in (await gpuplane(tmp_path, "status"))[1]
