"""Pods with resource claims, from template to device and back, with a driver that speaks the kubelet's protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kubekit.kube import Client
from tests.support.dra_driver import CLAIM, CLASS, DRIVER, TEMPLATE, TestDriver
from tests.support.until import until
from tinykube.controllers import Controllers
from tinykube.scheduler import Scheduler

GROUP = "resource.k8s.io"
CLAIMS = (GROUP, "resourceclaims")


@pytest.fixture
async def control(api: Any) -> AsyncIterator[Any]:
    """The API server with controllers and scheduler."""
    api.registry.subscribe(CLAIMS, lambda *_: api._changed.set())
    api.registry.subscribe((GROUP, "resourceslices"), lambda *_: api._changed.set())
    parts = [Controllers(api.registry, ca="PEM").run(), Scheduler(api.registry).run()]
    tasks = [asyncio.create_task(part) for part in parts]
    yield api
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def client(api: Any) -> AsyncIterator[Client]:
    async with Client.connect(api.kubeconfig) as found:
        yield found


@pytest.fixture
async def node(control: Any, make_node: Any) -> Any:
    return await make_node()


@pytest.fixture
async def driver(node: Any, client: Client) -> AsyncIterator[TestDriver]:
    """A driver with two devices."""
    found = TestDriver(node.root, "sim-1", client)
    await found.start()
    await found.registered.wait()
    await found.publish({"devices": [device("gpu-0"), device("gpu-1")]})
    await client.create({"metadata": {"name": "gpu"}, "spec": {}}, resource=CLASS)
    yield found
    await found.stop()


def device(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "attributes": {"index": {"int": int(name[-1])}}, **fields}


def spec(**exactly: Any) -> dict[str, Any]:
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", **exactly}}]}}


async def make_claim(client: Client, name: str, **exactly: Any) -> None:
    meta = {"name": name, "namespace": "default"}
    await client.create({"metadata": meta, "spec": spec(**exactly)}, resource=CLAIM)


async def make_template(client: Client, name: str = "one", **exactly: Any) -> None:
    meta = {"name": name, "namespace": "default"}
    await client.create({"metadata": meta, "spec": {"spec": spec(**exactly)}}, resource=TEMPLATE)


def claiming(script: str = "env | grep ^DEVICE_ | sort", *, claim: str = "", template: str = "") -> dict[str, Any]:
    """The spec of a pod with one claim."""
    source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template or "one"}
    container = {
        "name": "c",
        "image": "busybox",
        "command": ["sh", "-c", script],
        "resources": {"claims": [{"name": "mine"}]},
    }
    return {"nodeName": None, "restartPolicy": "Never", "resourceClaims": [{"name": "mine", **source}]} | {
        "containers": [container]
    }


def claims(api: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.registry.list(CLAIMS, "default")
    return found


def slices(api: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.registry.list((GROUP, "resourceslices"))
    return found


async def remove_pod(api: Any, name: str = "one") -> None:
    await api.registry.delete("pods", "default", name)
    await api.until(lambda: api.pod(name) is None, f"{name} is gone")


def events(api: Any, reason: str) -> list[str]:
    return [event["message"] for event in api.registry.list("events", "default") if event["reason"] == reason]


async def test_a_pod_gets_a_claim_of_its_template_and_the_device(
    control: Any, client: Client, node: Any, driver: Any
) -> None:
    await make_template(client)
    await control.create_pod(**claiming("env | grep ^DEVICE_; sleep 1000"))
    await control.phase("Running")
    (claim,) = claims(control)
    meta, status = claim["metadata"], claim["status"]
    assert meta["name"].startswith("one-mine-") and meta["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    assert [(user["name"], user["uid"]) for user in status["reservedFor"]] == [
        ("one", control.pod()["metadata"]["uid"])
    ]
    (result,) = status["allocation"]["devices"]["results"]
    assert (result["pool"], result["device"], result["request"]) == ("sim-1", "gpu-0", "gpu")
    assert control.status()["resourceClaimStatuses"] == [{"name": "mine", "resourceClaimName": meta["name"]}]
    await until_log(node, "DEVICE_GPU_0=gpu\n")
    assert driver.calls == [("prepare", (meta["name"],))]

    await remove_pod(control)
    assert driver.calls[1:] == [("unprepare", (meta["name"],))] and not driver.spec_of(meta["uid"]).exists()
    await control.until(lambda: not claims(control), "the claim goes with its pod")


async def until_log(node: Any, text: str, name: str = "one") -> None:
    await until(lambda: node.log(name) == text, what=f"the log of {name}")


async def test_a_claim_that_outlives_its_pods_is_freed_and_used_again(
    control: Any, client: Client, node: Any, driver: Any
) -> None:
    await make_claim(client, "shared")
    for name in ("one", "two"):
        await control.create_pod(name, **claiming("env | grep ^DEVICE_; sleep 1000", claim="shared"))
    for name in ("one", "two"):
        await control.phase("Running", name)
        await until_log(node, "DEVICE_GPU_0=gpu\n", name)
    (claim,) = claims(control)
    assert {user["name"] for user in claim["status"]["reservedFor"]} == {"one", "two"}
    assert driver.calls == [("prepare", ("shared",))]
    await remove_pod(control, "one")
    assert len(driver.calls) == 1, "another pod still has the devices"
    await remove_pod(control, "two")
    assert driver.calls[1:] == [("unprepare", ("shared",))]
    await control.until(lambda: not claims(control)[0].get("status"), "the devices are free")
    assert not claims(control)[0]["metadata"].get("finalizers")

    await control.create_pod("three", **claiming(claim="shared"))
    await control.phase("Succeeded", "three")
    assert driver.calls[2:] == [("prepare", ("shared",)), ("unprepare", ("shared",))]
    await control.until(lambda: not claims(control)[0].get("status"), "a pod that has ended uses nothing")


async def test_without_a_free_device_a_pod_waits_for_the_next_one(
    control: Any, client: Client, node: Any, driver: Any
) -> None:
    await make_template(client)
    for name in ("one", "two"):
        await control.create_pod(name, **claiming("sleep 1000"))
        await control.phase("Running", name)
    await control.create_pod("three", **claiming())
    await control.until(lambda: any("cannot allocate all claims" in one for one in events(control, "FailedScheduling")))
    await remove_pod(control, "one")
    await control.phase("Succeeded", "three")
    assert node.log("three") == "DEVICE_GPU_0=gpu\n"


async def test_a_container_gets_the_devices_of_its_requests_only(
    control: Any, client: Client, node: Any, driver: Any
) -> None:
    requests = [{"name": name, "exactly": {"deviceClassName": "gpu"}} for name in ("left", "right")]
    body = {"metadata": {"name": "pair", "namespace": "default"}, "spec": {"devices": {"requests": requests}}}
    await client.create(body, resource=CLAIM)
    pod = claiming(claim="pair")
    wanted: dict[str, list[dict[str, str]]] = {
        "none": [],
        "left": [{"name": "mine", "request": "left"}],
        "both": [{"name": "mine"}],
    }
    script = "env | grep ^DEVICE_ | sort; true"
    pod["containers"] = [
        {"name": name, "image": "busybox", "command": ["sh", "-c", script], "resources": {"claims": refs}}
        for name, refs in wanted.items()
    ]
    await control.create_pod(**pod)
    await control.phase("Succeeded")
    logs = {name: node.log(container=name) for name in wanted}
    assert logs == {
        "none": "",
        "left": "DEVICE_GPU_0=left\n",
        "both": "DEVICE_GPU_0=left\nDEVICE_GPU_1=right\n",
    }


async def test_an_old_driver_is_called_by_its_version(control: Any, client: Client, node: Any) -> None:
    old = TestDriver(node.root, "sim-1", client, service="v1beta1.DRAPlugin")
    await old.start()
    try:
        await old.registered.wait()
        await old.publish({"devices": [device("gpu-0")]})
        await client.create({"metadata": {"name": "gpu"}, "spec": {}}, resource=CLASS)
        await make_template(client)
        await control.create_pod(**claiming())
        await control.phase("Succeeded")
        assert node.log() == "DEVICE_GPU_0=gpu\n"
    finally:
        await old.stop()


async def test_a_driver_without_a_known_version_is_refused(control: Any, client: Client, node: Any) -> None:
    newer = TestDriver(node.root, "sim-1", client)
    newer.service = "v7.DRAPlugin"
    newer.serves = "v1.DRAPlugin"
    await newer.start()
    try:
        await newer.notified.wait()
        (status,) = newer.registrations[:1]
        assert not status.plugin_registered
        assert 'none of services supported by the plugin (["v7.DRAPlugin"])' in status.error
    finally:
        await newer.stop()


async def test_what_a_driver_refuses_is_tried_again(control: Any, client: Client, node: Any, driver: Any) -> None:
    await make_claim(client, "some")
    driver.refuse = "the device is on fire"
    await control.create_pod(**claiming(claim="some"))
    failed = await control.until(lambda: events(control, "FailedPrepareDynamicResources"))
    assert failed[0] == (
        "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for ResourceClaim "
        "some: the device is on fire"
    )
    waiting = control.container()["state"]["waiting"]
    assert waiting["reason"] == "ContainerCreating" and control.status()["phase"] == "Pending"
    driver.refuse, driver.skip = "", True
    await control.until(
        lambda: any("skipped 1 ResourceClaims" in one for one in events(control, "FailedPrepareDynamicResources"))
    )
    driver.skip = False
    await control.phase("Succeeded")
    assert node.log() == "DEVICE_GPU_0=gpu\n"


async def test_a_pod_does_not_end_before_its_claim_is_unprepared(
    control: Any, client: Client, node: Any, driver: Any
) -> None:
    await make_claim(client, "some")
    await control.create_pod(**claiming("sleep 1000", claim="some"))
    await control.phase("Running")
    driver.refuse = "busy"
    driver.asked.clear()
    await control.registry.delete("pods", "default", "one")
    await driver.asked.wait()
    assert control.pod() is not None and claims(control)[0]["status"]["reservedFor"]
    driver.refuse = ""
    await control.until(lambda: control.pod() is None)
    assert set(driver.calls[1:]) == {("unprepare", ("some",))} and len(driver.calls) >= 3


async def test_a_call_without_an_answer_is_given_up_and_tried_again(
    control: Any, client: Client, node: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinykube.kubelet.claims.plugins.CALL_SECONDS", 0.2)
    await make_claim(client, "some")
    driver.answers.clear()
    await control.create_pod(**claiming(claim="some"))
    failed = await control.until(lambda: events(control, "FailedPrepareDynamicResources"))
    assert "NodePrepareResources: rpc error: code = DeadlineExceeded" in failed[0]
    monkeypatch.undo()
    driver.answers.set()
    await control.phase("Succeeded")
    assert node.log() == "DEVICE_GPU_0=gpu\n"


async def test_a_pod_of_a_driver_that_is_gone_waits_for_it(
    control: Any, client: Client, node: Any, driver: Any
) -> None:
    await make_claim(client, "some")
    await driver.stop()
    await control.create_pod(**claiming(claim="some"))
    gone = f"DRA driver {DRIVER} is not registered"
    await control.until(lambda: any(gone in one for one in events(control, "FailedPrepareDynamicResources")))
    await driver.start()
    await control.phase("Succeeded")
    assert node.log() == "DEVICE_GPU_0=gpu\n"


async def test_after_a_restart_of_the_kubelet_devices_stay_and_orphans_are_unprepared(
    control: Any, client: Client, node: Any, driver: Any
) -> None:
    for name in ("first", "second"):
        await make_claim(client, name)
        script = "env | grep ^DEVICE_; sleep 1000"
        await control.create_pod(name, **claiming(script, claim=name) | {"restartPolicy": "Always"})
        await control.phase("Running", name)
    before = control.container("first")["containerID"]
    await node.stop(leave_containers=True)
    await control.registry.delete("pods", "default", "second", grace=0)
    driver.registered.clear()
    driver.calls.clear()
    driver.asked.clear()
    await node.start()
    await driver.registered.wait()
    await driver.asked.wait()
    assert driver.calls == [("unprepare", ("second",))]
    assert control.container("first")["containerID"] == before

    # The devices of a container that starts again come from the checkpoint.
    (record,) = [one for one in node.kubelet.machine.launcher.records.all() if one.pod == "first"]
    os.kill(record.pid, signal.SIGKILL)
    await control.until(lambda: control.container("first")["restartCount"] == 1 and control.container("first")["ready"])
    assert driver.calls == [("unprepare", ("second",))]
    await remove_pod(control, "first")
    assert driver.calls[1:] == [("unprepare", ("first",))]
