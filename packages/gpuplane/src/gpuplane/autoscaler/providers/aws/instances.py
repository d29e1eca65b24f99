"""Instances as EC2 describes them, and the tags that make them this cluster's. Pure.

Source: the API reference of EC2, DescribeInstances.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpuplane import names
from gpuplane.autoscaler.catalogue import ON_DEMAND, SPOT
from gpuplane.autoscaler.providers.provider import CLAIM_TAG, MANAGED_TAG, POOL_TAG, CloudInstance, LaunchRequest

TOKEN_TAG: Final = names.LAUNCH_TOKEN_TAG
VERSION_TAG: Final = names.TEMPLATE_VERSION_TAG

LIVE: Final = ("pending", "running", "shutting-down", "stopping", "stopped")
STARTED: Final = (
    "pending",
    "running",
    "stopping",
    "stopped",
)  # a launch that is repeated finds its instance among these
_STATES: Final = {
    "pending": "pending",
    "running": "running",
    "shutting-down": "stopping",
    "stopping": "stopping",
    "stopped": "stopping",
    "terminated": "gone",
}
_PROVIDER_ID: Final = re.compile(r"aws:///(?:[a-z0-9-]+)?/(i-[0-9a-f]+)")


def provider_id(zone: str, instance: str) -> str:
    """Return the provider id that the node of an instance has."""
    return f"aws:///{zone}/{instance}"


def instance_id(provider: str) -> str:
    """Return the instance of a provider id; empty for one of another cloud."""
    found = _PROVIDER_ID.fullmatch(provider)
    return found[1] if found else ""


def launch_tags(request: LaunchRequest, cluster: str, own: Mapping[str, str], version: str) -> dict[str, str]:
    """Return the tags of an instance; the class' own tags do not replace those that the autoscaler needs."""
    tags = {"Name": f"{request.pool}/{request.claim}"} | dict(own)
    tags |= {
        MANAGED_TAG: cluster,
        CLAIM_TAG: request.claim,
        POOL_TAG: request.pool,
        TOKEN_TAG: request.token,
        f"kubernetes.io/cluster/{cluster}": "owned",
    }
    return tags | ({VERSION_TAG: version} if version else {})


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in EC2's form."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def described_instances(reservations: Iterable[Mapping[str, Any]]) -> Iterator[CloudInstance]:
    """Yield the instances of an answer of DescribeInstances, also those that are gone."""
    for reservation in reservations:
        for found in reservation.get("Instances", ()):
            yield read_instance(found)


def read_instance(found: Mapping[str, Any]) -> CloudInstance:
    """Read one instance of an answer."""
    tags = {tag["Key"]: tag["Value"] for tag in found.get("Tags", ())}
    zone = (found.get("Placement") or {}).get("AvailabilityZone", "")
    launched = found.get("LaunchTime")
    return CloudInstance(
        provider_id=provider_id(zone, found["InstanceId"]),
        claim=tags.get(CLAIM_TAG, ""),
        pool=tags.get(POOL_TAG, ""),
        machine=found.get("InstanceType", ""),
        zone=zone,
        capacity_type=SPOT if found.get("InstanceLifecycle") == "spot" else ON_DEMAND,
        image=found.get("ImageId", ""),
        state=_STATES.get((found.get("State") or {}).get("Name", ""), "stopping"),
        launched=launched.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(launched, datetime.datetime) else "",
        subnet=found.get("SubnetId", ""),
        security_groups=tuple(sorted(group["GroupId"] for group in found.get("SecurityGroups", ()))),
        version=tags.get(VERSION_TAG, ""),
    )
