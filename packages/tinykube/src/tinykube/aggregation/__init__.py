"""API servers of users behind the embedded one: their groups are served in its place, as kube-aggregator does it."""

from tinykube.aggregation.aggregator import Aggregator
from tinykube.aggregation.front_proxy import FrontProxy

__all__ = ["Aggregator", "FrontProxy"]
