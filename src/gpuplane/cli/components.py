"""What `gpuplane run COMPONENT` can start: the one list of them, with where each lives."""

from __future__ import annotations

from typing import Final, NamedTuple


class Component(NamedTuple):
    """`module:function` is imported only when the component runs; `about` is its line of help."""

    module: str
    about: str
    function: str = "run"


OPERANDS: Final[dict[str, Component]] = {
    "discovery": Component("gpuplane.discovery", "labels this node with its features"),
    "gpu-feature-discovery": Component("gpuplane.discovery", "labels this node with what its GPUs are", "run_gpu"),
    "driver": Component("gpuplane.driver", "installs the driver on this node, or finds it"),
    "toolkit": Component("gpuplane.toolkit", "CDI specifications and runtime configuration of this node"),
    "validator": Component("gpuplane.validator", "proves each stage on this node"),
    "device-plugin": Component("gpuplane.device_plugin", "offers this node's GPUs to its kubelet"),
    "exporter": Component("gpuplane.exporter", "serves DCGM metrics of this node's GPUs"),
}
OTHERS: Final[dict[str, Component]] = {
    "operator": Component("gpuplane.operator.operator", "turns a ClusterPolicy into prepared nodes"),
    "cluster": Component("gpuplane.simulator.controlplane", "embedded API server, controllers and scheduler"),
    "kubelet": Component("gpuplane.simulator.kubelet", "one node of the embedded cluster"),
    "light-nodes": Component("gpuplane.simulator.nodes.light", "many simulated nodes without processes"),
    "cluster-supervisor": Component("gpuplane.simulator.cluster", "keeps the embedded cluster's processes alive"),
}
