"""The whole life of an installation on the real control plane: what there was before, while it worked, and after.

One simulated machine, so it needs neither root nor containerd. The life is lived once a session; tests look at what it
left on record.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import GPUNode, StageName
from gpuplane.api.nodeclaim import NodeClaim
from kubekit.api.core import Node, Pod
from kubekit.kube import ApiError, Client, Informer, NotFound
from simgpu import STATE_PATH, Faults
from tests.support.realkube.audit import requests
from tests.support.realkube.inventory import Objects, difference, inventory
from tests.support.realkube.simulated_node import SimulatedNode
from tests.support.until import until

NODE: Final = "life-1"
MACHINE: Final = "t4-ubuntu18"
PATIENCE_S: Final = 240.0  # upper bounds; a computer that is busy with others fails no test
COMMAND_S: Final = 400.0  # uninstall waits five minutes by itself
MADE_LATE: Final = {"core/ConfigMap default/kube-root-ca.crt", "core/ServiceAccount default/default"}
AGGREGATED: Final = "rbac.authorization.k8s.io/ClusterRole admin"
ACCOUNTS: Final = f"system:serviceaccount:{names.OPERATOR_NAMESPACE}:"
_POLL_S: Final = 0.1


class Life(msgspec.Struct):
    """Records of an installation. `labels` and `taints` are the Node's; `asked` counts the requests of each account as
    (account, API group, resource, verb), and `refused` has the audit events of answers 401 and 403."""

    before: Objects
    after: Objects = {}
    stages: dict[str, str] = {}
    taint_seen: bool = False
    labels: tuple[dict[str, str], dict[str, str]] = ({}, {})
    asked: Counter[tuple[str, str, str, str]] = Counter()
    refused: list[str] = []


def gpuplane(plane: ControlPlane, *arguments: str, code: int = 0) -> str:
    """Return the output of a gpuplane command; `code` is the expected exit code."""
    command = [sys.executable, "-m", "gpuplane", *arguments, "--kubeconfig", str(plane.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    assert done.returncode == code, f"gpuplane {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


async def settled(client: Client) -> Objects:
    """The inventory once a new cluster's controllers have made theirs, and two in a row are the same."""
    last: Objects = {}
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        now = await inventory(client)
        if now == last and now.keys() >= MADE_LATE and now[AGGREGATED].get("rules"):
            return now
        last = now
    raise AssertionError(f"the cluster does not settle:\n{difference(last, await inventory(client))}")


async def until_as(client: Client, before: Objects, patience: float = PATIENCE_S) -> Objects:
    """The inventory once it is `before` again, or what it is when patience ends."""
    deadline = time.monotonic() + patience
    while True:
        now = await inventory(client)
        if now == before or time.monotonic() > deadline:
            return now
        await asyncio.sleep(_POLL_S)


async def take_away(plane: ControlPlane, client: Client) -> None:
    """Remove an installation, complete or not. Objects that wait for its operator or autoscaler lose their finalizers.

    A test begins with this, since a first try that was cut short leaves objects. It returns when all of them are gone.
    """
    free = {"metadata": {"finalizers": None}}
    for kind in (ClusterPolicy, NodeClaim):
        with contextlib.suppress(NotFound):  # the kind is not served, or the object has just gone
            for one in await client.list(kind):
                await client.patch(kind, one.metadata.name, free)
    await asyncio.to_thread(gpuplane, plane, "uninstall", "-q")


async def until_absent(client: Client, *paths: str) -> None:
    """Delete objects, and return when they are gone."""

    async def are_gone() -> bool:
        for path in paths:
            with contextlib.suppress(NotFound):
                await client.request("GET", path)
                return False
        return True

    for path in paths:
        with contextlib.suppress(NotFound):
            await client.request("DELETE", path)
    await until(are_gone, what=f"the end of {', '.join(paths)}", seconds=PATIENCE_S)


async def live(plane: ControlPlane) -> Life:
    """Install, ready, a GPU's fault and its repair, a second validation, uninstall."""
    async with Client.connect(plane.kubeconfig) as client:
        await take_away(plane, client)
        machine = SimulatedNode(plane, NODE, MACHINE)
        machine.start()
        try:
            return await _live(plane, machine, client)
        finally:
            machine.stop()
            # Later tests' pods shall wait for a machine, not lie on one that is gone.
            with contextlib.suppress(NotFound):
                await client.delete(Node, NODE)


