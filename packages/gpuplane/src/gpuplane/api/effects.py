"""Lists the fields of a ClusterPolicy that have an effect in this release, and the reason for each of the others.

Every field of the GPU operator's API is accepted, so that existing manifests apply; no field is ignored in silence.

ACTS is written by hand: templates and controllers read fields in many places, and some of them only under a condition.
Neither the source nor one run tells which fields act. `tests/operator/test_policy_effects.py` proves the list. It
changes each field and compares the results of the operator: a field is in ACTS if, and only if, a result changes.
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
    "operator.setSchedulerName",
    "driver.upgradePolicy.*",
    "nfd.enabled",
    "mig.strategy",
    "devicePlugin.config.*",
    "devicePlugin.mps.*",
    "daemonsets.*",
    "hostPaths.rootFS",
    "hostPaths.kubeletRootDir",
    "cdi.nriPluginEnabled",
    *(
        f"driver.{field}"
        for field in (
            *("useNvidiaDriverCRD", "repository", "image", "version", "usePrecompiled", "kernelModuleType", "rdma.*"),
            *("kernelModuleConfig.*", "repoConfig.*", "certConfig.*", "secretEnv", "licensingConfig.*"),
            *("virtualTopology.*", "startupProbe.*", "args"),
        )
    ),
    *(
        f"{component}.{field}"
        for component in ("driver", "toolkit", "devicePlugin", "dcgmExporter", "gfd", "validator")
        for field in ("enabled", "env", "resources.*", "imagePullPolicy", "imagePullSecrets", "hostNetwork")
    ),
    *(
        f"dcgmExporter.{field}"
        for field in (
            *("config.*", "service.*", "serviceMonitor.*", "annotations", "hostPID", "hpcJobMapping.*"),
            *("enablePodLabels", "enablePodUID", "podLabelAllowlistRegex"),
        )
    ),
    *(f"validator.{part}.env" for part in ("driver", "toolkit", "cuda", "plugin")),
)
"""Patterns of paths below `spec` that the operator acts on."""

IMAGE_ONLY: Final = (
    "driver.licensingConfig.*",
    "driver.virtualTopology.*",
    "driver.startupProbe.*",
    "driver.args",
    "driver.rdma.useHostMofed",
)
"""Of those, what NVIDIA's driver images know and our own installer does not."""
_NEEDS_IMAGE: Final = "gpuplane's own installer has none of it; set repository, image and version of a driver image"

NO_EFFECT: Final[dict[str, str]] = {
    "operator.defaultRuntime": "the runtime of each node is found by itself",
    "operator.runtimeClass": "the RuntimeClasses are nvidia, nvidia-cdi and nvidia-legacy",
    "operator.initContainer.*": "there are no helper containers",
    "operator.metrics.*": "gpuplane install --monitoring makes the operator's ServiceMonitor",
    "operator.use_ocp_driver_toolkit": "OpenShift's driver toolkit is not used",
    "hostPaths.driverInstallDir": "the driver is found by itself",
    "driver.useOpenKernelModules": "set driver.kernelModuleType instead",
    "driver.manager.*": "the operand makes room for a driver by itself",
    "driver.livenessProbe.*": "only a driver's start is probed; that it works is a stage of its node",
    "driver.readinessProbe.*": "only a driver's start is probed; that it works is a stage of its node",
    "toolkit.installDir": "the programs go to /usr/local/nvidia/toolkit",
    "dcgm.*": "the exporter reads the GPUs itself",
    "migManager.*": "MIG devices are listed but not managed yet",
    "validator.v[fg]*": "nodes are prepared for containers only, so far",
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
    """Return whether the operator acts on a field."""
    return any(fnmatchcase(path, pattern) for pattern in ACTS)


def why_not(path: str) -> str:
    """Why a field that the operator does not act on changes nothing."""
    if acts(path) and needs_image(path):
        return _NEEDS_IMAGE
    return next(why for pattern, why in NO_EFFECT.items() if fnmatchcase(path, pattern))


def without_effect(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(path, value) of every field that is set to something else than its default and changes nothing."""
    defaults = _defaults()
    own = not has_image(spec.get("driver"))
    for path, value in _leaves(spec):
        idle = not acts(path) or (own and needs_image(path))
        if path in defaults and idle and value not in (defaults[path], None, False, "", [], {}):
            yield path, value


def driver_without_effect(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """(path, value, why) of every field of an NVIDIADriver that is set and changes nothing."""
    own = not has_image(spec)
    for path, value in _leaves(spec, known=frozenset(("nodeSelector", "nodeAffinity", "labels", "annotations"))):
        same = path if path.startswith(("gds.", "gdrcopy.")) else f"driver.{_POLICY_NAMES.get(path, path)}"
        if same not in _defaults() or value in (_defaults()[same], None, False, "", [], {}):
            continue
        if own and needs_image(same):
            yield path, value, _NEEDS_IMAGE
        elif not acts(same):
            yield path, value, why_not(same)


# Fields that the two kinds spell differently: NVIDIADriver -> ClusterPolicy's driver.
_POLICY_NAMES: Final = {
    "licensingConfig.name": "licensingConfig.configMapName",
    "virtualTopologyConfig.name": "virtualTopology.config",
    "repoConfig.name": "repoConfig.configMapName",
}


def has_image(driver: Any) -> bool:
    """Return whether a driver image is named, and not our own installer meant."""
    return isinstance(driver, Mapping) and bool(driver.get("repository") or driver.get("image"))


def needs_image(path: str) -> bool:
    """Return whether a field says something to driver images only."""
    return any(fnmatchcase(path, pattern) for pattern in IMAGE_ONLY)


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


def _leaves(
    value: Mapping[str, Any], prefix: str = "", known: frozenset[str] | None = None
) -> Iterator[tuple[str, Any]]:
    """(path, value) of what is set; mappings that are values themselves are `known`, else those of a ClusterPolicy."""
    for name, inner in value.items():
        path = f"{prefix}{name}"
        if isinstance(inner, Mapping) and path not in (_defaults() if known is None else known):
            yield from _leaves(inner, path + ".", known)
        else:
            yield path, inner
