"""`gpuplane install` and `uninstall` on a real API server: nothing of it stays, however often and wherever it stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import StageName
from gpuplane.api.schema import OURS
from gpuplane.operator.installation import installation, resource_of
from gpuplane.operator.policy import FINALIZER
from kubekit.api.core import Pod
from kubekit.kube import Client, NotFound
from tests.support.realkube.inventory import Objects, difference
from tests.support.realkube.life import (
    COMMAND_S,
    PATIENCE_S,
    Life,
    gpuplane,
    settled,
    take_away,
    until_absent,
    until_as,
)
from tests.support.until import until


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    async with Client.connect(control_plane.kubeconfig) as client:
        yield client


@pytest.fixture(scope="module")
def before(control_plane: ControlPlane) -> Iterator[Objects]:
    """Yield the objects from before these tests; after all of them, the cluster must have the same objects."""

    async def begin(client: Client) -> Objects:
        await free(client)
        await take_away(control_plane, client)  # what a run left that was cut short
        return await settled(client)

    found = asyncio.run(of(control_plane, begin))
    yield found
    gpuplane(control_plane, "uninstall", "-q")
    after = asyncio.run(of(control_plane, lambda client: until_as(client, found)))
    assert not (left := difference(found, after)), f"left behind:\n{left}"


async def of(plane: ControlPlane, ask: Callable[[Client], Awaitable[Objects]]) -> Objects:
    async with Client.connect(plane.kubeconfig) as client:
        return await ask(client)


async def free(client: Client) -> None:
    """Remove the objects that tests make next to an installation, whatever finalizers they have."""
    bare = {"metadata": {"finalizers": None}}
    for path in (f"{CONFIGMAPS}/mine", f"{CONFIGMAPS}/held", *(f"{requests}/stuck" for requests in REQUESTS)):
        with contextlib.suppress(NotFound):
            await client.request("PATCH", path, None, bare, content_type="application/merge-patch+json")
            await client.request("DELETE", path)


async def applied(client: Client) -> list[str]:
    """Kinds and names of the installation's objects that are there."""
    found = []
    for manifest in installation():
        resource, meta = resource_of(manifest), manifest["metadata"]
        collection, _, name = resource.path(meta.get("namespace"), meta["name"]).rpartition("/")
        try:
            body = await client.request("GET", collection, {"fieldSelector": f"metadata.name={name}"})
        except Exception as error:
            if getattr(error, "status", 0) != 404:
                raise
            continue
        if json.loads(body)["items"]:
            found.append(f"{manifest['kind']} {name}")
    return found


EVERYTHING = [f"{manifest['kind']} {manifest['metadata']['name']}" for manifest in installation()]


CONFIGMAPS = f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/configmaps"
REQUESTS = [
    f"/apis/gpuplane.dev/v1alpha1/namespaces/{namespace}/podexplanations"
    for namespace in ("default", names.OPERATOR_NAMESPACE)
]
DRIVERS = "/apis/nvidia.com/v1alpha1/nvidiadrivers"

# -- with operator, operands and a machine -----------------------------------------------------------------------------


def test_a_whole_life_leaves_no_object_label_or_taint(life: Life) -> None:
    assert not (left := difference(life.before, life.after)), f"install, then uninstall:\n{left}"
    assert life.labels[0] == life.labels[1]


def test_all_nine_stages_hold_on_a_real_api_server(life: Life) -> None:
    found = {stage: life.stages.get(stage.value) for stage in StageName}
    # The machine came with its driver.
    assert found == dict.fromkeys(StageName, "done") | {StageName.DRIVER: "present"}


def test_a_node_carries_the_taint_until_it_is_ready(life: Life) -> None:
    assert life.taint_seen


# -- objects only: no machine, so nothing runs -------------------------------------------------------------------------


async def test_a_dry_run_writes_nothing(control_plane: ControlPlane, client: Client, before: Objects) -> None:
    text = await asyncio.to_thread(gpuplane, control_plane, "install", "--dry-run")
    assert "kind: ClusterPolicy" in text
    await asyncio.to_thread(gpuplane, control_plane, "uninstall", "--dry-run")
    assert not (changed := difference(before, await until_as(client, before))), changed


async def test_installing_twice_changes_nothing(control_plane: ControlPlane, client: Client, before: Objects) -> None:
    said = json.loads(await asyncio.to_thread(gpuplane, control_plane, "install", "-q", "-o", "json"))
    assert said["applied"] == [
        " ".join((m["kind"], "/".join(filter(None, (m["metadata"].get("namespace"), m["metadata"]["name"])))))
        for m in installation()
    ]
    once = await settled(client)
    await asyncio.to_thread(gpuplane, control_plane, "install", "-q")
    assert not (changed := difference(once, await until_as(client, once))), changed
    assert await applied(client) == EVERYTHING