async def _live(plane: ControlPlane, machine: SimulatedNode, client: Client) -> Life:
    await until(lambda: _node(client), what="the node is there", seconds=PATIENCE_S)
    before = await settled(client)
    life = Life(before)
    bare = (await _node(client)).metadata.labels
    await asyncio.to_thread(gpuplane, plane, "install", "-q", "--set", "operator.notReadyTaint=true")
    life.taint_seen = await _sees_taint(client)
    try:
        await until(lambda: _ready(client), what="the node is ready", seconds=PATIENCE_S)
        with Faults(machine.root / STATE_PATH) as faults:
            faults.xid(0, 79)
            await until(lambda: _health(client), what="the fault is reported", seconds=PATIENCE_S)
            faults.clear(0)
        retry = {"metadata": {"annotations": {names.RETRY_ANNOTATION: "1"}}}
        await client.patch(GPUNode, NODE, retry)
        await until(lambda: _ready(client), what="the node is ready again", seconds=PATIENCE_S)
    except AssertionError as problem:
        raise AssertionError(f"{problem}\n{await _picture(client)}") from None
    node = await client.get(GPUNode, NODE)
    life.stages = {name: stage.state.value for name, stage in node.status.stages.items()}
    await asyncio.to_thread(gpuplane, plane, "uninstall", "-q")
    life.after = await until_as(client, before)
    life.labels = (dict(bare), dict((await _node(client)).metadata.labels))
    life.asked, life.refused = read_audit(plane.audit_log)
    return life


def read_audit(path: Path) -> tuple[Counter[tuple[str, str, str, str]], list[str]]:
    asked: Counter[tuple[str, str, str, str]] = Counter()
    refused = []
    for request in requests(path):
        if not request.user.username.startswith(ACCOUNTS):
            continue
        reference = request.object_ref
        resource = "/".join(filter(None, (reference.resource, reference.subresource)))
        account = request.user.username.rpartition(":")[2]
        asked[account, reference.api_group, resource, request.verb] += 1
        if request.response_status.code in (401, 403):
            refused.append(f"{account} {request.verb} {request.request_uri}: {request.response_status.message}")
    return asked, refused


async def _node(client: Client) -> Any:
    try:
        node = await client.get(Node, NODE)
    except NotFound:
        return None
    return node if any(c.type == "Ready" and c.status == "True" for c in node.status.conditions) else None


async def _gpunode(client: Client) -> GPUNode | None:
    try:
        return await client.get(GPUNode, NODE)
    except NotFound:
        return None


async def _ready(client: Client) -> bool:
    node = await _gpunode(client)
    stage = node.status.stages.get(StageName.READY.value) if node is not None else None
    return stage is not None and stage.state.holds


async def _health(client: Client) -> bool:
    node = await _gpunode(client)
    return node is not None and bool(node.status.health)


async def _sees_taint(client: Client) -> bool:
    """Return whether the Node carries the taint at some time before it is ready."""
    seen = asyncio.Event()
    informer = Informer(client, Node, fields=f"metadata.name={NODE}")

    def look(old: Node | None, new: Node | None) -> None:
        if new is not None and any(taint.key == names.NOT_READY_TAINT for taint in new.spec.taints):
            seen.set()

    informer.add_handler(look)
    informer.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await seen.wait()
    except TimeoutError:
        return False
    finally:
        await informer.stop()
    return True


async def _picture(client: Client) -> str:
    """Describe the objects of the installation, for a failure's message."""
    node = await _gpunode(client)
    events = json.loads(await client.request("GET", "/api/v1/namespaces/gpu-operator/events"))["items"]
    lines = [f"{e['involvedObject']['name']}: {e['reason']} {e.get('message', '')}" for e in events]
    lines = [line for line, event in zip(lines, events, strict=True) if event["type"] == "Warning"]
    stages = {name: (stage.state.value, stage.reason) for name, stage in node.status.stages.items()} if node else {}
    for pod in await client.list(Pod, names.OPERATOR_NAMESPACE):
        path = f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/pods/{pod.metadata.name}/log"
        try:
            text = (await client.request("GET", path, {"tailLines": "3"})).decode()
        except ApiError as error:
            text = str(error)
        lines += [f"{pod.metadata.name} says: {line}" for line in text.splitlines()]
    return "\n".join([str(stages), *lines])


async def account_config(plane: ControlPlane, client: Client, namespace: str, account: str, pod: str = "") -> Path:
    """A kubeconfig with a token of a ServiceAccount, bound to a pod when one is named."""
    spec: dict[str, Any] = {"audiences": [], "expirationSeconds": 3600}
    if pod:
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    token = json.loads(await client.request("POST", path, None, body))["status"]["token"]
    config = json.loads(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    file = plane.directory / f"account-{account}-{pod}.kubeconfig"
    file.write_text(json.dumps(config))
    return file


def asked_of(config: Path, *arguments: str) -> None:
    """Runs a command of gpuplane under an account; it has to succeed."""
    command = [sys.executable, "-m", "gpuplane", *arguments, "--kubeconfig", str(config)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"gpuplane {' '.join(arguments)} did not end: {late.stdout!r} {late.stderr!r}") from late
    assert done.returncode == 0, f"gpuplane {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
