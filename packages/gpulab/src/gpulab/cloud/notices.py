"""Notices about instances, in the form in which EventBridge puts them into a queue. Pure.

Source: AWS' examples of events of EC2.
"""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import msgspec

from gpulab.cloud.settings import ACCOUNT


def spot_interruption(instance: str, region: str, now: float) -> str:
    """Return the warning that EC2 takes a spot instance back, two minutes before."""
    detail = {"instance-id": instance, "instance-action": "terminate"}
    return _event("EC2 Spot Instance Interruption Warning", detail, instance, region, now)


def state_change(instance: str, state: str, region: str, now: float) -> str:
    """Return the notice that an instance has another state."""
    return _event(
        "EC2 Instance State-change Notification", {"instance-id": instance, "state": state}, instance, region, now
    )


def _event(kind: str, detail: dict[str, Any], instance: str, region: str, now: float) -> str:
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    event = {
        "version": "0",
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind}/{instance}/{now}")),
        "detail-type": kind,
        "source": "aws.ec2",
        "account": ACCOUNT,
        "time": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": region,
        "resources": [f"arn:aws:ec2:{region}:{ACCOUNT}:instance/{instance}"],
        "detail": detail,
    }
    return msgspec.json.encode(event).decode()
