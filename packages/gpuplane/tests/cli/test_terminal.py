"""What a person sees of `gpuplane status`: on a terminal, through a pipe, on a cluster without gpuplane."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, StageName
from gpuplane.cli.completion import candidates
from gpuplane.cli.status_reading import Follower
from gpuplane.cli.terminal import COLOURS, Console, clipped, harmless
from gpuplane.operator.installation import manifests
from kubekit.api.core import DaemonSet, Deployment, Event, Namespace, Node, Pod
from kubekit.api.kinds import built_in
from kubekit.kube import NotFound, TooManyRequests
from tests.support import find_kubectl
from tests.support.extender_world import World, gpu_pod, world
from tests.support.terminals import on_terminal, plain
from tests.support.until import until
from tinykube.apiserver import User

LOST = "lost: it is on the PCI bus, and NVML does not list it"
WRONG = "fails the vectorAdd: element 13 of 50000 is 2.5094 and should be 3.5094"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpunodes.gpuplane.dev"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """An API server with the operator's Deployment, of version 0.0.7."""
    async with world(tmp_path) as made:
        (tmp_path / "config").write_text(made.kubeconfig())
        await made.client.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.OPERATOR_NAMESPACE}},
            resource=Namespace.RESOURCE,
        )
        labels = {"app": "gpu-operator"}
        container = {"name": "gpu-operator", "image": "registry:5000/gpuplane:0.0.7@sha256:" + 64 * "0"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        await made.client.create(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "gpu-operator", "namespace": names.OPERATOR_NAMESPACE},
                "spec": {"selector": {"matchLabels": labels}, "template": template},
            },
            resource=Deployment.RESOURCE,
        )
        yield made


async def report(cluster: World, name: str, *, ready: bool) -> None:
    """Bring the node's GPUNode to `ready`, or to a failed driver."""
    await cluster.client.patch(Node, name, {"metadata": {"labels": {names.GPU_PRESENT_LABEL: "true"}}})
    done = {stage.value: {"state": "done", "since": "2026-01-01T00:00:00.000000Z"} for stage in StageName}
    failed: dict[str, Any] = dict.fromkeys(list(done)[1:])
    failed["driver"] = {
        "state": "failed",
        "since": "2026-01-01T00:00:00.000000Z",
        "reason": "CompileFailed",
        "message": "the compiler of this node's kernel is missing, " * 4 + name,
        "cure": "install the compiler that made the kernel",
    }
    stages = done if ready else {**done, **failed}
    stage = "ready" if ready else "driver"
    await cluster.client.patch(GPUNode, name, {"status": {"stages": stages, "summary": {"stage": stage}}})


