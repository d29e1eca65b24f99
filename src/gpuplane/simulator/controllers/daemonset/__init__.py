"""The DaemonSet controller: one pod on every node that a DaemonSet selects."""

from gpuplane.simulator.controllers.daemonset.controller import DaemonSetController

__all__ = ["DaemonSetController"]
