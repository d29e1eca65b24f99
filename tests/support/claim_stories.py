"""Stories of pods with resource claims, written once and played on the embedded cluster and on a real one.

Each story has a namespace, a driver and a node of its own; a real cluster keeps nothing of it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from kubekit.api.core import Event, Namespace, Pod
from kubekit.api.kinds import built_in
from kubekit.kube import Client, NotFound
from kubekit.pod_resources import PodResourcesClient
from kubekit.protocol import drahealth_pb2 as health_pb
from tests.support.dra_driver import CLAIM, CLASS, DRIVER, TEMPLATE, TestDriver
from tests.support.until import PATIENCE_SECONDS, until

POLL_SECONDS: Final = 0.1
NAMESPACE: Final = built_in("v1", "Namespace")
LOOK: Final = "env | grep -E '^(DEVICE|SHARE)_' | sort"
STAY: Final = f"{LOOK}; sleep 100000"


class ClaimWorld:
    """A node of a cluster with a driver.

    Args:
        root: the node's file system.
        log: returns the log of a pod.
        restart: kills the node's kubelet, and returns when the next one runs.
        patience: seconds to wait for one change.
    """

    def __init__(
        self,
        client: Client,
        root: Path,
        node: str,
        namespace: str,
        *,
        image: str,
        shell: tuple[str, ...] = ("sh",),
        log: Callable[[str], Awaitable[str]],
        restart: Callable[[], Awaitable[None]],
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.client = client
        self.root = root
        self.namespace = namespace
        self.driver = TestDriver(root, node, client)
        self.restart = restart
        self.patience = patience
        self._image = image
        self._shell = shell
        self._log = log

    # -- objects -----------------------------------------------------------------------------------------------------

    async def device_class(self, name: str, *cel: str) -> None:
        selectors = [{"cel": {"expression": one}} for one in (f"device.driver == '{DRIVER}'", *cel)]
        await self.client.create({"metadata": {"name": name}, "spec": {"selectors": selectors}}, resource=CLASS)

    async def template(self, name: str, *requests: dict[str, Any], **devices: Any) -> None:
        body = {"metadata": self._meta(name), "spec": {"spec": _devices(requests, devices)}}
        await self.client.create(body, resource=TEMPLATE)

    async def claim(self, name: str, *requests: dict[str, Any], **devices: Any) -> None:
        await self.client.create({"metadata": self._meta(name), "spec": _devices(requests, devices)}, resource=CLAIM)

    async def run(self, name: str, script: str = LOOK, *, claim: str = "", template: str = "") -> None:
        """Create a pod with one claim."""
        source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
        container = {
            "name": "c",
            "image": self._image,
            "command": [*self._shell, "-c", script],
            "resources": {"claims": [{"name": "mine"}]},
        }
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "resourceClaims": [{"name": "mine", **source}],
        }
        await self.client.create({"metadata": self._meta(name), "spec": spec}, resource=Pod.RESOURCE)

    def _meta(self, name: str) -> dict[str, str]:
        return {"name": name, "namespace": self.namespace}

    async def remove(self, name: str) -> None:
        await self.client.delete(Pod, name, self.namespace)
        await self.until(lambda: self.is_gone(name), f"{name} is gone")

    # -- what there is -----------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], Awaitable[Any]], what: str) -> Any:
        async def seen() -> str:
            return str([(pod["metadata"]["name"], pod.get("status")) for pod in await self._list(Pod.RESOURCE.path)])

        try:
            return await until(condition, poll=POLL_SECONDS, seconds=self.patience, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}; {await seen()}") from error

    async def _list(self, path: Callable[[str], str]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(await self.client.request("GET", path(self.namespace)))["items"]
        return items

    async def is_gone(self, name: str) -> bool:
        try:
            await self.client.get(Pod, name, self.namespace)
        except NotFound:
            return True
        return False

    async def status(self, name: str) -> dict[str, Any]:
        path = Pod.RESOURCE.path(self.namespace, name)
        found: dict[str, Any] = json.loads(await self.client.request("GET", path))["status"]
        return found

    async def phase(self, name: str, phase: str) -> dict[str, Any]:
        async def reached() -> Any:
            status = await self.status(name)
            ended = status.get("phase") in ("Succeeded", "Failed")
            assert not ended or status["phase"] == phase, status
            return status if status.get("phase") == phase else None

        found: dict[str, Any] = await self.until(reached, f"{name} is {phase}")
        return found

    async def prints(self, name: str, text: str) -> None:
        """Wait until a pod has printed exactly this."""

        async def printed() -> bool:
            return await self._log(name) == text

        await self.until(printed, f"{name} prints {text!r}")

    async def claims(self) -> list[dict[str, Any]]:
        return await self._list(CLAIM.path)

    async def waits(self, name: str, reason: str, text: str) -> None:
        """Wait until an event of a pod has this reason and text."""

        async def said() -> bool:
            events = await self.client.list(Event, self.namespace)
            return any(
                one.reason == reason and text in one.message and one.involved_object.name == name for one in events
            )

        await self.until(said, f"{name} has an event {reason}: {text}")


def _devices(requests: tuple[dict[str, Any], ...], more: dict[str, Any]) -> dict[str, Any]:
    return {"devices": {"requests": list(requests), **more}}


def device(name: str, **fields: Any) -> dict[str, Any]:
    """A device with its number as an attribute; further attributes by name, as the API has them."""
    attributes = {"index": {"int": int(name[-1])}, **fields.pop("attributes", {})}
    return {"name": name, "attributes": attributes, **fields}


def wants(name: str = "gpu", **exactly: Any) -> dict[str, Any]:
    selectors = [{"cel": {"expression": one}} for one in exactly.pop("cel", ())]
    chosen = {"selectors": selectors} if selectors else {}
    return {"name": name, "exactly": {"deviceClassName": "gpu", **chosen, **exactly}}


@contextlib.asynccontextmanager
async def playing(world: ClaimWorld) -> AsyncIterator[ClaimWorld]:
    """A namespace with a registered driver; all of it goes in the end."""
    client = world.client
    await client.create({"metadata": {"name": world.namespace}}, resource=NAMESPACE)
    try:
        yield world
    finally:
        if world.driver.is_open:
            world.driver.refuse = ""
        for pod in await client.list(Pod, world.namespace):
            with contextlib.suppress(NotFound):
                await world.remove(pod.metadata.name)
        await client.delete(Namespace, world.namespace)
        await world.driver.withdraw()
        await client.request("DELETE", CLASS.path())
        await world.driver.stop()


# -- the stories -------------------------------------------------------------------------------------------------------


async def open_driver(world: ClaimWorld, *slices: dict[str, Any]) -> None:
    """Register the driver and publish its slices."""
    await world.driver.start()
    await until(lambda: world.driver.registered.is_set(), seconds=world.patience, what="the driver is registered")
    await world.driver.publish(*slices)
    await world.device_class("gpu")


async def a_device_for_each_pod_of_a_template(world: ClaimWorld) -> None:
    await open_driver(world, {"devices": [device("gpu-0"), device("gpu-1")]})
    await world.template("one", wants())
    for name in ("first", "second"):
        await world.run(name, STAY, template="one")
        await world.phase(name, "Running")
    await world.prints("first", "DEVICE_GPU_0=gpu\n")
    await world.prints("second", "DEVICE_GPU_1=gpu\n")
    await world.run("third", template="one")
    await world.waits("third", "FailedScheduling", "cannot allocate all claims")
    await world.remove("first")
    await world.phase("third", "Succeeded")
    await world.prints("third", "DEVICE_GPU_0=gpu\n")
    await world.remove("second")

    async def freed() -> bool:
        return not [one for one in await world.claims() if (one.get("status") or {}).get("allocation")]

    await world.until(freed, "all claims are free")
    assert sorted(method for method, _ in world.driver.calls) == ["prepare"] * 3 + ["unprepare"] * 3


async def one_claim_for_two_pods(world: ClaimWorld) -> None:
    await open_driver(world, {"devices": [device("gpu-0")]})
    await world.claim("shared", wants())
    for name in ("first", "second"):
        await world.run(name, STAY, claim="shared")
        await world.phase(name, "Running")
        await world.prints(name, "DEVICE_GPU_0=gpu\n")
    await world.remove("first")
    assert [method for method, _ in world.driver.calls] == ["prepare"]
    await world.remove("second")

    async def freed() -> bool:
        (claim,) = await world.claims()
        return not claim.get("status") and not claim["metadata"].get("finalizers")

    await world.until(freed, "the claim is free")
    assert [method for method, _ in world.driver.calls] == ["prepare", "unprepare"]


async def the_first_alternative_that_there_is(world: ClaimWorld) -> None:
    await open_driver(world, {"devices": [device("gpu-0", attributes={"model": {"string": "small"}})]})
    model = f"device.attributes['{DRIVER}'].model == '{{}}'"
    options = [
        {"name": name, "deviceClassName": "gpu", "selectors": [{"cel": {"expression": model.format(name)}}]}
        for name in ("big", "small")
    ]
    await world.claim("either", {"name": "gpu", "firstAvailable": options})
    await world.run("one", claim="either")
    await world.phase("one", "Succeeded")
    await world.prints("one", "DEVICE_GPU_0=gpu/small\n")


async def devices_that_match_each_other(world: ClaimWorld) -> None:
    numa = {0: 0, 1: 1, 2: 0, 3: 1, 4: 1}
    devices = [device(f"gpu-{at}", attributes={"numa": {"int": where}}) for at, where in numa.items()]
    await open_driver(world, {"devices": devices})
    constraint = {"requests": ["gpu"], "matchAttribute": f"{DRIVER}/numa"}
    await world.claim("three", wants(count=3), constraints=[constraint])
    await world.run("one", claim="three")
    await world.phase("one", "Succeeded")
    await world.prints("one", "DEVICE_GPU_1=gpu\nDEVICE_GPU_3=gpu\nDEVICE_GPU_4=gpu\n")


async def parts_of_a_device_that_exclude_each_other(world: ClaimWorld) -> None:
    def part(name: str, kind: str, memory: int) -> dict[str, Any]:
        consumed = [{"counterSet": "gpu-0", "counters": {"memory": {"value": f"{memory}Gi"}}}]
        return device(name, attributes={"type": {"string": kind}}, consumesCounters=consumed)

    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    parts = [part("whole-0", "whole", 80), part("half-1", "half", 40), part("half-2", "half", 40)]
    await open_driver(world, {"sharedCounters": counters}, {"devices": parts})
    kind = f"device.attributes['{DRIVER}'].type == '{{}}'"
    for name in ("half", "whole"):
        await world.template(name, wants(cel=[kind.format(name)]))
    await world.run("first", STAY, template="half")
    await world.phase("first", "Running")
    await world.prints("first", "DEVICE_HALF_1=gpu\n")
    await world.run("all", template="whole")
    await world.waits("all", "FailedScheduling", "cannot allocate all claims")
    await world.run("second", template="half")
    await world.phase("second", "Succeeded")
    await world.prints("second", "DEVICE_HALF_2=gpu\n")
    await world.remove("first")
    await world.phase("all", "Succeeded")
    await world.prints("all", "DEVICE_WHOLE_0=gpu\n")


async def shares_of_a_device(world: ClaimWorld) -> None:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    memory = {"memory": {"value": "40Gi", "requestPolicy": policy}}
    await open_driver(world, {"devices": [device("gpu-0", capacity=memory, allowMultipleAllocations=True)]})
    await world.template("share", wants(capacity={"requests": {"memory": "14.5Gi"}}))
    for name in ("first", "second"):
        await world.run(name, STAY, template="share")
        await world.phase(name, "Running")
        await world.prints(name, 'DEVICE_GPU_0=gpu\nSHARE_GPU_0={"memory": "15Gi"}\n')
    await world.run("third", template="share")
    await world.waits("third", "FailedScheduling", "cannot allocate all claims")
    results = [
        one["status"]["allocation"]["devices"]["results"][0] for one in await world.claims() if one.get("status")
    ]
    assert len({result["shareID"] for result in results}) == 2
    await world.remove("first")
    await world.phase("third", "Succeeded")


async def tainted_devices(world: ClaimWorld) -> None:
    taint = {"key": "example.com/broken", "value": "yes", "effect": "NoSchedule"}
    await open_driver(world, {"devices": [device("gpu-0", taints=[taint]), device("gpu-1")]})
    await world.template("plain", wants())
    await world.template("brave", wants(tolerations=[{"key": "example.com/broken", "operator": "Exists"}]))
    await world.run("first", STAY, template="plain")
    await world.phase("first", "Running")
    await world.prints("first", "DEVICE_GPU_1=gpu\n")
    await world.run("second", template="plain")
    await world.waits("second", "FailedScheduling", "cannot allocate all claims")
    await world.run("third", template="brave")
    await world.phase("third", "Succeeded")
    await world.prints("third", "DEVICE_GPU_0=gpu\n")


async def a_taint_that_evicts(world: ClaimWorld) -> None:
    await open_driver(world, {"devices": [device("gpu-0")]})
    await world.template("plain", wants())
    patient = {"key": "example.com/lost", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 100_000}
    await world.claim("patient", wants(tolerations=[patient]))
    await world.run("first", STAY, template="plain")
    await world.phase("first", "Running")
    taint = {"key": "example.com/lost", "value": "yes", "effect": "NoExecute"}
    await world.driver.publish({"devices": [device("gpu-0", taints=[taint])]})
    await world.waits("first", "DeviceTaintManagerEviction", "Marking for deletion")
    await world.until(lambda: world.is_gone("first"), "the pod is evicted")
    await world.run("second", STAY, claim="patient")
    await world.phase("second", "Running")
    (result,) = [
        one["status"]["allocation"]["devices"]["results"][0] for one in await world.claims() if one.get("status")
    ]
    assert result["tolerations"] == [patient]


async def a_refusal_of_the_driver(world: ClaimWorld) -> None:
    await open_driver(world, {"devices": [device("gpu-0")]})
    await world.claim("some", wants())
    world.driver.refuse = "the device is hot"
    await world.run("one", claim="some")
    await world.waits(
        "one",
        "FailedPrepareDynamicResources",
        "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for ResourceClaim "
        "some: the device is hot",
    )
    world.driver.refuse = ""
    await world.phase("one", "Succeeded")
    await world.prints("one", "DEVICE_GPU_0=gpu\n")


async def the_health_of_devices(world: ClaimWorld) -> None:
    world.driver.health = {"gpu-0": (health_pb.HEALTHY, "")}
    world.driver.health_seconds = 100_000
    await open_driver(world, {"devices": [device("gpu-0")]})
    await world.claim("some", wants())
    await world.run("one", STAY, claim="some")
    await world.phase("one", "Running")

    async def shows(health: str, message: str) -> bool:
        (container,) = (await world.status("one"))["containerStatuses"]
        (row,) = container.get("allocatedResourcesStatus") or [{"name": "", "resources": [{}]}]
        (one,) = row["resources"]
        assert not one or (row["name"] == "claim:mine" and one["resourceID"].startswith(f"{DRIVER}/device="))
        return (one.get("health"), one.get("message", "")) == (health, message)

    await world.until(lambda: shows("Healthy", ""), "the device is healthy")
    await world.driver.report(gpu_0=(health_pb.UNHEALTHY, "too hot"))
    await world.until(lambda: shows("Unhealthy", "too hot"), "the device is unhealthy")


async def a_kubelet_that_is_killed(world: ClaimWorld) -> None:
    await open_driver(world, {"devices": [device("gpu-0"), device("gpu-1")]})
    await world.template("one", wants())
    await world.run("first", STAY, template="one")
    await world.phase("first", "Running")
    before = (await world.status("first"))["containerStatuses"][0]["containerID"]
    world.driver.registered.clear()
    await world.restart()
    await until(lambda: world.driver.registered.is_set(), seconds=world.patience, what="the driver is registered again")
    await world.run("second", template="one")

    async def ended() -> bool:
        await world.driver.renew()
        return bool((await world.status("second"))["phase"] == "Succeeded")

    await world.until(ended, "second gets the other device")
    await world.prints("second", "DEVICE_GPU_1=gpu\n")
    assert (await world.status("first"))["containerStatuses"][0]["containerID"] == before
    await world.remove("first")
    assert [method for method, _ in world.driver.calls] == ["prepare", "prepare", "unprepare", "unprepare"]


async def the_list_of_pods_with_their_devices(world: ClaimWorld) -> None:
    await open_driver(world, {"devices": [device("gpu-0")]})
    await world.claim("some", wants())
    await world.run("one", STAY, claim="some")
    await world.phase("one", "Running")
    answer = await PodResourcesClient(world.root / "var/lib/kubelet").list()
    (pod,) = [one for one in answer.pod_resources if one.namespace == world.namespace]
    (row,) = pod.containers[0].dynamic_resources
    (one,) = row.claim_resources
    assert (row.claim_name, row.claim_namespace) == ("some", world.namespace)
    assert (one.driver_name, one.pool_name, one.device_name) == (DRIVER, world.driver.node, "gpu-0")
    assert [cdi.name for cdi in one.cdi_devices] == [
        f"{DRIVER}/device={(await world.claims())[0]['metadata']['uid']}-gpu-0"
    ]


STORIES: Final = (
    a_device_for_each_pod_of_a_template,
    one_claim_for_two_pods,
    the_first_alternative_that_there_is,
    devices_that_match_each_other,
    parts_of_a_device_that_exclude_each_other,
    shares_of_a_device,
    tainted_devices,
    a_taint_that_evicts,
    a_refusal_of_the_driver,
    the_health_of_devices,
    a_kubelet_that_is_killed,
    the_list_of_pods_with_their_devices,
)
