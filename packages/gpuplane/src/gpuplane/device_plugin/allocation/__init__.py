"""The answers to a kubelet: which units a container gets (GetPreferredAllocation), and how it gets them (Allocate)."""

from gpuplane.device_plugin.allocation.device_nodes import read_node_files
from gpuplane.device_plugin.allocation.response import NodeFiles, allocation
from gpuplane.device_plugin.allocation.units import UnitChooser

__all__ = ["NodeFiles", "UnitChooser", "allocation", "read_node_files"]
