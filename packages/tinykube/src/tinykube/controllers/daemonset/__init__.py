"""The DaemonSet controller: one pod on every node that a DaemonSet selects."""

from tinykube.controllers.daemonset.controller import DaemonSetController

__all__ = ["DaemonSetController"]
