"""The controllers of the embedded cluster, as far as operands and kubectl need kube-controller-manager."""

from tinykube.controllers.manager import Controllers

__all__ = ["Controllers"]
