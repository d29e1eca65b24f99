"""Makes the response of Allocate for a container's units: environment, mounts, device nodes, CDI names. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api.pluginconfig import DeviceIDStrategy, DeviceListStrategy, PluginConfig, SharingStrategy
from gpuplane.device_plugin.kubelet_api import Allocation, DeviceSpec
from gpuplane.host import HostMount
from gpuplane.sharing.mps import CONTAINER_ROOT, SHM, pipe
from gpuplane.sharing.units import Unit
from kubekit.errors import InvalidInput, Terminal

VOLUMES: Final = "/var/run/nvidia-container-devices"
"""Where NVIDIA's runtime looks for mounts whose names are the devices of the container."""
CONTROLS: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_PLUGIN: Final = "nvidia-device-plugin"


class NodeFiles(msgspec.Struct, frozen=True):
    """Device nodes of the machine: which of CONTROLS there are, and the N of nvidia-capN by its capability's path."""

    controls: tuple[str, ...] = ()
    caps: Mapping[str, int] = {}


def allocation(
    ids: Sequence[str],
    units: Mapping[str, Unit],
    health: Mapping[str, str],
    config: PluginConfig,
    files: NodeFiles = NodeFiles(),  # noqa: B008 - frozen
    resource: str = "",
) -> Allocation:
    """Return the response for a container with the units `ids`.

    Args:
        units: those of the resource, by id.
        health: UUID of a GPU -> why it is not usable.
        resource: their name, by which clients of MPS find their daemon.

    Raises:
        Terminal: an id is unknown or not healthy.
        InvalidInput: more replicas than one container may have.
    """
    chosen = [_usable(one, units, health) for one in ids]
    if config.fail_requests_above_one and len(ids) > 1 and any(unit.replicas > 1 for unit in chosen):
        raise InvalidInput(
            f"{len(ids)} replicas are requested, and failRequestsGreaterThanOne allows one: two are no larger part",
            where="Allocate",
            cure="ask for 1",
        )
    # Two replicas of one device are that device once.
    devices = list({unit.device: unit for unit in chosen}.values())
    by_index = config.device_id is DeviceIDStrategy.INDEX
    shown = [unit.index if by_index else unit.device for unit in devices]
    envs: dict[str, str] = {}
    mounts: list[HostMount] = []
    annotations: dict[str, str] = {}
    cdi = tuple(f"{names.CDI_KIND}={name}" for name in shown)
    if DeviceListStrategy.ENVVAR in config.device_list:
        envs[names.VISIBLE_DEVICES_ENV] = ",".join(shown)
    if DeviceListStrategy.VOLUME_MOUNTS in config.device_list:
        envs[names.VISIBLE_DEVICES_ENV] = VOLUMES
        mounts = [HostMount(host_path="/dev/null", container_path=f"{VOLUMES}/{name}") for name in shown]
    if resource and config.sharing is SharingStrategy.MPS and any(unit.replicas > 1 for unit in units.values()):
        envs[names.MPS_PIPE_ENV] = pipe(CONTAINER_ROOT, resource)
        places = {pipe(config.mps_root, resource): envs[names.MPS_PIPE_ENV], f"{config.mps_root}/{SHM}": "/dev/shm"}
        mounts += [HostMount(host_path=one, container_path=other, read_only=False) for one, other in places.items()]
    if DeviceListStrategy.CDI_ANNOTATIONS in config.device_list:
        # The key has to differ between the resources of one container, and be the same for the same devices.
        digest = hashlib.sha256(",".join(ids).encode()).hexdigest()[:16]
        annotations[f"{config.annotation_prefix}{_PLUGIN}_{digest}"] = ",".join(cdi)
    return Allocation(
        envs=envs,
        mounts=tuple(mounts),
        devices=_device_nodes(devices, config, files) if config.pass_device_specs else (),
        annotations=annotations,
        cdi_devices=cdi if DeviceListStrategy.CDI_CRI in config.device_list else (),
    )


def _usable(one: str, units: Mapping[str, Unit], health: Mapping[str, str]) -> Unit:
    unit = units.get(one)
    if unit is None:
        raise Terminal(f"no device {one} on this node", where="Allocate", cure="delete the pod; it is placed again")
    if unit.gpu in health:
        raise Terminal(f"GPU {unit.gpu} is not usable: {health[unit.gpu]}", where="Allocate", cure="delete the pod")
    return unit


def _device_nodes(devices: Sequence[Unit], config: PluginConfig, files: NodeFiles) -> tuple[DeviceSpec, ...]:
    root = config.dev_root.rstrip("/")
    paths = []
    for unit in devices:
        for node in unit.nodes:
            if "/" in node:
                if node not in files.caps:
                    raise Terminal(f"the capability {node} has no device node", where="/proc/driver/nvidia-caps")
                node = f"nvidia-caps/nvidia-cap{files.caps[node]}"
            paths.append(node)
    every = dict.fromkeys((*files.controls, *paths))
    return tuple(DeviceSpec(host_path=f"{root}/dev/{path}", container_path=f"/dev/{path}") for path in every)
