"""The monitoring part of an installation: ServiceMonitors, alerts and Grafana's boards.

ServiceMonitors and alerts are kinds of the Prometheus operator. They exist where the cluster serves the definitions.
The boards are ConfigMaps with the label that Grafana's sidecar reads. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Final

from gpuplane import names
from gpuplane.api.schema import OURS
from gpuplane.operator.exporter_objects import MONITOR
from gpuplane.operator.manifest import Manifest
from kubekit.api.meta import Resource
from kubekit.errors import InvalidInput

RULE: Final = Resource(MONITOR.group, MONITOR.version, "prometheusrules", "PrometheusRule", True)
KINDS: Final = {(kind.api_version, kind.kind): kind for kind in (MONITOR, RULE)}
_COMPONENT: Final = "app.kubernetes.io/name"
GRAFANA_LABEL: Final = "grafana_dashboard"
"""The label by which the sidecar of Grafana's charts finds boards, unless its values name another one."""


def read_labels(settings: Iterable[str]) -> dict[str, str]:
    """Read `KEY=VALUE` of each setting. Raises InvalidInput for a setting without a key or a value."""
    found: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (key and equals and value):
            raise InvalidInput(
                f"{setting!r} is no label", where="--monitoring-label", cure="--monitoring-label release=prometheus"
            )
        found[key] = value
    return found


def monitoring_manifests(files: Iterable[Manifest], labels: Mapping[str, str], parts: Sequence[str]) -> list[Manifest]:
    """Return the part's objects in the order to apply.

    Args:
        files: the manifests of the part's folder.
        labels: what the Prometheus object selects ServiceMonitors and rules by, besides their own labels.
        parts: names of the components that the installation has; other components get no ServiceMonitor.
    """
    made = [one for one in files if one["metadata"]["labels"].get(_COMPONENT, parts[0]) in parts]
    for manifest in made:
        if (manifest["apiVersion"], manifest["kind"]) in KINDS:
            manifest["metadata"]["labels"] |= labels
    return [*made, *boards()]


def boards() -> list[Manifest]:
    """Return the boards of Grafana, each as a ConfigMap."""
    folder = resources.files(__package__).joinpath("boards")
    return [_board(entry.name, entry.read_text()) for entry in sorted(folder.iterdir(), key=lambda one: one.name)]


def _board(file: str, text: str) -> Manifest:
    name = f"gpuplane-board-{file.removesuffix('.json')}"
    labels = {GRAFANA_LABEL: "1", **OURS}
    meta: dict[str, Any] = {"name": name, "namespace": names.OPERATOR_NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {f"gpuplane-{file}": text}}


def monitor_exporter(spec: Manifest, labels: Mapping[str, str]) -> None:
    """Have a policy's spec ask for the exporter's ServiceMonitor, as the boards need it."""
    monitor: Manifest = {"enabled": True, "honorLabels": True}
    if labels:
        monitor["additionalLabels"] = dict(labels)
    spec["dcgmExporter"] = {"serviceMonitor": monitor}
