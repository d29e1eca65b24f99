"""Values of the device plugin's own chart, at the top of its values files, and what both charts have that is refused.

Each value acts, has no effect for the reason in its description, or is refused by `REFUSED` with the key to use. The
template `gpuplane.fromPlugin` carries out what acts, and `gpuplane.refuse` fails with what is refused.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": ["string", "null"]}
_FLAG: Final[Schema] = {"type": ["boolean", "null"]}
_MAP: Final[Schema] = {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
_GROUP: Final[Schema] = {"type": ["object", "null"]}
_LIST: Final[Schema] = {"type": ["array", "null"]}
_FIXED: Final = "no effect: names of objects are those of the GPU operator, in the namespace gpu-operator"
_OWN_IMAGE: Final = "no effect: operands run from the operator's own image, see operator.repository"
_DISCOVERY: Final = "no effect: discovery is a part of gpuplane, without settings of its own"
_BY_TOOLKIT: Final = "no effect: the toolkit writes the CDI specifications"


def _told(schema: Schema, description: str, default: Any = None) -> Schema:
    return {**schema, "description": description, "default": default}


def _group(description: str, **properties: Schema) -> Schema:
    return {"type": "object", "description": description, "properties": properties}


AFFINITY: Final = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
                for key, value in (
                    ("feature.node.kubernetes.io/pci-10de.present", "true"),
                    ("feature.node.kubernetes.io/cpu-model.vendor_id", "NVIDIA"),
                    ("nvidia.com/gpu.present", "true"),
                )
            ]
        }
    }
}
"""The default of the plugin's chart: nodes with GPUs, which gpuplane finds by itself."""

TOP: Final[dict[str, Schema]] = {
    "compatWithCPUManager": _told(_FLAG, "device nodes in containers: PASS_DEVICE_SPECS of devicePlugin.env"),
    "migStrategy": _told({"enum": ["none", "single", "mixed", None]}, "the plugin chart's name of mig.strategy"),
    "failOnInitError": _told(_FLAG, "FAIL_ON_INIT_ERROR of devicePlugin.env"),
    "deviceListStrategy": _told(
        {"type": ["string", "array", "null"]}, "how containers get GPUs: DEVICE_LIST_STRATEGY of devicePlugin.env"
    ),
    "deviceIDStrategy": _told({"enum": ["uuid", "index", None]}, "DEVICE_ID_STRATEGY of devicePlugin.env"),
    "nvidiaDriverRoot": _told(_TEXT, "NVIDIA_DRIVER_ROOT of devicePlugin.env"),
    "nvidiaDevRoot": _told(_TEXT, "NVIDIA_DEV_ROOT of devicePlugin.env"),
    "gdrcopyEnabled": _told(_FLAG, "refused when true: this release does not pass GDRCopy to containers"),
    "gdsEnabled": _told(_FLAG, "refused when true: this release does not pass GPUDirect Storage to containers"),
    "mofedEnabled": _told(_FLAG, "refused when true: this release does not pass MOFED to containers"),
    "deviceDiscoveryStrategy": _told(_TEXT, "auto or nvml; others are refused"),
    "nameOverride": _told(_TEXT, _FIXED, ""),
    "fullnameOverride": _told(_TEXT, _FIXED, ""),
    "namespaceOverride": _told(_TEXT, _FIXED, ""),
    "selectorLabelsOverride": _told(_MAP, _FIXED, {}),
    "allowDefaultNamespace": _told(_FLAG, _FIXED, False),
    "imagePullSecrets": _told(_LIST, "the plugin chart's name of devicePlugin.imagePullSecrets", []),
    "image": _group(
        "The device plugin's image in its own chart.",
        repository=_told(_TEXT, _OWN_IMAGE, ""),
        tag=_told({"type": ["string", "number", "null"]}, _OWN_IMAGE, ""),
        pullPolicy=_told(
            {"enum": ["Always", "IfNotPresent", "Never", "", None]}, "the name of devicePlugin.imagePullPolicy", ""
        ),
    ),
    "updateStrategy": _group(
        "The plugin chart's name of daemonsets.updateStrategy and daemonsets.rollingUpdate.",
        type=_told({"enum": ["RollingUpdate", "OnDelete"]}, "the name of daemonsets.updateStrategy", "RollingUpdate"),
        rollingUpdate=_group(
            "The name of daemonsets.rollingUpdate.",
            maxUnavailable=_told({"type": ["integer", "string", "null"]}, "nodes without the operand at a time"),
        ),
    ),
    "podAnnotations": _told(_MAP, "the plugin chart's name of daemonsets.annotations", {}),
    "podSecurityContext": _told(_GROUP, "the plugin chart's name of daemonsets.podSecurityContext", {}),
    "securityContext": _told(_GROUP, "no effect: each operand has the security context that its work needs", {}),
    "resources": _told(_GROUP, "the plugin chart's name of devicePlugin.resources", {}),
    "nodeSelector": _told(_MAP, "the plugin chart's name of daemonsets.nodeSelector", {}),
    "affinity": _told(_GROUP, "refused when set to another than the plugin chart's default, see nodeSelector", {}),
    "tolerations": _told(_LIST, "the plugin chart's name of daemonsets.tolerations", []),
    "priorityClassName": _told(_TEXT, "the plugin chart's name of daemonsets.priorityClassName", ""),
    "runtimeClassName": _told(_TEXT, "no effect: operands need no runtime class", ""),
    "mps": _group(
        "Multi-Process Service.",
        root=_told(_TEXT, "the plugin chart's name of devicePlugin.mps.root", "/run/nvidia/mps"),
        enableHostPID=_told(_FLAG, "no effect: the control daemon shares the host's process ids in any case", True),
        enableHostNetwork=_told(_FLAG, "no effect: the control daemon needs no network", False),
    ),
}
"""Top-level values."""

