"""The device plugin's configuration file, `version: v1`: what it says of GPUs, and how strictly it is read.

The device plugin and GPU feature discovery read the same file. Each field of the format acts, says what happens
anyway, or is refused with its place and the reason; none is ignored. All findings come at once. Variables of the
environment, which people set in a ClusterPolicy, go before the file, as in NVIDIA's programs.

Source of the format: the NVIDIA device plugin's documentation, "Configuring the NVIDIA device plugin binary" and
"Shared Access to GPUs", and its api/config/v1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.durations import duration
from gpuplane.api.pluginreading import SectionReader
from kubekit.documents import LONGEST_SETTINGS, DocumentError
from kubekit.errors import InvalidInput

ANNOTATION_PREFIX: Final = names.CDI_ANNOTATION_PREFIX
MACHINE_FILE: Final = "/sys/class/dmi/id/product_name"
FEATURES_FILE: Final = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
DEFAULT_INTERVAL: Final = 60.0
LONGEST_RESOURCE: Final = 63
"""Characters of a resource's name; ids of its devices may be as long."""
MOST_REPLICAS: Final = 1000  # of one device: kubelets take seconds for an admission with 100,000 devices

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UUID: Final = re.compile(
    r"(GPU|MIG)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|MIG-GPU-[-0-9a-fA-F]{36}/\d+/\d+"
)
_INDEX: Final = re.compile(r"\d+(:\d+)?")


class MigStrategy(StrEnum):
    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


class DeviceListStrategy(StrEnum):
    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


class DeviceIDStrategy(StrEnum):
    UUID = "uuid"
    INDEX = "index"


class SharingStrategy(StrEnum):
    NONE = "none"
    MPS = "mps"
    TIME_SLICING = "time-slicing"


class ResourceNaming(msgspec.Struct, frozen=True):
    """GPUs (by model) or MIG devices (by profile) that match `pattern`, in which * is any text, are this resource."""

    pattern: str
    resource: str

    def matches(self, text: str) -> bool:
        return re.search(".*".join(re.escape(part) for part in self.pattern.split("*")), text) is not None


class ReplicatedResource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource of which each device is offered `replicas` times.

    Which devices: all, the first `count`, or those `listed` by UUID or index ("1", "1:0" for MIG device 0 of GPU 1).
    `offered` is the name of the replicas; `renamed` whether it is another one.
    """

    resource: str
    replicas: int
    offered: str
    count: int = 0
    listed: tuple[str, ...] = ()

    @property
    def renamed(self) -> bool:
        return self.offered != self.resource


class PluginConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file.

    Without a device list strategy containers get the environment variable, for a runtime that injects GPUs itself, and
    CDI names, for one that follows the kubelet. `envvar` or `volume-mounts` alone add the CDI names too: only
    the runtime `nvidia` reads variables and mounts, and gpuplane does not make it the default of a node.
    """

    mig_strategy: MigStrategy = MigStrategy.NONE
    fail_on_init_error: bool = True
    driver_root: str = "/"
    dev_root: str = "/"
    mps_root: str = names.MPS_ROOT
    pass_device_specs: bool = False
    device_list: frozenset[DeviceListStrategy] = frozenset((DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_CRI))
    device_id: DeviceIDStrategy = DeviceIDStrategy.UUID
    annotation_prefix: str = ANNOTATION_PREFIX
    gpus: tuple[ResourceNaming, ...] = ()
    mig: tuple[ResourceNaming, ...] = ()
    sharing: SharingStrategy = SharingStrategy.NONE
    replicated: tuple[ReplicatedResource, ...] = ()
    fail_requests_above_one: bool = False
    gfd_timestamp: bool = True
    gfd_machine_file: str = MACHINE_FILE
    gfd_interval: float = DEFAULT_INTERVAL

    def replicated_as(self, resource: str) -> ReplicatedResource | None:
        return next((shared for shared in self.replicated if shared.resource == resource), None)


def load(data: bytes, environment: Mapping[str, str] = {}, *, where: str = "") -> PluginConfig:
    """The configuration of a file's content. Raises InvalidInput for one that cannot be accepted."""
    from kubekit.yaml_documents import load_yaml  # late: a plugin without a file does not need it

    try:
        decoded = load_yaml(data, where=where, limit=LONGEST_SETTINGS)
    except DocumentError as error:
        what = f"the configuration cannot be read as YAML: {error.problem}"
        raise InvalidInput(what, where=error.where) from error
    return parse({} if decoded is None else decoded, environment, where=where)