async def test_the_operators_pod_is_admitted_with_its_priority_and_image(
    control_plane: ControlPlane, client: Client, before: Objects
) -> None:
    await asyncio.to_thread(gpuplane, control_plane, "install", "-q")

    async def pods() -> list[Pod]:
        return await client.list(Pod, names.OPERATOR_NAMESPACE, labels="app.kubernetes.io/name=gpu-operator")

    (pod,) = await until(pods, what="the operator's pod", seconds=PATIENCE_S)
    body = await client.request("GET", f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/pods/{pod.metadata.name}")
    spec = json.loads(body)["spec"]
    assert spec["priority"] == 2_000_000_000
    (container,) = spec["containers"]
    assert container["image"] == names.IMAGE
    assert container["imagePullPolicy"] == "IfNotPresent"


async def test_a_half_installed_cluster_is_completed(
    control_plane: ControlPlane, client: Client, before: Objects
) -> None:
    await asyncio.to_thread(gpuplane, control_plane, "uninstall", "-q")
    for manifest in installation()[:7]:
        await client.apply(manifest, "half", resource=resource_of(manifest))
    await asyncio.to_thread(gpuplane, control_plane, "install", "-q")
    assert await applied(client) == EVERYTHING


async def test_an_uninstall_that_was_killed_goes_on(
    control_plane: ControlPlane, client: Client, before: Objects
) -> None:
    await asyncio.to_thread(gpuplane, control_plane, "install", "-q")
    await asyncio.to_thread(killed_after, control_plane, 9)
    assert 0 < len(await applied(client)) < len(EVERYTHING)
    await asyncio.to_thread(gpuplane, control_plane, "uninstall", "-q")
    assert await applied(client) == []


@pytest.fixture
async def without_others(control_plane: ControlPlane, client: Client, before: Objects) -> AsyncIterator[None]:
    """Remove gpuplane and the objects that the test creates as another user, before and after it."""

    async def clear() -> None:
        await take_away(control_plane, client)
        definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nvidiadrivers.nvidia.com"
        await until_absent(client, f"{DRIVERS}/mine", definition, f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}")
        await until_nothing_is_left(client)

    await clear()
    yield
    await clear()


@pytest.fixture
async def without_ours(client: Client, before: Objects) -> AsyncIterator[None]:
    """None of the objects that the test makes besides the installation exist, before and after it."""
    await free(client)
    yield
    await free(client)


async def test_what_was_there_first_stays_with_what_others_keep_in_it(
    control_plane: ControlPlane, client: Client, without_others: None
) -> None:
    namespace = f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}"
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}}
    drivers = next(m for m in installation() if m["metadata"]["name"] == "nvidiadrivers.nvidia.com")
    metadata = {"name": drivers["metadata"]["name"]}
    driver = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "mine"}}
    await client.request(
        "POST", "/api/v1/namespaces", None, {"metadata": {"name": names.OPERATOR_NAMESPACE, "labels": {"team": "ml"}}}
    )
    await client.request("POST", f"{namespace}/configmaps", None, mine)
    await client.apply({**drivers, "metadata": metadata}, "others", resource=resource_of(drivers))
    quota = {"metadata": {"name": "gpu-operator"}, "spec": {"hard": {"pods": "77"}}}
    await client.request("POST", f"{namespace}/resourcequotas", None, quota)

    async def served() -> bool:
        try:
            await client.request("GET", DRIVERS)
        except NotFound:
            return False
        return True

    await until(served, what="the kind of others", seconds=PATIENCE_S)
    await asyncio.to_thread(gpuplane, control_plane, "install", "-q")
    await client.request("POST", DRIVERS, None, {**driver, "spec": {"image": "driver", "driverType": "gpu"}})
    kept = [
        "Namespace gpu-operator kept: it was there before gpuplane",
        "CustomResourceDefinition nvidiadrivers.nvidia.com kept: it was there before gpuplane",
        "ResourceQuota gpu-operator/gpu-operator kept: it was there before gpuplane",
    ]
    planned = (await asyncio.to_thread(gpuplane, control_plane, "uninstall", "--dry-run")).splitlines()
    assert sorted(line for line in planned if "kept" in line) == sorted(kept)
    assert "ClusterPolicy cluster-policy" in planned
    done = await asyncio.to_thread(run, control_plane, "uninstall")
    assert done.returncode == 0, done.stderr
    assert not [line for line in kept if line not in done.stderr]
    held = json.loads(await client.request("GET", f"{namespace}/resourcequotas/gpu-operator"))
    assert held["spec"] == {"hard": {"pods": "77"}} and "labels" not in held["metadata"]
    await client.request("GET", f"{namespace}/configmaps/mine")
    await client.request("GET", f"{DRIVERS}/mine")
    labels = json.loads(await client.request("GET", namespace))["metadata"]["labels"]
    assert labels == {"team": "ml", "kubernetes.io/metadata.name": names.OPERATOR_NAMESPACE}
    assert await applied(client) == [
        f"CustomResourceDefinition {metadata['name']}",
        "Namespace gpu-operator",
        "ResourceQuota gpu-operator",
    ]


