"""Instances of the simulated cloud, as moto has them. The only module that reads and changes moto's own objects.

moto ends an instance within the call that asks for it. A machine takes a moment to end, so the state is put back to
shutting-down until the machine is off; else a Node would be forgotten while its kubelet still runs.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Collection
from typing import Any, Final

import msgspec

from gpuplane.autoscaler.catalogue import ON_DEMAND, SPOT
from gpuplane.autoscaler.providers.provider import CLAIM_TAG, POOL_TAG

RUNNING: Final = "running"
SHUTTING_DOWN: Final = "shutting-down"
TERMINATED: Final = "terminated"
_CODES: Final = {RUNNING: 16, SHUTTING_DOWN: 32, TERMINATED: 48}


class LabInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance. `launched` is in seconds since 1970; `address` is empty once the instance has ended."""

    id: str
    machine: str
    zone: str
    capacity_type: str
    state: str
    launched: float
    address: str = ""
    user_data: str = ""
    pool: str = ""
    claim: str = ""

    @property
    def provider_id(self) -> str:
        return f"aws:///{self.zone}/{self.id}"


class MotoRegion:
    """moto's objects of one region. The caller holds the endpoint's lock."""

    def __init__(self, account: str, region: str) -> None:
        from moto.ec2.models import ec2_backends

        self._ec2 = ec2_backends[account][region]

    def kept(self) -> Any:
        """Return what `restore` takes."""
        return self._ec2

    def restore(self, kept: Any, account: str) -> None:
        """Take the objects of an earlier process."""
        from moto.ec2.models import ec2_backends

        ec2_backends[account][kept.region_name] = kept
        self._ec2 = kept

    def instances(self) -> list[LabInstance]:
        """Return all instances, in the order of their launch; those that ended too."""
        return [_read(found) for found in self._ec2.all_instances()]

    def set_state(self, instance: str, state: str) -> None:
        found = self._ec2.get_instance(instance)
        found._state.name, found._state.code = state, _CODES[state]

    def shutting_down(self, on: Collection[str]) -> list[str]:
        """Put instances back to shutting-down whose machines are still on; return those that were not before."""
        changed = []
        for found in self._ec2.all_instances():
            if found.state == TERMINATED and found.id in on:
                self.set_state(found.id, SHUTTING_DOWN)
                changed.append(found.id)
        return changed

    def zones(self) -> dict[str, str]:
        """Return the zone of each subnet."""
        return {subnet.id: subnet.availability_zone for subnet in self._ec2.describe_subnets()}

    def set_architecture(self, image: str, architecture: str) -> None:
        """Set what RegisterImage of moto leaves out."""
        for found in self._ec2.describe_images(ami_ids=[image]):
            found.architecture = architecture

    def restrict(self, types: Collection[str], zones: Collection[str]) -> set[str]:
        """Offer only some types in some zones of this region; return the types that EC2's list lacks."""
        from moto.ec2.models import instance_types as known

        for location, offered in known.INSTANCE_TYPE_OFFERINGS.items():
            places = {"region": [self._ec2.region_name], "availability-zone": sorted(zones)}.get(location, [])
            offered[self._ec2.region_name] = [
                {"InstanceType": name, "Location": place, "LocationType": location}
                for name in types
                for place in places
            ]
        # Of this region's backend alone: the list that all have is the class's.
        self._ec2.instance_types = [each for each in known.InstanceTypeBackend.instance_types if each.name in types]
        return set(types) - {found.name for found in self._ec2.instance_types}


def _read(found: Any) -> LabInstance:
    tags = {tag["key"]: tag["value"] for tag in found.get_tags()}
    return LabInstance(
        id=found.id,
        machine=found.instance_type,
        zone=found.availability_zone or "",
        capacity_type=SPOT if found.lifecycle == SPOT else ON_DEMAND,
        state=found.state,
        launched=found.launch_time.replace(tzinfo=datetime.UTC).timestamp(),
        address=(found.nics[0].private_ip_address or "") if found.nics else "",
        user_data=_decoded(found.user_data),
        pool=tags.get(POOL_TAG, ""),
        claim=tags.get(CLAIM_TAG, ""),
    )


def _decoded(user_data: Any) -> str:
    """Return user data as text. moto has it in base64, as a text or as an object of its own."""
    try:
        return base64.b64decode(str(user_data or "")).decode(errors="replace")
    except (binascii.Error, ValueError):
        return ""
