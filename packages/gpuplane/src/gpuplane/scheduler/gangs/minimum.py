"""The resources that have to be free for a gang before it starts (`minResources` of scheduler-plugins). Pure.

It says more than the requests of the gang's first pods: a launcher of one pod may name what its later workers need.
"""

from __future__ import annotations

from collections.abc import Iterable

from kubekit.scheduling.cache import SchedulerCache


def lacking(minimum: Iterable[tuple[str, int]], cache: SchedulerCache) -> str:
    """Return which resource all nodes together have too little of, in one line; empty where there is enough.

    Args:
        minimum: amounts by name of the resource, in the units of the cache.
    """
    for name, amount in minimum:
        free = sum(
            max(0, node.facts.allocatable.get(name, 0) - node.requested.get(name, 0))
            for node in cache.candidates()
            if node.facts is not None and not node.facts.unschedulable
        )
        if free < amount:
            unit = "m" if name == "cpu" else ""
            return f"its PodGroup requires {amount}{unit} of {name} in all (minResources), and {free}{unit} are free"
    return ""
