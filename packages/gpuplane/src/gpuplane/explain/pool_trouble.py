"""Why a pool buys nothing at all, whatever a pod asks: the pool is invalid or ends, or its class is not ready. Pure.

The autoscaler writes it into the pool's conditions, a minute after the class has changed at the latest. Without an
autoscaler nothing writes conditions, so the class itself is judged too, as far as the user may read classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuplane.api.karpenter import AWSNodeTemplate, EC2NodeClass, NodePool, Provisioner, declared_class, declared_pool
from gpuplane.api.nodeclaim import READY
from gpuplane.autoscaler.watch import why_refused
from kubekit.api.meta import Condition
from kubekit.errors import InvalidInput


class PoolTrouble(msgspec.Struct, frozen=True):
    """The rule that says no for the whole pool, and the change that takes it away. `read`: its nodes can be decided."""

    rule: str
    cure: str = ""
    read: bool = True


def pool_trouble(
    pool: Provisioner | NodePool, classes: Sequence[AWSNodeTemplate | EC2NodeClass] | None
) -> PoolTrouble | None:
    """Return why nothing is bought for a pool; None for a pool that can buy.

    Args:
        classes: of the cluster; None where the user may not read them.
    """
    kind, name = pool.RESOURCE.kind, pool.metadata.name
    if pool.metadata.deletion_timestamp:
        return PoolTrouble("the pool is being deleted", f"create the {kind} {name} again after its end")
    if refused := why_refused(pool):
        what, _, cure = refused.rpartition("; ")
        return PoolTrouble(what or refused, cure if what else f"kubectl edit {kind.lower()} {name}", read=False)
    declared = declared_pool(pool)
    if classes is not None and declared.class_name:
        own = next((one for one in classes if _is(one, declared.class_kind, declared.class_name)), None)
        if own is None:
            what = f"the {declared.class_kind} {declared.class_name}, which the pool names, does not exist"
            return PoolTrouble(what, f"create the {declared.class_kind} {declared.class_name}")
        if found := _of_class(own):
            return found
    return _of_conditions(pool.status.conditions, "the pool's condition", f"{kind.lower()} {name}")


def _is(found: AWSNodeTemplate | EC2NodeClass, kind: str, name: str) -> bool:
    return (found.RESOURCE.kind, found.metadata.name) == (kind, name)


def _of_class(own: AWSNodeTemplate | EC2NodeClass) -> PoolTrouble | None:
    kind, name = own.RESOURCE.kind, own.metadata.name
    if own.metadata.deletion_timestamp:
        return PoolTrouble(f"the {kind} {name} is being deleted", f"create the {kind} {name} again after its end")
    try:
        declared_class(own)
    except InvalidInput as error:
        return PoolTrouble(f"{error.where}: {error.what}", f"{error.cure}: kubectl edit {kind.lower()} {name}")
    return _of_conditions(own.status.conditions, f"the condition of the {kind} {name},", f"{kind.lower()} {name}")


def _of_conditions(conditions: Sequence[Condition], whose: str, where: str) -> PoolTrouble | None:
    """Return the cause of a condition Ready that is False: the part that failed says more than the sum."""
    false = [one for one in conditions if one.status == "False"]
    ready = next((one for one in false if one.type == READY), None)
    if ready is None:
        return None
    parts = [one for one in false if one is not ready and one.message]
    text = parts[0].message if parts else ready.message or ready.reason
    what, _, cure = text.rpartition("; ")  # as the autoscaler writes messages: the fact, then the cure
    rule = f"{whose} {READY} is False: {what or text}" if text else f"{whose} {READY} is False"
    return PoolTrouble(rule, cure if what else f"kubectl describe {where} names the cause")
