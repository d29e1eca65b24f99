"""The reasons for which a pod gets no node: of each pool the first rule that excludes it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpuplane.autoscaler.asks import PodAsk, pod_conditions
from gpuplane.autoscaler.claims import Compatibility
from gpuplane.autoscaler.existing import hold_pod
from gpuplane.autoscaler.options import NodeOption, PoolLimits, PoolOptions
from gpuplane.autoscaler.requirements import first_conflict, lacking_values
from gpuplane.autoscaler.volume_limits import too_many
from gpuplane.autoscaler.volumes import in_words
from kubekit.scheduling import filters


def why_not(
    ask: PodAsk, pools: Sequence[PoolOptions], limits: PoolLimits, fits: Compatibility | None = None
) -> tuple[str, ...]:
    """Return why a pod gets no node: a line for each pool, with the first rule that excludes the pod."""
    if ask.trouble:
        return (ask.trouble,)
    if not pools:
        return ("there is no node pool",)
    return tuple(f"{found.pool.name}: {_why_not(ask, found, limits, fits or Compatibility())}" for found in pools)


def why_no_types(found: PoolOptions) -> str:
    """Return why no instance type is left for any pod of a pool, as words; empty if some are."""
    if not found.options:
        return found.trouble
    if not found.has_min_values or found.pool.relaxes_min_values:
        return ""
    return lacking_values(found.conditions, [one.facts.labels for one in found.options])


def _why_not(ask: PodAsk, found: PoolOptions, limits: PoolLimits, fits: Compatibility) -> str:
    if found.trouble:
        return found.trouble
    taint = filters.untolerated(found.options[0].facts.taints, ask.info.tolerations)
    if taint is not None:
        return f"the pod does not tolerate the taint {taint.key}{f'={taint.value}' * bool(taint.value)}:{taint.effect}"
    wanted = pod_conditions(ask.info)
    if conflict := first_conflict(found.conditions, wanted):
        return conflict
    admitted = fits.admitted(ask, found)
    if not admitted:
        for key, condition in sorted(wanted.items()):
            if not any(condition.admits(one.facts.labels.get(key)) for one in found.options):
                return f"{key}: the pod wants {condition}, and no node of the pool would have it"
        for terms in ask.volumes:
            if not any(filters.any_term_matches(terms, "", one.facts.labels) for one in found.options):
                return f"a volume of the pod wants {in_words(terms)}, and no node of the pool would have it"
        if ask.volumes and not any(_is_where(ask, one) for one in found.options):
            return "no node of the pool would have what the volumes of the pod want together"
        return "no node of the pool would satisfy the pod's node affinity"
    if (nearest := fits.lacking(ask, found)) is not None:
        refusal = hold_pod(nearest, {}, 0, nearest.gpus, ask)
        return f"no type holds the pod; the nearest is {nearest.machine.name}: {refusal}"
    if why := too_many(ask.attached, found.volume_limits):
        return why
    refusals = {one.machine.name: hold_pod(one, {}, 0, one.gpus, ask) for one in admitted}
    if roomy := [one for one in admitted if not isinstance(refusals[one.machine.name], str)]:
        if all(limits.lacking(one) for one in roomy):
            return limits.lacking(roomy[0])
        if found.has_min_values:
            return "minValues would not be left after the types that cannot hold the pod"
        return "no zone satisfies its pod affinity and topology spread together with the pods placed before"
    largest = max(admitted, key=lambda one: (_held(one, ask), one.price))
    return f"no type holds the pod; the nearest is {largest.machine.name}: {refusals[largest.machine.name]}"


def _is_where(ask: PodAsk, option: NodeOption) -> bool:
    return all(filters.any_term_matches(terms, "", option.facts.labels) for terms in ask.volumes)


def _held(option: NodeOption, ask: PodAsk) -> int:
    """Return how many of the pod's resources the option has enough of."""
    asked = ask.info.requests.items()
    return sum(option.free.get(name, 0) >= amount for name, amount in asked)
