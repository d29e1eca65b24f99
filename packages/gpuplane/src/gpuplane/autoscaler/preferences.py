"""The preferences of pods, and the order in which they are given up.

A preference counts as a requirement until it is given up: a pod is tried with all of its preferences, then with one
fewer, until a node is found. The order is: preferred pod affinity, preferred pod anti-affinity, preferred node affinity
(of each the heaviest first), topology spread with ScheduleAnyway, taints with PreferNoSchedule. Of preferred node
affinity only the heaviest term that is left counts. Pods of one kind share their steps. Pure.

The terms of required node affinity are alternatives here as they are for kube-scheduler, so none of them is given up;
Karpenter takes the first alone until it fails.

Source: the semantics of preferences of Karpenter 1.14.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from gpuplane.api.karpenter import DeclaredPool
from kubekit.api.core import Node
from kubekit.scheduling.filters import tolerates
from kubekit.scheduling.podinfo import Affinity, NodeTaint, PodInfo, PodTerm
from kubekit.scheduling.selectors import NodeTerm, Requirement

SOFT_EFFECT: Final = "PreferNoSchedule"
# Of each kind, the heaviest of a pod; the others never count. Each is a step in which the pod is tried on every node,
# and any tenant can write thousands.
MOST_OF_A_KIND: Final = 16
T = TypeVar("T")


class PreferenceRules(msgspec.Struct, frozen=True):
    """The weight of preferences: none without `respect`. `soft_taints` are the PreferNoSchedule taints of nodes."""

    respect: bool = True
    soft_taints: tuple[NodeTaint, ...] = ()


RESPECTED: Final = PreferenceRules()


class PreferenceStep(msgspec.Struct, frozen=True):
    """A pod after some preferences were given up, `given_up` as words.

    `wanted` has only those preferences that still count. With `avoids`, PreferNoSchedule taints count as NoSchedule.
    """

    wanted: PodInfo
    avoids: bool = False
    given_up: tuple[str, ...] = ()


def preference_rules(respect: bool, pools: Iterable[DeclaredPool], nodes: Iterable[Node] = ()) -> PreferenceRules:
    """Return the rules for pods that may go to nodes of these pools, or to these nodes."""
    taints = [taint for pool in pools for taint in pool.taints]
    taints += [taint for node in nodes for taint in node.spec.taints]
    soft = {NodeTaint(one.key, one.value, one.effect): None for one in taints if one.effect == SOFT_EFFECT}
    return PreferenceRules(respect, tuple(soft))


def has_preferences(info: PodInfo) -> bool:
    """Return whether a pod prefers some nodes to others, taints aside."""
    affinity = info.affinity
    if affinity.node_preferred or affinity.pod_preferred or affinity.anti_preferred:
        return True
    return any(not constraint.hard for constraint in info.spread)


def preference_steps(info: PodInfo, rules: PreferenceRules) -> tuple[PreferenceStep, ...]:
    """Return the pod with all of its preferences, then with one fewer each, at last with none; one step for a pod
    without preferences."""
    avoids = rules.respect and any(not tolerates(info.tolerations, taint) for taint in rules.soft_taints)
    if not has_preferences(info):
        steps = [PreferenceStep(info, avoids)]
    elif not rules.respect:
        return (PreferenceStep(_with(info, (), (), (), keeps_spread=0)),)
    else:
        steps = list(_relaxing(info, avoids))
    if avoids:
        steps.append(
            PreferenceStep(steps[-1].wanted, False, (*steps[-1].given_up, "a node without PreferNoSchedule taints"))
        )
    return tuple(steps)


def _relaxing(info: PodInfo, avoids: bool) -> Iterator[PreferenceStep]:
    affinity = info.affinity
    near, apart = _heaviest_first(affinity.pod_preferred), _heaviest_first(affinity.anti_preferred)
    # An empty term admits every node, and prefers nothing.
    nodes = _heaviest_first(one for one in affinity.node_preferred if one[1].expressions or one[1].fields)
    soft = [one for one in info.spread if not one.hard][-MOST_OF_A_KIND:]
    given_up: tuple[str, ...] = ()
    yield PreferenceStep(_with(info, near, apart, nodes, len(soft)), avoids)
    while near or apart or nodes or soft:
        if near:
            words = f"pod affinity: {_pods_in_words(near.pop(0)[1])}"
        elif apart:
            words = f"pod anti-affinity: {_pods_in_words(apart.pop(0)[1])}"
        elif nodes:
            words = f"node affinity: {_node_in_words(nodes.pop(0)[1])}"
        else:
            words = f"topology spread over {soft.pop(0).topology_key}"
        given_up = (*given_up, words)
        yield PreferenceStep(_with(info, near, apart, nodes, len(soft)), avoids, given_up)


def _heaviest_first(terms: Iterable[tuple[int, T]]) -> list[tuple[int, T]]:
    return sorted(terms, key=lambda one: -one[0])[:MOST_OF_A_KIND]


def _with(
    info: PodInfo,
    near: Iterable[tuple[int, PodTerm]],
    apart: Iterable[tuple[int, PodTerm]],
    nodes: Iterable[tuple[int, NodeTerm]],
    keeps_spread: int,
) -> PodInfo:
    """Return the pod with these preferences only, and the last `keeps_spread` of its soft spread constraints."""
    dropped = sum(not one.hard for one in info.spread) - keeps_spread
    spread = []
    for constraint in info.spread:
        if not constraint.hard and dropped:
            dropped -= 1
        else:
            spread.append(constraint)
    affinity = msgspec.structs.replace(
        info.affinity, pod_preferred=tuple(near), anti_preferred=tuple(apart), node_preferred=tuple(nodes)
    )
    return msgspec.structs.replace(info, affinity=affinity, spread=tuple(spread))


def prefers_node(affinity: Affinity, name: str, labels: dict[str, str]) -> bool:
    """Return whether a node has what the heaviest preferred term asks for; True without such a term."""
    return not affinity.node_preferred or affinity.node_preferred[0][1].matches(name, labels)


def preferred_values(info: PodInfo) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield label and values of each preference for some values of a node's label."""
    for _, term in info.affinity.node_preferred:
        for part in term.expressions:
            if part.operator == "In":
                yield part.key, part.values


def _pods_in_words(term: PodTerm) -> str:
    selector = term.selector.requirements if term.selector is not None else ()
    return f"{_in_words(selector) or 'all pods'} by {term.topology_key}"


def _node_in_words(term: NodeTerm) -> str:
    return _in_words((*term.expressions, *term.fields))


def _in_words(parts: Iterable[Requirement]) -> str:
    return ", ".join(" ".join((part.key, part.operator, *part.values)) for part in parts)