async def test_a_request_that_a_user_gave_a_finalizer_holds_no_uninstall_up(
    control_plane: ControlPlane, client: Client, without_ours: None
) -> None:
    await asyncio.to_thread(gpuplane, control_plane, "install", "-q")
    request = {
        "apiVersion": "gpuplane.dev/v1alpha1",
        "kind": "PodExplanation",
        "metadata": {"name": "stuck", "finalizers": ["example.com/forever"]},
        "spec": {"pods": ["p"]},
    }
    for path in REQUESTS:
        await client.request("POST", path, None, request)
    await asyncio.to_thread(gpuplane, control_plane, "uninstall", "-q")
    assert await applied(client) == []


async def test_a_namespace_with_objects_of_others_stays_until_they_are_gone(
    control_plane: ControlPlane, client: Client, without_ours: None
) -> None:
    await asyncio.to_thread(gpuplane, control_plane, "install", "-q")
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}}
    await client.request("POST", CONFIGMAPS, None, mine)
    done = await asyncio.to_thread(run, control_plane, "uninstall")
    assert done.returncode == 0, done.stderr
    assert "Namespace gpu-operator kept: it holds configmaps/mine, which gpuplane did not make" in done.stderr
    assert await applied(client) == ["Namespace gpu-operator"]
    await client.request("DELETE", f"{CONFIGMAPS}/mine")
    await asyncio.to_thread(gpuplane, control_plane, "uninstall", "-q")
    assert await applied(client) == []


async def until_nothing_is_left(client: Client) -> None:
    async def gone() -> bool:
        return not await applied(client)

    await until(gone, what="nothing of the installation", seconds=PATIENCE_S)


async def test_installing_while_the_namespace_still_goes_waits_and_makes_it_anew(
    control_plane: ControlPlane, client: Client, without_ours: None
) -> None:
    await asyncio.to_thread(gpuplane, control_plane, "install", "-q")
    held = {"metadata": {"name": "held", "labels": dict(OURS), "finalizers": ["example.com/held"]}}
    await client.request("POST", CONFIGMAPS, None, {"apiVersion": "v1", "kind": "ConfigMap", **held})
    await until_uninstall_waits_for("Namespace gpu-operator", control_plane)
    install = asyncio.create_task(asyncio.to_thread(gpuplane, control_plane, "install", "-q"))
    free = {"metadata": {"finalizers": None}}
    await client.request("PATCH", f"{CONFIGMAPS}/held", None, free, content_type="application/merge-patch+json")
    await install
    assert await applied(client) == EVERYTHING


async def test_uninstalling_without_the_operator_says_what_it_waits_for(
    control_plane: ControlPlane, client: Client, before: Objects
) -> None:
    await asyncio.to_thread(gpuplane, control_plane, "install", "-q")
    await client.patch(ClusterPolicy, "cluster-policy", {"metadata": {"finalizers": [FINALIZER]}})
    try:
        await until_uninstall_waits_for("ClusterPolicy cluster-policy", control_plane)
    finally:
        await client.patch(ClusterPolicy, "cluster-policy", {"metadata": {"finalizers": None}})


async def test_uninstalling_what_is_not_there_is_no_error(control_plane: ControlPlane, before: Objects) -> None:
    await asyncio.to_thread(gpuplane, control_plane, "uninstall", "-q")
    done = await asyncio.to_thread(run, control_plane, "uninstall")
    assert (done.returncode, done.stderr.strip()) == (0, "gpuplane is not on this cluster: nothing to remove")


async def until_uninstall_waits_for(title: str, plane: ControlPlane) -> None:
    """Uninstall with little time until that object is left: on a busy machine those before it take longer."""

    async def waits() -> bool:
        late = await asyncio.to_thread(run, plane, "uninstall", "-q", "--timeout", "8")
        assert late.returncode == 3, late.stderr
        return f"{title} was not gone after 8 s" in late.stderr

    await until(waits, what=f"uninstall waits for {title}", seconds=PATIENCE_S)


def run(plane: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuplane", *arguments, "--kubeconfig", str(plane.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)


def killed_after(plane: ControlPlane, lines: int) -> None:
    """An uninstall that is killed when it has said so many things."""
    command = [sys.executable, "-m", "gpuplane", "uninstall", "--kubeconfig", str(plane.kubeconfig)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for _ in range(lines):
            process.stderr.readline()
        process.kill()
