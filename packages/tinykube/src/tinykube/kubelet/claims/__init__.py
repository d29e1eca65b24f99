"""Resource claims on a node: drivers that register, prepared devices, their health."""

from tinykube.kubelet.claims.manager import ClaimManager

__all__ = ["ClaimManager"]
