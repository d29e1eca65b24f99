"""Random resource slices and claims for the pods of a random cluster: all of what the filter of devices looks at.

Selectors read attributes that all devices have, and no claim is missing: kube-scheduler does not try such pods. Names
have the seed in them. Claims that have devices are used by others too, so that kube-scheduler takes none away.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

from kubekit.api.kinds import built_in
from kubekit.api.meta import Resource
from tests.support.random_clusters import ZONE, ZONES, RandomCluster

CLASS = built_in("resource.k8s.io/v1", "DeviceClass")
SLICE = built_in("resource.k8s.io/v1", "ResourceSlice")
CLAIM = built_in("resource.k8s.io/v1", "ResourceClaim")
Stored = tuple[Resource, dict[str, Any]]


class RandomDevices:
    """Gives pods of a cluster claims; `objects` are what has to be there before the pods, in this order."""

    def __init__(self, seed: int, cluster: RandomCluster) -> None:
        self._dice = random.Random(f"devices {seed}")
        self._seed = seed
        self._nodes = [node["metadata"]["name"] for node in cluster.nodes]
        self._driver = f"gpu-{seed}.example.com"
        self._whole: list[tuple[str, str]] = []  # pool and name of devices that are allocated as a whole
        self._shared: list[tuple[str, str]] = []
        self._claims = self._slices = 0
        self.objects: list[Stored] = []
        self._incomplete = self._dice.random() < 0.3
        for word, expression in (("any", None), ("large", self._is_large()), ("fast", self._attribute("fast"))):
            selectors = [{"cel": {"expression": f"device.driver == '{self._driver}'"}}]
            selectors += [{"cel": {"expression": expression}}] if expression else []
            self.objects.append((CLASS, {"metadata": {"name": self._name(word)}, "spec": {"selectors": selectors}}))
        for node in self._nodes:
            if self._dice.random() < 0.8:
                self._pool(node, {"nodeName": node})
        if self._dice.random() < 0.4:
            self._pool(self._name("everywhere"), {"allNodes": True})
        if self._dice.random() < 0.4:
            term = {"key": ZONE, "operator": "In", "values": self._dice.sample(ZONES, 2)}
            terms = [{"matchExpressions": [term]}]
            self._pool(self._name("zone"), {"nodeSelector": {"nodeSelectorTerms": terms}})
        for _ in range(self._dice.randint(0, 4)):
            self._held(self._dice.choice(("red", "blue")))
        for pod in cluster.waiting:
            if self._dice.random() < 0.9:
                namespace = pod["metadata"]["namespace"]
                names = [self._claim(namespace) for _ in range(self._dice.choice((1, 1, 2)))]
                pod["spec"]["resourceClaims"] = [
                    {"name": f"c{number}", "resourceClaimName": name} for number, name in enumerate(names)
                ]

    def _name(self, word: str) -> str:
        return f"{word}-{self._seed}"

    def _attribute(self, name: str) -> str:
        return f"device.attributes['{self._driver}'].{name}"

    def _is_large(self) -> str:
        return f"device.capacity['{self._driver}'].memory.compareTo(quantity('20Gi')) >= 0"

    # -- slices ------------------------------------------------------------------------------------------------------

    def _pool(self, pool: str, where: dict[str, Any]) -> None:
        dice = self._dice
        kind = dice.random()
        groups = [self._devices(pool, "a")]
        if dice.random() < 0.3:
            groups.append(self._devices(pool, "b"))
        counters = None
        if kind < 0.3:
            counters = [{"name": "board", "counters": {"slots": {"value": str(dice.randint(2, 6))}}}]
            for one in groups[0]:
                slots = {"slots": {"value": str(dice.randint(1, 4))}}
                one["consumesCounters"] = [{"counterSet": "board", "counters": slots}]
        count = len(groups) + (counters is not None)
        if self._incomplete and dice.random() < 0.4:
            count += 1
        if dice.random() < 0.2:  # of an earlier generation
            self._slice(pool, where, 1, 1, {"devices": self._devices(pool, "old", hidden=True)})
        if counters is not None:
            self._slice(pool, where, 2, count, {"sharedCounters": counters})
        for devices in groups:
            self._slice(pool, where, 2, count, {"devices": devices})

    def _slice(self, pool: str, where: dict[str, Any], generation: int, count: int, fields: dict[str, Any]) -> None:
        self._slices += 1
        named = {"name": pool, "generation": generation, "resourceSliceCount": count}
        spec = {"driver": self._driver, "pool": named, **where, **fields}
        self.objects.append((SLICE, {"metadata": {"name": f"{self._name('slice')}-{self._slices}"}, "spec": spec}))

    def _devices(self, pool: str, word: str, *, hidden: bool = False) -> list[dict[str, Any]]:
        dice, found = self._dice, []
        for number in range(dice.randint(1, 4)):
            one: dict[str, Any] = {
                "name": f"{word}-{number}",
                "attributes": {
                    "numa": {"int": dice.randint(0, 1)},
                    "fast": {"bool": dice.random() < 0.6},
                    "driver": {"version": dice.choice(("1.2.0", "2.0.1"))},
                    "rack.example.com/row": {"string": dice.choice("xy")},
                },
                "capacity": {"memory": {"value": dice.choice(("10Gi", "20Gi", "40Gi"))}},
            }
            if dice.random() < 0.2:
                effect = dice.choice(("NoSchedule", "NoExecute", "None"))
                one["taints"] = [{"key": "example.com/broken", "value": dice.choice("xy"), "effect": effect}]
            if dice.random() < 0.25:
                one["allowMultipleAllocations"] = True
                if dice.random() < 0.7:
                    bounds = {"min": "2Gi", "step": "2Gi"} | ({"max": "8Gi"} if dice.random() < 0.4 else {})
                    one["capacity"]["memory"]["requestPolicy"] = {"default": "4Gi", "validRange": bounds}
            if not hidden:
                (self._shared if "allowMultipleAllocations" in one else self._whole).append((pool, one["name"]))
            found.append(one)
        return found

    # -- claims ------------------------------------------------------------------------------------------------------

    def _request(self, name: str, *, every: bool = True) -> dict[str, Any]:
        dice = self._dice
        found: dict[str, Any] = {
            "name": name,
            "deviceClassName": self._name(dice.choice(("any", "any", "large", "fast"))),
        }
        if every and not self._incomplete and dice.random() < 0.1:
            found["allocationMode"] = "All"
        else:
            found["count"] = dice.choice((1, 1, 1, 2, 3))
        if dice.random() < 0.4:
            texts = (
                self._attribute("numa") + " == 1",
                self._attribute("driver") + ".isGreaterThan(semver('1.9.0'))",
                "device.attributes['rack.example.com'].row == 'x'",
                "device.allowMultipleAllocations",
                "!has(device.attributes['nosuch.example.com'].name)",
            )
            found["selectors"] = [{"cel": {"expression": dice.choice(texts)}}]
        if dice.random() < 0.25:
            value = {"operator": "Exists"} if dice.random() < 0.5 else {"operator": "Equal", "value": "x"}
            found["tolerations"] = [{"key": "example.com/broken", **value}]
        if dice.random() < 0.25:
            found["capacity"] = {"requests": {"memory": dice.choice(("1Gi", "5Gi", "12Gi"))}}
        return found

    def _claim(self, namespace: str) -> str:
        """Add a claim that has no devices, or shares those of another; returns its name."""
        dice = self._dice
        if dice.random() < 0.12 and self._whole:
            return self._held(namespace)
        requests: list[dict[str, Any]] = []
        for number in range(dice.choice((1, 1, 2))):
            if dice.random() < 0.25:
                options = [self._request(f"o{at}", every=False) for at in range(dice.randint(2, 3))]
                requests.append({"name": f"r{number}", "firstAvailable": options})
            else:
                whole = self._request(f"r{number}", every=len(requests) == 0)
                name = whole.pop("name")
                requests.append({"name": name, "exactly": whole})
        constraints = []
        if dice.random() < 0.35 and "All" not in str(requests):
            kind = "matchAttribute" if dice.random() < 0.7 or "count': 1" not in str(requests) else "distinctAttribute"
            if kind == "matchAttribute" or str(requests).count("'count': 1") == str(requests).count("'count'"):
                name = dice.choice((f"{self._driver}/numa", "rack.example.com/row", f"{self._driver}/driver"))
                constraints = [{kind: name}]
        spec = {"devices": {"requests": requests, **({"constraints": constraints} if constraints else {})}}
        return self._add(namespace, spec, {})

    def _held(self, namespace: str) -> str:
        """Add a claim that has a device; returns its name."""
        dice = self._dice
        exactly = {"deviceClassName": self._name("any")}
        spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        result: dict[str, Any] = {"request": "r", "driver": self._driver}
        if self._shared and (dice.random() < 0.5 or not self._whole):
            pool, device = dice.choice(self._shared)
            share = str(uuid.UUID(int=dice.getrandbits(128), version=4))
            result |= {"shareID": share, "consumedCapacity": {"memory": dice.choice(("2Gi", "4Gi", "10Gi"))}}
        elif self._whole:
            pool, device = self._whole.pop(dice.randrange(len(self._whole)))
        else:
            return self._add(namespace, spec, {})
        allocation: dict[str, Any] = {"devices": {"results": [{**result, "pool": pool, "device": device}]}}
        if pool in self._nodes:
            field = {"key": "metadata.name", "operator": "In", "values": [pool]}
            allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        users = [{"resource": "pods", "name": f"user-{at}", "uid": f"user-{self._claims}-{at}"} for at in range(2)]
        return self._add(namespace, spec, {"allocation": allocation, "reservedFor": users})

    def _add(self, namespace: str, spec: dict[str, Any], status: dict[str, Any]) -> str:
        self._claims += 1
        name = f"{self._name('devices')}-{self._claims}"
        self.objects.append(
            (CLAIM, {"metadata": {"name": name, "namespace": namespace}, "spec": spec, "status": status})
        )
        return name