async def gpuplane(tmp_path: Path, *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command whose output goes into pipes."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuplane", *arguments, "--kubeconfig", str(tmp_path / "config"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


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


@pytest.mark.parametrize("what", ["nodes", "gpus"])
async def test_everything_fits_eighty_columns(cluster: World, tmp_path: Path, what: str) -> None:
    name = "ip-10-0-123-234.eu-central-1.compute.internal"
    for node in ("a", name):
        await cluster.node(node, gpus=4)
    await report(cluster, "a", ready=True)
    await report(cluster, name, ready=False)
    for node in ("a", name):
        await cluster.set_gpus(node, 4, health={f"GPU-{node}-{at}": why for at, why in enumerate((LOST, WRONG), 2)})
    state = {names.UPGRADE_STATE_LABEL: "upgrade-failed"}
    await cluster.client.patch(Node, name, {"metadata": {"labels": state}})
    for number in range(3):
        await cluster.pod(gpu_pod(f"a-notebook-with-quite-a-long-name-7d9c8bf6c-{number}", (20, 4), nodeName="a"))
    async with on_terminal("status", what, "--kubeconfig", str(tmp_path / "config"), lines=60) as terminal:
        await terminal.process.wait()
        await terminal.until(lambda: len(terminal.text) > 300)
    lines = plain(terminal.text).splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert any(line.strip().startswith("a ") or "4 GPUs" in line for line in lines)
    assert LOST in " ".join(plain(terminal.text).split())


async def test_an_error_fits_eighty_columns(cluster: World, tmp_path: Path) -> None:
    await cluster.client.delete(Deployment, "gpu-operator", names.OPERATOR_NAMESPACE)
    async with on_terminal("status", "--kubeconfig", str(tmp_path / "config")) as terminal:
        assert await terminal.process.wait() == 1
        await terminal.until(lambda: "puts it there" in " ".join(terminal.text.split()))
    assert max(map(len, plain(terminal.text).splitlines())) <= 80


async def test_watching_draws_no_more_than_the_window_shows(cluster: World, tmp_path: Path) -> None:
    for number in range(12):
        await cluster.node(f"n{number:02}", gpus=1)
        await report(cluster, f"n{number:02}", ready=False)
    arguments = ("status", "--watch", "--kubeconfig", str(tmp_path / "config"))
    async with on_terminal(*arguments, columns=70, lines=16) as terminal:
        await terminal.until(lambda: "12 need you" in plain(terminal.text))
        await report(cluster, "n00", ready=True)
        await terminal.until(lambda: "11 of 12 need you" in plain(terminal.text))
        await terminal.until(lambda: len(terminal.frames()[-1]) == 15)
    for frame in terminal.frames()[:-1]:
        assert len(frame) == 15
        assert max(map(len, frame)) <= 70
    assert any("lines more in a higher window" in line for line in terminal.frames()[0])


@pytest.mark.parametrize("kind", ["pipe", "dumb terminal"])
async def test_watching_without_a_terminal_prints_a_line_for_each_change(
    cluster: World, tmp_path: Path, kind: str
) -> None:
    await cluster.node("n1")
    await report(cluster, "n1", ready=False)
    arguments = ("status", "--watch", "--kubeconfig", str(tmp_path / "config"))
    if kind == "dumb terminal":
        async with on_terminal(*arguments, TERM="dumb") as terminal:
            await terminal.until(lambda: "n1" in terminal.text)
            await report(cluster, "n1", ready=True)
            await terminal.until(lambda: terminal.text.count("n1 ") == 2)
        assert "\x1b" not in terminal.text
        return
    async with followed(*arguments) as line:
        assert (await line()).startswith("n1   ")
        await report(cluster, "n1", ready=True)
        assert "ready" in await line()


@contextlib.asynccontextmanager
async def followed(*arguments: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """A command that stays, with its stdout in a pipe; yields what returns the next line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuplane", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    out = process.stdout

    async def line() -> str:
        async with asyncio.timeout(60):
            return (await out.readline()).decode().rstrip()

    try:
        yield line
    finally:
        process.terminate()
        await process.wait()


async def test_a_pipe_gets_the_causes_of_changes_and_the_pods_that_wait(cluster: World, tmp_path: Path) -> None:
    await cluster.node("n1", gpus=1)
    await report(cluster, "n1", ready=True)
    fault = "Xid 79: fallen off the bus"
    async with followed("status", "gpus", "--watch", "--kubeconfig", str(tmp_path / "config")) as line:
        assert [(await line()).split()[0] for _ in range(2)] == ["n1", "n1/0"]
        await cluster.pod(gpu_pod("serve", whole=1, nodeName="n1"))
        assert await line() == "n1/0   default/serve whole"
        await cluster.client.patch(GPUNode, "n1", {"status": {"health": {"GPU-n1-0": fault}}})
        assert (await line()).endswith(f"ready   GPU 0: {fault}; default/serve holds it")
        assert await line() == f"n1/0   ✗ {fault}   default/serve whole"
        await cluster.set_ready("n1", ready=False)
        assert f"the node is not Ready: Test; GPU 0: {fault}" in await line()
        await cluster.pod(gpu_pod("late", whole=1))
        assert await line() == "default/late   waits for GPUs   gpuplane explain default/late"
        await cluster.client.delete(GPUNode, "n1")
        assert await line() == "n1   gone"


async def test_waiting_shows_one_live_table_with_counts_and_ends_with_the_next_command(
    cluster: World, tmp_path: Path
) -> None:
    for name in ("n1", "n2"):
        await cluster.node(name)
    await report(cluster, "n1", ready=True)
    await report(cluster, "n2", ready=False)
    async with on_terminal("status", "--wait", "--kubeconfig", str(tmp_path / "config")) as terminal:
        await terminal.until(lambda: " 1 of 2 GPU nodes ready\n n2" in plain(terminal.text))
        await report(cluster, "n2", ready=True)
        assert await terminal.process.wait() == 0
        await terminal.until(lambda: "Next:" in terminal.text)
    assert terminal.text.rstrip().splitlines()[-1] == "Next: gpuplane status gpus lists every GPU with its holders"
    drawn, _, page = terminal.text.rpartition("\x1b[J")
    assert "all ready" in plain(page) and "1 of 2 GPU nodes ready" in drawn


async def test_waiting_that_runs_out_clears_the_table_and_says_what_comes_next(cluster: World, tmp_path: Path) -> None:
    for name in ("n1", "n2"):
        await cluster.node(name)
    await report(cluster, "n1", ready=True)
    await report(cluster, "n2", ready=False)
    ends = ["✗ 1 of 2 GPU nodes ready after 1 s", "Next: gpuplane status --wait goes on waiting"]
    wait = ("status", "--wait", "--timeout", "1s", "--kubeconfig", str(tmp_path / "config"))
    async with on_terminal(*wait) as terminal:
        assert await terminal.process.wait() == 1
        await terminal.until(lambda: "Next:" in terminal.text)
    drawn, _, page = terminal.text.rpartition("\x1b[J")
    assert " 1 of 2 GPU nodes ready\n n2" in plain(drawn)
    assert "1 of 2 need you" in page and plain(page).splitlines()[-2:] == ends
    assert plain(page).count("1 of 2 GPU nodes ready") == 1, "the table is gone"
    code, out, err = await gpuplane(tmp_path, "status", "--wait", "--timeout", "1s", "-o", "json")
    assert (code, json.loads(out)["kind"], err.splitlines()[-2:]) == (1, "Status", ends)


async def test_a_cluster_that_does_not_answer_in_time_is_no_cluster_without_gpus(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = {
            "current-context": "prod",
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
        }
        (tmp_path / "config").write_text(json.dumps(config))
        code, out, err = await gpuplane(tmp_path, "status", "--wait", "--timeout", "1s")
    assert (code, out) == (3, "")
    assert "the cluster did not answer within 1 s" in err


async def test_installing_draws_counts_then_the_nodes_and_ends_with_the_next_command(
    cluster: World, tmp_path: Path
) -> None:
    await cluster.node("n1")
    await report(cluster, "n1", ready=False)
    await cluster.client.delete(Deployment, "gpu-operator", names.OPERATOR_NAMESPACE)  # it has another selector
    arguments = ("install", "--wait", "--kubeconfig", str(tmp_path / "config"))
    async with on_terminal(*arguments) as terminal:
        await terminal.until(lambda: " 0 of 1 GPU node ready\n n1" in plain(terminal.text))
        await report(cluster, "n1", ready=True)
        assert await terminal.process.wait() == 0
        await terminal.until(lambda: "Next:" in terminal.text)
    counts = re.findall(r"(\d+) of (\d+) objects   \w+", plain(terminal.text))
    [total] = {all for _, all in counts}
    assert [int(done) for done, _ in counts] == list(range(1, int(total) + 1))
    _, _, page = terminal.text.rpartition("\x1b[J")
    assert f"✓ {total} objects applied\n" in plain(terminal.text) and "all ready" in page
    assert page.rstrip().splitlines()[-1] == "Next: gpuplane status gpus lists every GPU with its holders"
    await report(cluster, "n1", ready=False)
    code, out, err = await gpuplane(tmp_path, "install", "--wait", "--timeout", "5s")
    assert code == 1 and "1 of 1 need you" in out
    assert f"✓ Deployment {names.OPERATOR_NAMESPACE}/gpu-operator\n" in err
    assert err.splitlines()[-2:] == [
        "✗ 0 of 1 GPU node ready after 5 s",
        "Next: gpuplane status --wait goes on waiting",
    ]


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

    async def allowed() -> bool:
        return (await gpuplane(tmp_path, "status"))[0] == 0

    await until(allowed)
    assert "1 GPU node" in (await gpuplane(tmp_path, "status"))[1]
    assert "1 node" in (await gpuplane(tmp_path, "explain", "tune"))[1]


async def test_watching_refuses_labels_that_the_server_refuses(cluster: World, tmp_path: Path) -> None:
    for words in ((), ("--watch",), ("--wait",)):
        code, out, err = await gpuplane(tmp_path, "status", "-l", "a in b", *words)
        assert (code, out) == (1, "") and "unable to parse requirement" in err, words


async def test_watching_goes_on_while_the_api_server_cannot_say_whether_there_is_an_operator(
    cluster: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.node("n1")
    await report(cluster, "n1", ready=False)
    await cluster.client.delete(Deployment, "gpu-operator", names.OPERATOR_NAMESPACE)
    follower = Follower(cluster.client)
    try:
        await follower.start()
        assert follower.seen().unattended
        get = cluster.client.get

        async def away(kind: Any, *arguments: Any) -> Any:
            if kind is Deployment:
                raise TooManyRequests("try later")
            return await get(kind, *arguments)

        monkeypatch.setattr(cluster.client, "get", away)
        await report(cluster, "n1", ready=True)
        async with asyncio.timeout(60):
            while not follower.seen().nodes[0].ready:
                await follower.changed()
    finally:
        await follower.aclose()


async def test_documents_of_a_watch_in_yaml_are_apart(cluster: World, tmp_path: Path) -> None:
    await cluster.node("n1")
    await report(cluster, "n1", ready=False)
    async with followed("status", "-w", "-o", "yaml", "--kubeconfig", str(tmp_path / "config")) as line:
        assert await line() == "---"
        await report(cluster, "n1", ready=True)
        text = ""
        while not (found := await line()).startswith("---"):
            text += found + "\n"
    assert yaml.safe_load(text)["kind"] == "Status"


async def test_what_users_write_gives_no_commands_to_a_terminal(cluster: World, tmp_path: Path) -> None:
    await cluster.node("n1")
    await report(cluster, "n1", ready=True)
    evil = {names.GPU_POLICY_ANNOTATION: "\x1b]0;title\x07\x1b[2J\x9b31mA100"}
    await cluster.pod(gpu_pod("late", whole=1, metadata={"name": "late", "annotations": evil}))
    async with on_terminal("explain", "late", "--kubeconfig", str(tmp_path / "config")) as terminal:
        assert await terminal.process.wait() == 0
        await terminal.until(lambda: "^[]0;title^G^[[2J" in terminal.text)
    assert not {"\x1b]", "\x1b[2J", "\x07", "\x9b"} & set(re.findall(r"\x1b\]|\x1b\[2J|\x07|\x9b", terminal.text))


def test_control_characters_are_written_out_and_our_colours_stay() -> None:
    screen = Console(io.StringIO(), io.StringIO(), colour="always")
    painted = "".join(screen.paint(colour, colour) for colour in COLOURS)
    assert harmless(f"{painted}\n\tü█") == f"{painted}\n\tü█"
    assert harmless("a\x1b[8mb\x1bc\r\x00\x7f\x9b") == "a^[[8mb^[c^M^@^?\\x9b"


def test_a_window_shows_the_head_and_the_end() -> None:
    lines = [str(number) for number in range(10)]
    assert clipped(lines, 80, 10) == lines
    assert clipped(lines, 80, 4) == ["0", "    7 lines more in a higher window", "8", "9"]
    assert clipped(["\x1b[31mabcdef\x1b[0m"], 3, 5) == ["\x1b[31mabc\x1b[0m"]
