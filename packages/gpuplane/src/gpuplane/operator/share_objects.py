"""The Service and the ServiceMonitor of the metrics of shares, which the device plugins of nodes with shares serve.

The objects exist while a node with an enabled device plugin offers shares. The ServiceMonitor follows the policy's
`dcgmExporter.serviceMonitor`: dashboards join the metrics of shares with those of the exporter. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.operator.exporter_objects import shape_monitor
from gpuplane.operator.manifest import Manifest, load
from gpuplane.sharing.dialects import ENABLE

SERVICE_FILE: Final = "0520-device-plugin-shares-service.yaml"
MONITOR_FILE: Final = "0530-device-plugin-shares-monitor.yaml"
NAME: Final = "nvidia-device-plugin-shares"


def any_shares(nodes: Iterable[Mapping[str, str]]) -> bool:
    """Return whether a node with these labels offers shares."""
    return any(labels.get(names.SHARE_LABEL) == ENABLE for labels in nodes)


def share_objects(spec: ClusterPolicySpec, *, monitored: bool) -> list[Manifest]:
    """Return the objects for a cluster with shares; `monitored`: with the ServiceMonitor."""
    wanted, monitor = load(SERVICE_FILE), spec.dcgm_exporter.service_monitor
    if monitored and monitor is not None:
        shaped = load(MONITOR_FILE)[0]
        [endpoint] = shaped["spec"]["endpoints"]
        own = endpoint["relabelings"]
        shape_monitor(shaped, monitor)
        # NB: a share's own pod stands in its labels, whatever the policy wants for the exporter's.
        endpoint |= {"honorLabels": True, "relabelings": [*own, *monitor.relabelings]}
        wanted.append(shaped)
    return wanted
