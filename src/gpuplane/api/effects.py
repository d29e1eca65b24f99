"""Which fields of a ClusterPolicy change something in this release, and why each of the others does not.

Every field of the GPU operator's API is accepted, so that existing manifests apply; none is ignored in silence. A test
holds that each field is in exactly one of the two tables.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec

from gpuplane.api.clusterpolicy import ClusterPolicySpec

ACTS: Final = (
    "operator.labels",
    "operator.annotations",
    "operator.notReadyTaint",
    "daemonsets.*",
    "hostPaths.rootFS",
    "hostPaths.kubeletRootDir",
    *(
        f"{component}.{field}"
        for component in ("driver", "toolkit", "devicePlugin", "dcgmExporter", "gfd", "validator")
        for field in ("enabled", "env", "resources.*", "imagePullPolicy", "imagePullSecrets", "hostNetwork")
    ),
)
"""Patterns of paths below `spec` that the operator acts on."""

NO_EFFECT: Final[dict[str, str]] = {
    "operator.defaultRuntime": "the runtime of each node is found by itself",
    "operator.runtimeClass": "the RuntimeClasses are nvidia, nvidia-cdi and nvidia-legacy",
    "operator.initContainer.*": "there are no helper containers",
    "operator.metrics.*": "no ServiceMonitor is made; scrape port 8080 of the operator",
    "operator.use_ocp_driver_toolkit": "OpenShift's driver toolkit is not used",
    "hostPaths.driverInstallDir": "the driver is found by itself",
    "driver.useOpenKernelModules": "set driver.kernelModuleType instead",
    "driver.useNvidiaDriverCRD": "drivers are taken from the ClusterPolicy only, so far",
    "driver.upgradePolicy.*": "drivers are not upgraded by the operator yet",
    "driver.manager.*": "there is no driver manager: nothing is unloaded",
    "driver.rdma.*": "peer memory is not loaded yet",
    "driver.*Probe.*": "the driver's operand has no probes; its stage is a fact about the node",
    "driver.*": "drivers are found, or simulated ones installed; building real ones comes later",
    "toolkit.installDir": "nothing is installed there: CDI does the work",
    "devicePlugin.config.*": "the plugin advertises whole GPUs only, so far",
    "devicePlugin.mps.*": "the plugin advertises whole GPUs only, so far",
    "dcgm.*": "the exporter reads the GPUs itself",
    "dcgmExporter.*": "the exporter serves its default fields to everybody on port 9400, so far",
    "mig.*": "MIG is shown but not managed yet",
    "migManager.*": "MIG is shown but not managed yet",
    "validator.*": "the validator validates everything with its own environment",
    "nodeStatusExporter.*": "the operator's metrics have every node's state",
    "gds.*": "GPUDirect Storage is not installed yet",
    "gdrcopy.*": "GDRCopy is not installed yet",
    "cdi.*": "CDI is the only way in which GPUs are handed out",
    "psa.*": "the operator's namespace is labelled privileged by the installation",
    "psp.*": "Pod Security Policies are gone from Kubernetes",
    "*.repository": "operands run from the operator's own image",
    "*.image": "operands run from the operator's own image",
    "*.version": "operands run from the operator's own image",
    "*.args": "arguments belong to NVIDIA's programs, which are not run",
    "*": "nodes are prepared for containers only, so far",
}
"""Pattern below `spec` -> why setting it changes nothing. The first that matches counts."""


@functools.cache
def acts(path: str) -> bool:
    """Whether the operator acts on a field."""
    return any(fnmatchcase(path, pattern) for pattern in ACTS)


def why_not(path: str) -> str:
    """Why a field that the operator does not act on changes nothing."""
    return next(why for pattern, why in NO_EFFECT.items() if fnmatchcase(path, pattern))


def without_effect(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(path, value) of every field that is set to something else than its default and changes nothing."""
    defaults = _defaults()
    for path, value in _leaves(spec):
        if path in defaults and not acts(path) and value not in (defaults[path], None, False, "", [], {}):
            yield path, value


@functools.cache
def _defaults() -> dict[str, Any]:
    return dict(fields())


def fields(kind: type[msgspec.Struct] = ClusterPolicySpec, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, default) of every field below `spec`."""
    for field in msgspec.structs.fields(kind):
        path = f"{prefix}{field.encode_name}"
        inner = _struct(field.type)
        if inner is not None:
            yield from fields(inner, path + ".")
        else:
            yield path, msgspec.to_builtins(field.default) if field.default is not msgspec.NODEFAULT else None


def _struct(kind: Any) -> type[msgspec.Struct] | None:
    """The Struct that a field holds, None for lists and plain values."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    choices = get_args(kind) if get_origin(kind) is not tuple else ()
    for choice in choices or (kind,):
        if isinstance(choice, type) and issubclass(choice, msgspec.Struct):
            return choice
    return None


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        path = f"{prefix}{name}"
        if isinstance(inner, Mapping) and path not in _defaults():
            yield from _leaves(inner, path + ".")
        else:
            yield path, inner
