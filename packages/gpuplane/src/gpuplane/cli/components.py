"""The components of gpuplane that `gpuplane run COMPONENT` can start, with their modules."""

from __future__ import annotations

from typing import Final, NamedTuple


class ComponentCommand(NamedTuple):
    """A component that `gpuplane run` can start.

    Args:
        module: imported only when the component runs.
        about: its line of help.
        flags: the flags that it reads.
        busy: it has many connections in one process. uvloop takes a third off their cost; a node's own processes start
            quicker without it.
    """

    module: str
    about: str
    flags: tuple[str, ...]
    function: str = "run"
    busy: bool = False


_NODE: Final = ("kubeconfig", "node-name", "host-root")
OPERANDS: Final[dict[str, ComponentCommand]] = {
    "discovery": ComponentCommand("gpuplane.discovery", "labels this node with its features", (*_NODE, "uninstall")),
    "gpu-feature-discovery": ComponentCommand(
        "gpuplane.discovery", "labels this node with what its GPUs are", (*_NODE, "config", "uninstall"), "run_gpu"
    ),
    "driver": ComponentCommand(
        "gpuplane.driver", "installs the driver on this node, or finds it", (*_NODE, "uninstall")
    ),
    "toolkit": ComponentCommand(
        "gpuplane.toolkit", "CDI specifications and runtime configuration of this node", (*_NODE, "uninstall")
    ),
    "validator": ComponentCommand("gpuplane.validator", "proves each stage on this node", _NODE),
    "device-plugin": ComponentCommand(
        "gpuplane.device_plugin",
        "offers this node's GPUs to its kubelet",
        (*_NODE, "kubelet-dir", "config", "port", "uninstall"),
    ),
    "mps-control-daemon": ComponentCommand(
        "gpuplane.mps", "runs MPS where this node's configuration shares GPUs by it", (*_NODE, "config")
    ),
    "exporter": ComponentCommand(
        "gpuplane.exporter",
        "serves DCGM metrics of this node's GPUs",
        (*_NODE, "kubelet-dir", "config", "port", "cdi-specification"),
    ),
}
OTHERS: Final[dict[str, ComponentCommand]] = {
    "discovery-master": ComponentCommand(
        "gpuplane.discovery.master", "evaluates NodeFeatureRules on what the nodes publish", ("kubeconfig",)
    ),
    "operator": ComponentCommand(
        "gpuplane.operator.operator",
        "turns a ClusterPolicy into prepared nodes",
        ("kubeconfig", "port", "lease-duration"),
        busy=True,
    ),
    "autoscaler": ComponentCommand(
        "gpuplane.autoscaler.component",
        "buys nodes for pods that wait, and ends them",
        ("kubeconfig", "port"),
        busy=True,
    ),
    "scheduler": ComponentCommand(
        "gpuplane.scheduler.component",
        "places pods with GPUs: as kube-scheduler's extender, and as a scheduler",
        (
            *("kubeconfig", "port", "tls-cert-file", "tls-private-key-file", "client-ca-file", "plain-http"),
            *("node-policy", "gpu-policy", "scheduler-name", "print-config", "url", "certificate-dir"),
            *("defragment", "moves-per-hour", "moves-at-once", "move-after", "move-cool-down"),
        ),
        busy=True,
    ),
    "dashboard": ComponentCommand(
        "gpuplane.dashboard.component",
        "serves the dashboard to the users of the cluster",
        ("kubeconfig", "port", "host", "history-dir"),
        busy=True,
    ),
    "gpu-manager": ComponentCommand(
        "gpuplane.device_plugin.gpu_manager_pod",
        "serves gpu-manager's metrics in gpu-manager's own pod",
        ("kubeconfig", "node-name", "port"),
    ),
    "admission": ComponentCommand(
        "gpuplane.admission.server",
        "refuses pods that can never run, understands those of old, gives pods to the pod scheduler",
        ("kubeconfig", "port", "scheduler-name"),
    ),
}
