"""Values files of Helm charts: gpuplane's own, NVIDIA's GPU operator's, and the device plugin's.

helm judges them by the chart's schema. The device plugin's configurations are texts for helm, so they are checked here,
each finding with its place in the file. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuplane.api import pluginconfig
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.api.effects import fields
from gpuplane.api.finding import Finding
from kubekit.documents import LONGEST_SETTINGS, DocumentError
from kubekit.errors import InvalidInput
from kubekit.yaml_documents import load_yaml

CHART_KEYS: Final = frozenset(
    [
        "admission",
        "autoscaler",
        "affinity",
        "allowDefaultNamespace",
        "clusterPolicy",
        "compatWithCPUManager",
        "config",
        "dashboard",
        "deviceDiscoveryStrategy",
        "deviceIDStrategy",
        "deviceListStrategy",
        "draDriver",
        "extraObjects",
        "failOnInitError",
        "fullnameOverride",
        "gdrcopyEnabled",
        "gdsEnabled",
        "global",
        "gpuCluster",
        "image",
        "imagePullSecrets",
        "migStrategy",
        "monitoring",
        "mofedEnabled",
        "mps",
        "nameOverride",
        "namespaceOverride",
        "node-feature-discovery",
        "nodeSelector",
        "nvidiaDevRoot",
        "nvidiaDriverRoot",
        "platform",
        "podAnnotations",
        "podScheduler",
        "podSecurityContext",
        "priorityClassName",
        "resources",
        "runtimeClassName",
        "scheduler",
        "securityContext",
        "selectorLabelsOverride",
        "tolerations",
        "updateStrategy",
    ]
)
"""Values at the top of the file besides the groups of a ClusterPolicy."""
_PLUGIN_ONLY: Final = frozenset(("version", "flags", "resources", "sharing", "imex"))
WHAT: Final = "values of a Helm chart; helm judges them by the chart's schema"


def is_values(data: Any) -> bool:
    """Return whether a document is a values file: it has no kind, and the names at its top are the charts'."""
    if not isinstance(data, Mapping) or not data or "kind" in data or "apiVersion" in data:
        return False
    known = CHART_KEYS | {path.partition(".")[0] for path, _ in fields(ClusterPolicySpec)}
    return known.issuperset(data) and not _PLUGIN_ONLY.issuperset(data)


def check_values(data: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about the device plugin's configurations in a values file."""
    return [finding for path, text in _configurations(data) for finding in _of_text(path, text)]


def _configurations(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    plugin = data.get("devicePlugin")
    groups = {
        "config": data.get("config"),
        "devicePlugin.config": plugin.get("config") if isinstance(plugin, Mapping) else None,
    }
    for place, config in groups.items():
        for key in ("map", "data"):
            texts = config.get(key) if isinstance(config, Mapping) else None
            for name, text in texts.items() if isinstance(texts, Mapping) else ():
                if isinstance(text, str):
                    yield f"{place}.{key}.{name}", text


def _of_text(path: str, text: str) -> Iterator[Finding]:
    try:
        decoded = load_yaml(text, limit=LONGEST_SETTINGS)
        pluginconfig.parse({} if decoded is None else decoded)
    except DocumentError as error:
        yield Finding(code="GP160", path=path, message=f"cannot be read as YAML: {error}", at="key")
    except InvalidInput as error:
        for finding in error.findings or (error.what,):
            yield Finding(code="GP160", path=path, message=finding, at="key")
