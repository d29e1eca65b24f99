"""`kubelet_internal_checkpoint`: the holdings, kept over a restart of the kubelet, in the kubelet's own shape.

Others read this file to learn which pod holds which device: PodDeviceEntries with PodUID, ContainerName, ResourceName,
DeviceIDs by NUMA node and the Allocate response as base64 of its protobuf. The checksum is ours (FNV-1a over the
JSON of `Data`), since the kubelet's depends on how Go prints its memory.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kubekit.protocol import deviceplugin_pb2 as pb
from tinykube.kubelet.devices.ledger import ContainerDevices, DeviceHolding, DeviceMount, ListedDevice

log = logging.getLogger("tinykube.kubelet")

NAME = "kubelet_internal_checkpoint"


class Checkpoint(msgspec.Struct, frozen=True):
    """The allocations, and the resources that plugins had registered."""

    holdings: tuple[DeviceHolding, ...] = ()
    registered: frozenset[str] = frozenset()


def given_of(response: pb.ContainerAllocateResponse) -> ContainerDevices:
    return ContainerDevices(
        envs=dict(response.envs),
        mounts=tuple(DeviceMount(m.host_path, m.container_path, m.read_only) for m in response.mounts),
        devices=tuple(DeviceMount(d.host_path, d.container_path) for d in response.devices),
        annotations=dict(response.annotations),
        cdi=tuple(device.name for device in response.cdi_devices),
    )


def response_of(given: ContainerDevices) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=given.envs,
        mounts=[
            pb.Mount(host_path=m.host_path, container_path=m.container_path, read_only=m.read_only)
            for m in given.mounts
        ],
        devices=[
            pb.DeviceSpec(host_path=d.host_path, container_path=d.container_path, permissions="rw")
            for d in given.devices
        ],
        annotations=given.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in given.cdi],
    )


def encode(holdings: Iterable[DeviceHolding], devices: Mapping[str, Mapping[str, ListedDevice]]) -> bytes:
    entries = [
        {
            "PodUID": h.pod_uid,
            "ContainerName": h.container,
            "ResourceName": h.resource,
            "DeviceIDs": _by_numa(h.ids, devices.get(h.resource, {})),
            "AllocResp": base64.b64encode(response_of(h.given).SerializeToString()).decode(),
        }
        for h in holdings
    ]
    registered = {resource: sorted(i for i, d in known.items() if d.healthy) for resource, known in devices.items()}
    data = {"PodDeviceEntries": entries, "RegisteredDevices": registered}
    return msgspec.json.encode({"Data": data, "Checksum": _checksum(data)})


def decode(text: bytes) -> Checkpoint:
    """A checkpoint. Raises ValueError for one that is torn or not ours."""
    document = msgspec.json.decode(text)
    data = document["Data"]
    if document["Checksum"] != _checksum(data):
        raise ValueError("the checksum does not match")
    holdings = []
    for entry in data["PodDeviceEntries"]:
        response = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
        holdings.append(
            DeviceHolding(
                pod_uid=entry["PodUID"],
                container=entry["ContainerName"],
                resource=entry["ResourceName"],
                ids=tuple(i for ids in entry["DeviceIDs"].values() for i in ids),
                given=given_of(response),
            )
        )
    return Checkpoint(tuple(holdings), frozenset(data["RegisteredDevices"]))


def _by_numa(ids: Iterable[str], devices: Mapping[str, ListedDevice]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for i in ids:
        numa = devices[i].numa if i in devices else ()
        found.setdefault(str(numa[0]) if numa else "-1", []).append(i)
    return found


def _checksum(data: Any) -> int:
    value = 0x811C9DC5
    for byte in msgspec.json.encode(data):
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def load(path: Path) -> Checkpoint | None:
    """The checkpoint on disk, None without one; an empty one, said in the log, when the file cannot be believed."""
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read and is started again: %s", path, error)
        return Checkpoint()


def save(path: Path, holdings: Iterable[DeviceHolding], devices: Mapping[str, Mapping[str, ListedDevice]]) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(encode(holdings, devices))
    new.chmod(0o600)
    new.rename(path)
