"""`gpuplane demo`: the whole story on an embedded cluster, told while it happens."""

from gpulab.demo.command import demo

__all__ = ["demo"]