OWN: Final[dict[str, dict[str, Schema]]] = {
    "devicePlugin": {"enableHostNetwork": _told(_FLAG, "the plugin chart's name of devicePlugin.hostNetwork")},
    "gfd": {
        "enableHostNetwork": _told(_FLAG, "the plugin chart's name of gfd.hostNetwork"),
        "noTimestamp": _told(_FLAG, "GFD_NO_TIMESTAMP of gfd.env"),
        "sleepInterval": _told({"type": ["string", "null"]}, "GFD_SLEEP_INTERVAL of gfd.env"),
        "nameOverride": _told(_TEXT, _FIXED, "gpu-feature-discovery"),
        "namespaceOverride": _told(_TEXT, _FIXED, ""),
        "securityContext": _told(_GROUP, "no effect: the operand has the security context that it needs", {}),
    },
    "nfd": {
        "nodefeaturerules": _told(
            _FLAG, "refused when true: write NodeFeatureRules, for example in extraObjects", False
        ),
        "nameOverride": _told(_TEXT, _DISCOVERY, "node-feature-discovery"),
        "master": _told(_GROUP, _DISCOVERY, {}),
        "worker": _told(_GROUP, _DISCOVERY, {}),
    },
    "cdi": {
        "nvidiaHookPath": _told(_TEXT, _BY_TOOLKIT),
        "featureFlags": _told(_TEXT, _BY_TOOLKIT),
    },
}
"""Values in groups that the ClusterPolicy has too."""


def _switched_on(path: str, why: str, use: str = "leave it out", accepted: Any = False) -> Schema:
    return {"path": path.split("."), "accepted": [accepted], "why": why, "use": use}


_LAYOUTS: Final = "MIG layouts are not managed by this release"
_BY_HAND: Final = "create the instances with nvidia-smi mig, and set mig.strategy"
_VIRTUAL_MACHINES: Final = "nodes are prepared for containers only"
_DRA: Final = "there is no driver for dynamic resource allocation yet"
REFUSED: Final[tuple[Schema, ...]] = (
    _switched_on("gds.enabled", "GPUDirect Storage is not installed by this release"),
    _switched_on("gdrcopy.enabled", "GDRCopy is not installed by this release"),
    # The name that NVIDIA's chart has by default in some releases; by itself it changes no GPU.
    _switched_on("migManager.config.name", _LAYOUTS, _BY_HAND, "default-mig-parted-config"),
    _switched_on("migManager.config.create", _LAYOUTS, _BY_HAND),
    _switched_on("migManager.config.data", _LAYOUTS, _BY_HAND, {}),
    _switched_on("sandboxWorkloads.enabled", _VIRTUAL_MACHINES),
    _switched_on("vgpuManager.enabled", _VIRTUAL_MACHINES),
    _switched_on("kataManager.enabled", _VIRTUAL_MACHINES),
    _switched_on("draDriver.enabled", _DRA, "devicePlugin, which offers the same GPUs"),
    _switched_on("draDriver.gpus.enabled", _DRA, "devicePlugin, which offers the same GPUs"),
    _switched_on("draDriver.featureGates", _DRA, accepted={}),
    *(
        {
            "path": [key],
            "accepted": [False],
            "why": f"this release does not pass {what} to containers",
            "use": "leave it out",
        }
        for key, what in (("gdsEnabled", "GPUDirect Storage"), ("gdrcopyEnabled", "GDRCopy"), ("mofedEnabled", "MOFED"))
    ),
    {
        "path": ["deviceDiscoveryStrategy"],
        "accepted": ["auto", "nvml"],
        "why": "GPUs are found by NVML only",
        "use": "leave it out",
    },
    {
        "path": ["affinity"],
        "accepted": [{}, AFFINITY],
        "why": "an operand follows the stages of each node",
        "use": "daemonsets.nodeSelector for nodes that gpuplane shall prepare",
    },
    {
        "path": ["nfd", "nodefeaturerules"],
        "accepted": [False],
        "why": "NVIDIA's own rules are not part of gpuplane",
        "use": "extraObjects with the NodeFeatureRules that you need: they are evaluated",
    },
)
"""Values that cannot be followed: those that are accepted all the same, why, and what to use instead.

NVIDIA's whole default file is accepted. Of `draDriver` only switches are refused, since its versions differ by release.
"""


def refused() -> dict[str, str]:
    """Return why each value of `REFUSED` is refused, by its path."""
    return {".".join(entry["path"]): entry["why"] for entry in REFUSED}
