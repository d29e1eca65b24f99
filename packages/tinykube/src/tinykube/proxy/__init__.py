"""Carries connections to the addresses and node ports of Services to the pods behind them, as kube-proxy does."""

from tinykube.proxy.proxy import ServiceProxy

__all__ = ["ServiceProxy"]
