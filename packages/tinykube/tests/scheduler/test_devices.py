"""Nodes that have the devices of a pod's claims, and the devices that the pod gets."""

from __future__ import annotations

from typing import Any

import pytest

from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.decide import find, fit_error
from kubekit.scheduling.devices.check import DeviceCheck
from kubekit.scheduling.devices.facts import compile_device_claim, compile_device_class
from kubekit.scheduling.devices.slices import compile_slice

DRIVER = "gpu.example.com"


def device(name: str, memory: str = "40Gi", **fields: Any) -> dict[str, Any]:
    attributes = {"model": {"string": "a100"}, "numa": {"int": 0}, "driver": {"version": "1.2.0"}}
    attributes |= fields.pop("attributes", {})
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}, **fields}


def wants(name: str = "gpu", **exactly: Any) -> dict[str, Any]:
    selectors = [{"cel": {"expression": text}} for text in exactly.pop("cel", ())]
    return {"name": name, "exactly": {"deviceClassName": "gpu", "selectors": selectors, **exactly}}


class Devices:
    """Puts claims, classes and slices into the store of a cache."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.store = world.cache.devices
        spec = {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}
        self.store.classes["gpu"] = compile_device_class({"metadata": {"name": "gpu"}, "spec": spec})

    def slice(self, node: str, *devices: dict[str, Any], **fields: Any) -> None:
        pool = {"name": node, "generation": fields.pop("generation", 1), "resourceSliceCount": fields.pop("slices", 1)}
        name = fields.pop("name", f"{node}-slice")
        spec = {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": list(devices), **fields}
        self.store.set_slice(compile_slice({"metadata": {"name": name}, "spec": spec}))

    def claim(self, name: str, *requests: dict[str, Any], **fields: Any) -> None:
        meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"}
        meta |= fields.pop("metadata", {})
        status = fields.pop("status", {})
        spec = {"devices": {"requests": list(requests), **fields}}
        self.store.set_claim(compile_device_claim({"metadata": meta, "spec": spec, "status": status}))

    def holds(self, name: str, *devices: tuple[str, str], **result: Any) -> None:
        """A claim that has devices: node and name."""
        results = [{"request": "gpu", "driver": DRIVER, "pool": pool, "device": one, **result} for pool, one in devices]
        self.claim(name, wants(), status={"allocation": {"devices": {"results": results}}})

    def pod(self, *claims: str, name: str = "p", **fields: Any) -> Any:
        listed = [{"name": f"c{at}", "resourceClaimName": claim} for at, claim in enumerate(claims)]
        return self.world.pod(name, resourceClaims=listed + fields.pop("more", []), **fields)

    def nodes(self, *claims: str) -> list[str]:
        return sorted(node.name for node in find(self.pod(*claims), self.world.cache).feasible)

    def chosen(self, node: str, *claims: str) -> list[list[str]]:
        check = DeviceCheck(self.pod(*claims), self.store)
        found = check.allocate(self.world.cache.nodes[node].facts)
        assert found is not None
        return [[f"{one.request.path}={one.candidate.device.name}" for one in devices] for devices in found]


@pytest.fixture
def devices(world: Any) -> Devices:
    for name in ("a", "b"):
        world.node(name)
    return Devices(world)


def test_a_claim_gets_devices_that_no_claim_holds(devices):
    devices.slice("a", device("gpu-0"))
    devices.slice("b", device("gpu-0"), device("gpu-1"))
    devices.claim("one", wants())
    devices.claim("two", wants(count=2))
    assert devices.nodes("one") == ["a", "b"] and devices.nodes("two") == ["b"]
    devices.holds("other", ("b", "gpu-0"))
    assert devices.nodes("two") == [] and devices.chosen("b", "one") == [["gpu=gpu-1"]]
    found = find(devices.pod("two"), devices.world.cache)
    assert fit_error(found, "no.") == (
        "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, preemption: no."
    )
    devices.store.remove_claim("default/other")
    assert devices.nodes("two") == ["b"]


def test_what_claims_are_missing_is_said(devices):
    pod = devices.pod("nosuch")
    text = fit_error(find(pod, devices.world.cache), "no.")
    assert text == (
        '0/2 nodes are available: resourceclaim.resource.k8s.io "nosuch" not found. no new claims to deallocate, '
        "preemption: no."
    )
    made = devices.pod(more=[{"name": "x", "resourceClaimTemplateName": "t"}])
    assert 'pod "default/p": ResourceClaim not created yet' in fit_error(find(made, devices.world.cache))
    status = {"resourceClaimStatuses": [{"name": "x", "resourceClaimName": "one"}]}
    made = devices.pod(more=[{"name": "x", "resourceClaimTemplateName": "t"}], status=status)
    devices.claim("one", wants())
    assert "was not created for Pod default/p (Pod is not owner)" in fit_error(find(made, devices.world.cache))
    devices.claim("one", wants(), metadata={"ownerReferences": [{"uid": made.uid, "controller": True}]})
    assert "cannot allocate all claims" in fit_error(find(made, devices.world.cache))
    devices.claim("classless", wants(deviceClassName="nosuch"))
    text = fit_error(find(devices.pod("classless"), devices.world.cache))
    assert "request gpu: device class nosuch does not exist" in text


@pytest.mark.parametrize(
    ("cel", "nodes"),
    [
        ("device.attributes['gpu.example.com'].model == 'a100'", ["a"]),
        ("device.capacity['gpu.example.com'].memory.compareTo(quantity('50Gi')) > 0", ["b"]),
        ("device.attributes['gpu.example.com'].driver.isGreaterThan(semver('2.0.0'))", ["b"]),
        ("'vendor.example.com' in device.attributes && device.attributes['vendor.example.com'].fast", ["b"]),
        ("has(device.attributes['nosuch.example.com'].x)", []),
    ],
)
def test_selectors_are_evaluated_on_each_device(devices, cel, nodes):
    devices.slice("a", device("gpu-0", attributes={"vendor.example.com/fast": {"bool": False}}))
    newer = {"model": {"string": "h100"}, "driver": {"version": "2.1.0"}, "vendor.example.com/fast": {"bool": True}}
    devices.slice("b", device("gpu-0", "80Gi", attributes=newer))
    devices.claim("one", wants(cel=[cel]))
    assert devices.nodes("one") == nodes


def test_a_selector_that_cannot_be_evaluated_makes_a_node_unusable(devices):
    devices.slice("a", device("gpu-0"))
    devices.slice("b", device("gpu-0", attributes={"fast": {"bool": True}}))
    devices.claim("one", wants(cel=["device.attributes['gpu.example.com'].fast"]))
    found = find(devices.pod("one"), devices.world.cache)
    assert [node.name for node in found.feasible] == ["b"]
    assert "claim default/one: selector #0: CEL runtime error" in found.failures["a"].reasons[0]


@pytest.mark.parametrize(
    "cel",
    ["!'a{}!'.matches('^(a+)+$')".format("a" * 200), "'+'.matches('[+]') && " + "+".join(["1"] * 3000) + " == 3000"],
)
def test_no_selector_stops_the_scheduler(devices, cel):
    """Any tenant may write claims, and `re` would try for years."""
    devices.slice("a", device("gpu-0"))
    devices.claim("one", wants(cel=[cel]))
    found = find(devices.pod("one"), devices.world.cache)
    assert found.feasible or "CEL compile error: expression nested too deeply" in found.failures["a"].reasons[0]


@pytest.mark.parametrize("cel", ["'%.900000000f'.format([1.0]) == ''", "lists.range(900000000) == []"])
def test_no_selector_fills_the_memory(devices, cel):
    devices.slice("a", device("gpu-0"))
    devices.claim("one", wants(cel=[cel]))
    assert "CEL runtime error: " in find(devices.pod("one"), devices.world.cache).failures["a"].reasons[0]


def test_alternatives_are_tried_in_their_order(devices):
    devices.slice("a", device("gpu-0", "80Gi"))
    devices.slice("b", device("gpu-0"), device("gpu-1"))
    large = {"name": "large", "deviceClassName": "gpu", "selectors": [{"cel": {"expression": LARGE}}]}
    small = {"name": "small", "deviceClassName": "gpu", "count": 2}
    devices.claim("one", {"name": "gpu", "firstAvailable": [large, small]})
    assert devices.chosen("a", "one") == [["gpu/large=gpu-0"]]
    assert devices.chosen("b", "one") == [["gpu/small=gpu-0", "gpu/small=gpu-1"]]


LARGE = "device.capacity['gpu.example.com'].memory.compareTo(quantity('50Gi')) > 0"


def test_constraints_tie_devices_together_or_apart(devices):
    numa = [device(f"gpu-{at}", attributes={"numa": {"int": at % 2}}) for at in range(4)]
    devices.slice("a", *numa)
    same = [{"matchAttribute": f"{DRIVER}/numa"}]
    devices.claim("same", wants(count=2), constraints=same)
    assert devices.chosen("a", "same") == [["gpu=gpu-0", "gpu=gpu-2"]]
    devices.claim("more", wants(count=3), constraints=same)
    assert devices.nodes("more") == []
    apart = [{"distinctAttribute": f"{DRIVER}/numa", "requests": ["one", "two"]}]
    devices.claim("apart", wants("one"), wants("two"), wants("any"), constraints=apart)
    assert devices.chosen("a", "apart") == [["one=gpu-0", "two=gpu-1", "any=gpu-2"]]


def test_all_devices_and_access_of_administrators(devices):
    devices.slice("a", device("gpu-0"), device("gpu-1"))
    devices.claim("all", wants(allocationMode="All"))
    assert devices.chosen("a", "all") == [["gpu=gpu-0", "gpu=gpu-1"]]
    devices.holds("other", ("a", "gpu-1"))
    assert devices.nodes("all") == []
    devices.claim("watch", wants(allocationMode="All", adminAccess=True))
    assert devices.nodes("watch") == ["a"]
    devices.holds("watching", ("a", "gpu-0"), adminAccess=True)
    devices.claim("one", wants())
    assert devices.chosen("a", "one") == [["gpu=gpu-0"]]


def test_taints_of_devices_need_tolerations(devices):
    taint = {"key": "broken", "effect": "NoSchedule"}
    devices.slice("a", device("gpu-0", taints=[taint]))
    devices.slice("b", device("gpu-0", taints=[{"key": "seen", "effect": "None"}]))
    devices.claim("one", wants())
    devices.claim("two", wants(tolerations=[{"key": "broken", "operator": "Exists"}]))
    assert devices.nodes("one") == ["b"] and devices.nodes("two") == ["a", "b"]


def test_parts_of_a_device_consume_its_counters(devices):
    counters = {"name": "gpu-0", "counters": {"slots": {"value": "7"}}}

    def part(name: str, slots: int) -> dict[str, Any]:
        consumed = {"counterSet": "gpu-0", "counters": {"slots": {"value": str(slots)}}}
        return device(name, consumesCounters=[consumed])

    devices.slice("a", name="counters", slices=2, sharedCounters=[counters])
    devices.claim("one", wants())
    assert devices.nodes("one") == []  # the pool is not complete
    devices.slice("a", part("half-0", 4), part("half-1", 4), part("small", 3), name="parts", slices=2)
    devices.claim("two", wants(count=2))
    assert devices.chosen("a", "two") == [["gpu=half-0", "gpu=small"]]
    devices.holds("other", ("a", "half-1"))
    assert devices.chosen("a", "one") == [["gpu=small"]] and devices.nodes("two") == []


def test_shares_of_a_device_take_of_its_capacity(devices):
    policy = {"default": "10Gi", "validRange": {"min": "5Gi", "step": "5Gi"}}
    shared = device("gpu-0", allowMultipleAllocations=True)
    shared["capacity"]["memory"]["requestPolicy"] = policy
    devices.slice("a", shared)
    devices.claim("one", wants(capacity={"requests": {"memory": "12Gi"}}))
    check = DeviceCheck(devices.pod("one"), devices.store)
    ((chosen,),) = check.allocate(devices.world.cache.nodes["a"].facts)
    assert chosen.consumed == {"memory": 15 * 2**30}
    devices.holds("other", ("a", "gpu-0"), shareID="s", consumedCapacity={"memory": "25Gi"})
    assert devices.nodes("one") == ["a"]
    devices.holds("third", ("a", "gpu-0"), shareID="t", consumedCapacity={"memory": "5Gi"})
    assert devices.nodes("one") == []
    devices.claim("plain", wants())
    assert devices.nodes("plain") == ["a"]  # the default of 10 GiB is left


def test_only_the_newest_generation_of_a_pool_counts(devices):
    devices.slice("a", device("gpu-0"), name="old")
    devices.slice("a", device("gpu-1"), name="new", generation=2)
    devices.claim("one", wants())
    assert devices.chosen("a", "one") == [["gpu=gpu-1"]]
    devices.slice("a", device("gpu-2"), name="newest", generation=3, slices=2)
    assert devices.nodes("one") == []
    devices.store.remove_slice("newest")
    assert devices.nodes("one") == ["a"]


def test_a_claim_that_has_devices_goes_where_they_are(devices):
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}
    allocation = {"devices": {"results": []}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    devices.claim("one", wants(), status={"allocation": allocation})
    found = find(devices.pod("one"), devices.world.cache)
    assert [node.name for node in found.feasible] == ["b"]
    assert found.failures["a"].reasons == ("resourceclaim not available on the node",)
    assert set(found.elsewhere) == {"default/one"}


def test_a_claim_that_is_being_allocated_is_waited_for(devices):
    devices.slice("a", device("gpu-0"))
    devices.claim("one", wants())
    devices.claim("two", wants())
    results = [{"request": "gpu", "driver": DRIVER, "pool": "a", "device": "gpu-0"}]
    raw = {"metadata": {"name": "one", "namespace": "default", "uid": "uid-one", "resourceVersion": "1"}, "spec": {}}
    assumed = compile_device_claim({**raw, "status": {"allocation": {"devices": {"results": results}}}})
    devices.store.assume(assumed)
    text = "resource claim default/one is in the process of being allocated"
    assert text in fit_error(find(devices.pod("one"), devices.world.cache))
    assert devices.nodes("two") == []
    devices.claim("one", wants(), metadata={"resourceVersion": "2", "finalizers": ["example.com/its-driver"]})
    assert devices.nodes("two") == []  # the claim is being allocated still
    assert devices.store.restore(assumed) and not devices.store.restore(assumed)
    assert devices.nodes("two") == ["a"]


def test_a_claim_that_was_written_holds_its_devices_before_a_watch_delivers_it(devices):
    devices.slice("a", device("gpu-0"))
    devices.claim("one", wants())
    devices.claim("two", wants())
    results = [{"request": "gpu", "driver": DRIVER, "pool": "a", "device": "gpu-0"}]
    meta = {"name": "one", "namespace": "default", "uid": "uid-one", "resourceVersion": "3"}
    status = {"allocation": {"devices": {"results": results}}}
    written = compile_device_claim({"metadata": meta, "spec": {}, "status": status})
    devices.store.assume(written)
    devices.store.written(written)
    assert devices.nodes("two") == [] and not devices.store.is_pending("default/one")
    devices.claim("one", wants(), metadata={"resourceVersion": "2"})  # an older version, delivered late
    assert devices.nodes("two") == []
    devices.claim("one", wants(), metadata={"resourceVersion": "3"}, status=status)
    assert devices.nodes("two") == []
    devices.store.remove_claim("default/one")
    assert devices.nodes("two") == ["a"]


def test_pods_without_claims_are_not_asked(devices):
    assert FilterCheck(devices.pod(), devices.world.cache).devices is None