def parse(data: Any, environment: Mapping[str, str] = {}, *, where: str = "") -> PluginConfig:
    """The configuration of decoded YAML. Raises InvalidInput, a finding for each field that cannot be followed."""
    if not isinstance(data, dict):
        raise InvalidInput("the configuration is no mapping", where=where, cure="begin it with version: v1")
    top = SectionReader(data, environment, [])
    version = top.text("version", default="v1")
    if version != "v1":
        top.wrong("version", f"{version!r} is no version of this format, write v1")
    read = {**_flags(top.section("flags")), **_resources(top.section("resources")), **_sharing(top.section("sharing"))}
    imex = top.section("imex")
    imex.refused("channelIDs", "this release passes no IMEX channels to containers", accepted=([],))
    imex.refused("required", "this release passes no IMEX channels to containers", accepted=(False,))
    imex.end()
    top.end()
    if top.findings:
        raise InvalidInput(
            f"the configuration cannot be followed: {'; '.join(top.findings)}",
            where=where,
            cure="take these fields out or give them a value that is named",
            findings=tuple(top.findings),
        )
    return PluginConfig(**read)


def _flags(flags: SectionReader) -> dict[str, Any]:
    driver_root = flags.path("nvidiaDriverRoot", "NVIDIA_DRIVER_ROOT", default="/")
    read: dict[str, Any] = {
        "mig_strategy": flags.choice("migStrategy", MigStrategy, names.MIG_STRATEGY_ENV, MigStrategy.NONE),
        "fail_on_init_error": flags.flag("failOnInitError", "FAIL_ON_INIT_ERROR", default=True),
        "driver_root": driver_root,
        "mps_root": flags.path("mpsRoot", names.MPS_ROOT_ENV, default=names.MPS_ROOT),
        "dev_root": flags.path("nvidiaDevRoot", "NVIDIA_DEV_ROOT", default=driver_root),
    }
    for field, variable, what in (
        ("gdsEnabled", "GDS_ENABLED", "GPUDirect Storage"),
        ("mofedEnabled", "MOFED_ENABLED", "MOFED"),
        ("gdrcopyEnabled", "GDRCOPY_ENABLED", "GDRCopy"),
    ):
        flags.refused(field, f"this release does not pass {what} to containers", variable, accepted=(False,))
    flags.flag("useNodeFeatureAPI", "USE_NODE_FEATURE_API", default=True)  # the labels are the same either way
    flags.refused(
        "deviceDiscoveryStrategy",
        "GPUs are found by NVML only",
        "DEVICE_DISCOVERY_STRATEGY",
        accepted=("auto", "nvml"),
    )
    read |= _plugin(flags.section("plugin")) | _gfd(flags.section("gfd"))
    flags.end()
    return read


def _plugin(plugin: SectionReader) -> dict[str, Any]:
    read: dict[str, Any] = {
        "pass_device_specs": plugin.flag("passDeviceSpecs", "PASS_DEVICE_SPECS"),
        "device_id": plugin.choice("deviceIDStrategy", DeviceIDStrategy, "DEVICE_ID_STRATEGY", DeviceIDStrategy.UUID),
        "annotation_prefix": plugin.text("cdiAnnotationPrefix", "CDI_ANNOTATION_PREFIX", default=ANNOTATION_PREFIX),
    }
    if chosen := plugin.choices("deviceListStrategy", DeviceListStrategy, "DEVICE_LIST_STRATEGY"):
        by_runtime = {DeviceListStrategy.ENVVAR, DeviceListStrategy.VOLUME_MOUNTS}
        read["device_list"] = frozenset(chosen)
        if by_runtime.issuperset(chosen):
            read["device_list"] |= {DeviceListStrategy.CDI_CRI}
        if by_runtime <= read["device_list"]:
            plugin.wrong("deviceListStrategy", "envvar and volume-mounts set the same variable, choose one of them")
    prefix = read["annotation_prefix"]
    if not prefix.endswith("/") or not _NAME.fullmatch(prefix[:-1]):
        plugin.wrong("cdiAnnotationPrefix", f"{prefix!r} is no prefix of annotations such as {ANNOTATION_PREFIX}")
    theirs = "CDI specifications are written by the toolkit, which knows the driver's root and needs no nvidia-ctk"
    plugin.refused("nvidiaCTKPath", theirs, "NVIDIA_CDI_HOOK_PATH", accepted=("/usr/bin/nvidia-ctk",))
    plugin.refused("containerDriverRoot", theirs, "CONTAINER_DRIVER_ROOT", accepted=("/driver-root", "/"))
    plugin.end()
    return read


def _gfd(gfd: SectionReader) -> dict[str, Any]:
    gfd.refused("oneshot", "labels follow the GPUs for as long as discovery runs", "GFD_ONESHOT", accepted=(False,))
    gfd.refused(
        "outputFile", "labels are written to the Node and to no file", "GFD_OUTPUT_FILE", accepted=("", FEATURES_FILE)
    )
    read: dict[str, Any] = {
        "gfd_timestamp": not gfd.flag("noTimestamp", "GFD_NO_TIMESTAMP"),
        "gfd_machine_file": gfd.path("machineTypeFile", "GFD_MACHINE_TYPE_FILE", default=MACHINE_FILE),
    }
    interval = gfd.raw("sleepInterval", "GFD_SLEEP_INTERVAL")
    seconds = DEFAULT_INTERVAL if interval is None else duration(interval)
    if seconds is None or seconds < 1:
        gfd.wrong("sleepInterval", "is no duration as 60s or 1m30s, or is below 1s")
    gfd.end()
    return read | {"gfd_interval": seconds}


