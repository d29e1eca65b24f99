"""Checks what a GPU program needs on a node: facts read at the edge, and the first problem among them.

Checked in the order in which things are made, so the problem that is named is the cause and not what follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.host import LIBRARY_DIRS, Host
from kubekit.documents import DocumentError, decode_json

CDI_DIRS: Final = ("etc/cdi", names.CDI_DIR)
CUDA_LIBRARY: Final = "libcuda.so.1"
CONTROL_NODE: Final = "nvidiactl"


class CdiSpec(msgspec.Struct, frozen=True):
    """One CDI file. `error` says why it is no use; `devices` are the names of its devices of our kind."""

    path: str
    devices: frozenset[str] = frozenset()
    error: str = ""


class ValidationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the node. `driver_ready` is the status file's content, None when there is none; `library` the file
    of libcuda as this process sees it, without links, None when there is none; `nodes` the names of the driver's device
    nodes.
    """

    driver_ready: Mapping[str, str] | None
    toolkit_ready: bool
    cdi: tuple[CdiSpec, ...]
    library: str | None
    nodes: frozenset[str]


# Problems that may only mean "not there yet": after a boot, driver and toolkit come one after the other.
AWAITED: Final = frozenset(
    {"DriverFileMissing", "DriverLibraryMissing", "DeviceNodesMissing", "ToolkitFileMissing", "CDIDeviceMissing"}
)
WATCHED: Final = (names.DRIVER_READY, names.TOOLKIT_READY, f"dev/{CONTROL_NODE}")  # where those who wait look


class ValidationProblem(msgspec.Struct, frozen=True):
    """Why a stage does not hold, as it goes into GPUNode."""

    reason: str
    message: str
    where: str = ""
    cure: str = ""


def read_facts(host: Host) -> ValidationFacts:
    """Look at the node's file system."""
    ready = host.read_text(names.DRIVER_READY)
    driver_ready = None if ready is None else parse_env(ready)
    return ValidationFacts(
        driver_ready=driver_ready,
        toolkit_ready=host.exists(names.TOOLKIT_READY),
        cdi=tuple(_read_cdi(host)),
        library=_library(host, driver_ready or {}),
        nodes=frozenset(name for name in host.list("dev") if name.startswith("nvidia")),
    )


def parse_env(text: str) -> dict[str, str]:
    """The variables of an env file; quotes around a value are taken off, other lines are passed over."""
    pairs = (line.strip().removeprefix("export ").partition("=") for line in text.splitlines())
    return {name: value.strip("\"'") for name, equals, value in pairs if equals and not name.startswith("#")}


def first_problem(facts: ValidationFacts, uuids: Sequence[str], *, namespace: str) -> ValidationProblem | None:
    """Return the first problem for GPU programs in containers of this node; None without one.

    Args:
        uuids: the GPUs that must be reachable.
    """

    def logs(daemonset: str) -> str:
        return f"kubectl -n {namespace} logs ds/{daemonset}"

    if facts.driver_ready is None:
        return ValidationProblem(
            "DriverFileMissing",
            "the driver's status file is gone",
            "/" + names.DRIVER_READY,
            logs("nvidia-driver-daemonset"),
        )
    if facts.library is None:
        root = facts.driver_ready.get("NVIDIA_DRIVER_ROOT", "/")
        return ValidationProblem(
            "DriverLibraryMissing", f"there is no {CUDA_LIBRARY}", root, "install the driver's user space again"
        )
    if CONTROL_NODE not in facts.nodes:
        return ValidationProblem(
            "DeviceNodesMissing", f"there is no /dev/{CONTROL_NODE}", "/dev", "modprobe nvidia; nvidia-modprobe -c 0 -u"
        )
    if not facts.toolkit_ready:
        return ValidationProblem(
            "ToolkitFileMissing",
            "the toolkit's status file is gone",
            "/" + names.TOOLKIT_READY,
            logs("nvidia-container-toolkit-daemonset"),
        )
    broken = next((spec for spec in facts.cdi if spec.error), None)
    if broken is not None:
        return ValidationProblem("CDISpecInvalid", broken.error, "/" + broken.path, "gpuplane toolkit cdi")
    known = frozenset[str]().union(*(spec.devices for spec in facts.cdi))
    missing = [uuid for uuid in uuids if uuid not in known]
    if missing:
        where = ", ".join("/" + spec.path for spec in facts.cdi if spec.devices) or "/" + names.CDI_DIR
        return ValidationProblem(
            "CDIDeviceMissing", f"no CDI device for {', '.join(missing)}", where, "gpuplane toolkit cdi"
        )
    return None


def parse_cdi(path: str, data: Any) -> CdiSpec | None:
    """A decoded CDI file; None when it is of another kind (which is not our concern).

    Source: Container Device Interface specification.
    """
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        return CdiSpec(path, error="the CDI file has no kind")
    if data["kind"] != names.CDI_KIND:
        return None
    if not isinstance(data.get("cdiVersion"), str):
        return CdiSpec(path, error="the CDI file has no cdiVersion")
    devices = data.get("devices")
    if not isinstance(devices, list):
        return CdiSpec(path, error="the CDI file has no list of devices")
    found = set()
    for position, device in enumerate(devices):
        if not isinstance(device, dict) or not isinstance(device.get("name"), str) or not device["name"]:
            return CdiSpec(path, error=f"devices[{position}] of the CDI file has no name")
        if not isinstance(device.get("containerEdits"), dict):
            return CdiSpec(path, error=f"devices[{position}] of the CDI file has no containerEdits")
        found.add(device["name"])
    return CdiSpec(path, frozenset(found))


def _read_cdi(host: Host) -> list[CdiSpec]:
    specs = []
    for folder in CDI_DIRS:
        for name in host.list(folder):
            path = f"{folder}/{name}"
            if not name.endswith((".json", ".yaml")) or (data := host.read(path)) is None:
                continue
            try:
                spec = parse_cdi(path, _decoded(data))
            except (DocumentError, ValueError) as error:
                spec = CdiSpec(path, error=f"the CDI file cannot be read: {str(error).splitlines()[0]}")
            if spec is not None:
                specs.append(spec)
    return specs


def _decoded(data: bytes) -> Any:
    """JSON or YAML; a CDI runtime takes either under either ending. Raises DocumentError."""
    if data.lstrip().startswith(b"{"):
        return decode_json(data)
    from kubekit.yaml_documents import load_yaml  # late: most files are JSON, and YAML is 4 MB

    return load_yaml(data)


def _library(host: Host, ready: Mapping[str, str]) -> str | None:
    for root in (ready.get("NVIDIA_DRIVER_ROOT", "/"), "/", names.DRIVER_ROOT):
        # Links of a driver in a root of its own mean that root.
        driver = Host(host.root / root.strip("/"))
        for folder in LIBRARY_DIRS:
            path = f"{folder}/{CUDA_LIBRARY}"
            if driver.read(path, limit=1) is not None and (real := driver.real(path)) is not None:
                return driver.shown(real)
    return None
