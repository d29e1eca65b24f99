"""Carries connections to the addresses and node ports of Services to the pods behind them, as kube-proxy does."""

from tinykube.proxy.clients import ClientNodes
from tinykube.proxy.proxy import ServiceProxy

__all__ = ["ClientNodes", "ServiceProxy"]