def _resources(section: SectionReader) -> dict[str, Any]:
    read = {"gpus": tuple(_namings(section, "gpus")), "mig": tuple(_namings(section, "mig"))}
    section.end()
    return read


def _namings(section: SectionReader, field: str) -> list[ResourceNaming]:
    found: list[ResourceNaming] = []
    for entry in section.sections(field):
        pattern, name = entry.text("pattern", required=True), entry.text("name", required=True)
        resource = _resource(entry, "name", name)
        if pattern and any(pattern == other.pattern for other in found):
            entry.wrong("pattern", f"{pattern!r} stands there already, and the first one counts")
        found.append(ResourceNaming(pattern, resource))
        entry.end()
    return found


def _resource(entry: SectionReader, field: str, name: str) -> str:
    """A resource's full name: `nvidia.com/` is put before a name without it, as in their plugin."""
    if not name:
        return ""
    full = name if name.startswith(names.NVIDIA_PREFIX) else names.NVIDIA_PREFIX + name
    if not _NAME.fullmatch(full.removeprefix(names.NVIDIA_PREFIX)):
        entry.wrong(field, f"{name!r} is no name of a resource: lower-case letters, digits, '-' and '.'")
    elif len(full) > LONGEST_RESOURCE:
        entry.wrong(field, f"{full!r} is longer than {LONGEST_RESOURCE} characters")
    return full


def _sharing(section: SectionReader) -> dict[str, Any]:
    mps, slicing = section.section("mps"), section.section("timeSlicing")
    by_mps, slices = _replicated(mps), _replicated(slicing)
    # NB: the historical default of the two differs, so that a request for two replicas fails with MPS.
    limits = {
        SharingStrategy.MPS: mps.flag("failRequestsGreaterThanOne", default=True),
        SharingStrategy.TIME_SLICING: slicing.flag("failRequestsGreaterThanOne"),
    }
    if by_mps and slices:
        section.wrong("mps", "is set together with timeSlicing, and a GPU is shared in one way only")
    mps.end()
    slicing.end()
    section.end()
    if not by_mps and not slices:
        return {}
    strategy = SharingStrategy.MPS if by_mps else SharingStrategy.TIME_SLICING
    return {
        "sharing": strategy,
        "replicated": tuple(by_mps or slices),
        "fail_requests_above_one": limits[strategy],
    }


def _replicated(section: SectionReader) -> list[ReplicatedResource]:
    everything = section.flag("renameByDefault")
    found: list[ReplicatedResource] = []
    for entry in section.sections("resources"):
        resource = _resource(entry, "name", entry.text("name", required=True))
        renamed = _resource(entry, "rename", entry.text("rename"))
        replicas = entry.raw("replicas")
        if type(replicas) is not int or not 2 <= replicas <= MOST_REPLICAS:
            entry.wrong("replicas", f"must be a number from 2 to {MOST_REPLICAS}, is {replicas!r}")
            replicas = 2
        offered = renamed or (resource + names.SHARED_SUFFIX if everything else resource)
        if len(offered) > LONGEST_RESOURCE:
            entry.wrong("name", f"{offered!r} is longer than {LONGEST_RESOURCE} characters")
        if resource and any(resource == other.resource for other in found):
            entry.wrong("name", f"{resource} stands there already: one entry a resource")
        elif resource and any(offered == other.offered for other in found):
            field = "rename" if renamed else "name"
            entry.wrong(field, f"{offered} is the name of another entry's replicas already")
        count, listed = _devices(entry)
        found.append(
            ReplicatedResource(resource=resource, replicas=replicas, offered=offered, count=count, listed=listed)
        )
        entry.end()
    for index, one in enumerate(found):
        if one.renamed and any(one.offered == other.resource for other in found):
            section.wrong(f"resources[{index}].rename", f"{one.offered} is a resource that is shared itself")
    return found


def _devices(entry: SectionReader) -> tuple[int, tuple[str, ...]]:
    """(count, listed) of `devices`: all, how many, or a list; (0, ()) is all."""
    value = entry.raw("devices")
    if value is None or value == "all":
        return 0, ()
    if type(value) is int and value > 0:
        return value, ()
    if not isinstance(value, list) or not value:
        entry.wrong("devices", f"must be all, a number of devices, or a list of them, is {value!r}")
        return 0, ()
    listed = tuple(str(item) for item in value if type(item) in (int, str))
    if len(listed) < len(value) or not all(_INDEX.fullmatch(item) or _UUID.fullmatch(item) for item in listed):
        entry.wrong("devices", "holds something that is no index as 0 or 0:1 and no UUID as GPU-... or MIG-...")
    if len(set(listed)) < len(listed):
        entry.wrong("devices", "names a device twice")
    return 0, listed
