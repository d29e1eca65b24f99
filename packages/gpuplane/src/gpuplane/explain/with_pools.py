"""Adds to explanations of pods that no node takes what the autoscaler has done, and what the node pools would buy.

The command and the operator's process both come here, so both give the same answer in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from gpuplane import names
from gpuplane.explain.answer import Explanation, PoolAnswer
from gpuplane.explain.reading import serves
from gpuplane.explain.world import Object
from kubekit.kube import Client

if TYPE_CHECKING:  # most clusters buy no nodes, and the import takes as long as a small explanation
    from gpuplane.explain.buying import BuyingFacts
    from gpuplane.explain.pools import PoolFacts

Hide = Callable[["PoolFacts", "BuyingFacts"], tuple["PoolFacts", "BuyingFacts"]]
"""Removes the facts that the user who asks may not read."""


async def with_pools(
    client: Client,
    pods: Sequence[Object],
    found: Sequence[Explanation],
    nodes: Sequence[Object],
    hide: Hide | None = None,
) -> list[Explanation]:
    """Return the explanations, with the parts about pools where there are pools and the client may read them.

    Args:
        found: the explanation of each of `pods`.
        nodes: the cluster's.
    """
    pairs = [(pod, one) for pod, one in zip(pods, found, strict=True) if _may_be_bought_for(pod, one)]
    if not pairs or not await serves(client, names.KARPENTER_GROUP):
        return list(found)
    from gpuplane.explain.pool_reading import read_buying_facts, read_pool_facts

    facts = await read_pool_facts(client, nodes, [pod for pod, _ in pairs])
    if facts is None:
        return list(found)
    spaces = {pod["metadata"]["namespace"] for pod, _ in pairs}
    alone = pairs[0][0]["metadata"]["name"] if len(pairs) == 1 else ""
    traces = await read_buying_facts(client, spaces.pop() if len(spaces) == 1 else "", alone)
    if hide is not None:
        facts, traces = hide(facts, traces)
    more = _answered(pairs, facts, traces)
    return [more.get(one.pod, one) for one in found]


def _answered(
    pairs: Sequence[tuple[Object, Explanation]], facts: PoolFacts, traces: BuyingFacts
) -> dict[str, Explanation]:
    """Return the explanations with the parts about pools, by pod."""
    from gpuplane.autoscaler.providers.aws_types import PRICED
    from gpuplane.explain.buying import buying_of
    from gpuplane.explain.pools import pool_answers
    from gpuplane.explain.volume_reading import claims_of_pod

    priced = PRICED
    if facts.overlays:
        names = ", ".join(sorted(one.metadata.name for one in facts.overlays))
        priced += f"; changed by NodeOverlays: {names}"
    answers: dict[bytes, tuple[PoolAnswer, ...]] = {}  # pods of one workload have the same
    more: dict[str, Explanation] = {}
    for pod, one in pairs:
        meta = pod["metadata"]
        claims = claims_of_pod(pod)  # those of ephemeral volumes are called as the pod
        labels, annotations = meta.get("labels"), meta.get("annotations")
        alike = msgspec.json.encode((pod["spec"], labels, annotations, meta["namespace"], claims))
        if alike not in answers:
            answers[alike] = pool_answers(pod, facts)
        pools = answers[alike]
        ever = one.can_ever_run or any(answer.type for answer in pools)
        buying = buying_of(pod, traces)
        more[one.pod] = msgspec.structs.replace(
            one,
            pools=pools,
            buying=buying,
            priced=priced,
            can_ever_run=ever,
            unread_volumes=facts.unread_volumes if claims else (),
        )
    return more


def _may_be_bought_for(pod: Object, found: Explanation) -> bool:
    waits = found.state == "waiting" and not found.findings and not found.runs_on
    return waits and not pod["spec"].get("schedulingGates")
