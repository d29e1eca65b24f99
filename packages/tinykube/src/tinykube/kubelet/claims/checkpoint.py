"""The claims that a node prepared, and `dra_manager_state`, which keeps them over a restart, in the kubelet's own form.

Source: pkg/kubelet/cm/dra/state of Kubernetes 1.36.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

log = logging.getLogger("tinykube.kubelet")

NAME: Final = "dra_manager_state"
_KIND: Final = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1"}


class PreparedDevice(msgspec.Struct, frozen=True):
    """A device as its driver prepared it. No `requests`: it belongs to every request. `share`: of a shared device."""

    pool: str
    name: str
    requests: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    share: str | None = None

    def serves(self, request: str) -> bool:
        """Return whether a container that names a request gets the device; an empty name stands for all requests."""
        return not request or not self.requests or request in self.requests


class NodePreparedClaim(msgspec.Struct):
    """A claim that pods of the node use. `drivers`: the devices by driver. `prepared`: by this kubelet process."""

    namespace: str
    name: str
    uid: str
    pods: set[str] = msgspec.field(default_factory=set)
    drivers: dict[str, tuple[PreparedDevice, ...]] = msgspec.field(default_factory=dict)
    prepared: bool = False

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def encode(claims: Iterable[NodePreparedClaim]) -> bytes:
    """Return a checkpoint."""
    data = msgspec.json.encode({**_KIND, "ClaimInfoStateList": [_entry(claim) for claim in claims]})
    return msgspec.json.encode({"Data": data.decode(), "Checksum": zlib.crc32(data)})


def _entry(claim: NodePreparedClaim) -> dict[str, Any]:
    return {
        "ClaimUID": claim.uid,
        "ClaimName": claim.name,
        "Namespace": claim.namespace,
        "PodUIDs": {uid: {} for uid in sorted(claim.pods)},
        "DriverState": {
            driver: {
                "Devices": [
                    {
                        "PoolName": one.pool,
                        "DeviceName": one.name,
                        "ShareID": one.share,
                        "RequestNames": one.requests,
                        "CDIDeviceIDs": one.cdi,
                    }
                    for one in devices
                ]
            }
            for driver, devices in claim.drivers.items()
        },
    }


def decode(text: bytes) -> list[NodePreparedClaim]:
    """Return the claims of a checkpoint. Raises ValueError, KeyError or TypeError for one that is torn."""
    document = msgspec.json.decode(text)
    data = document["Data"].encode()
    if document["Checksum"] != zlib.crc32(data):
        raise ValueError("the checksum does not match")
    return [_claim(entry) for entry in msgspec.json.decode(data)["ClaimInfoStateList"] or ()]


def _claim(entry: dict[str, Any]) -> NodePreparedClaim:
    return NodePreparedClaim(
        namespace=entry["Namespace"],
        name=entry["ClaimName"],
        uid=entry["ClaimUID"],
        pods=set(entry["PodUIDs"] or ()),
        drivers={
            driver: tuple(
                PreparedDevice(
                    one["PoolName"],
                    one["DeviceName"],
                    tuple(one["RequestNames"] or ()),
                    tuple(one["CDIDeviceIDs"] or ()),
                    one.get("ShareID"),
                )
                for one in state["Devices"] or ()
            )
            for driver, state in (entry["DriverState"] or {}).items()
        },
    )


def load(path: Path) -> list[NodePreparedClaim]:
    """Return the claims on disk; none when there is no file, or one that cannot be read, which is logged."""
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s cannot be read and is started again: %s", path, error)
        return []


def save(path: Path, claims: Iterable[NodePreparedClaim]) -> None:
    """Replace the checkpoint."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(encode(claims))
    new.chmod(0o600)
    new.rename(path)
