"""The PodGroups of scheduler-plugins and of Kubernetes, and the gang that a pod's declaration becomes with them.

Either kind may be missing on the API server, or come later: such a gang waits, and its pods' condition has the reason.
No PodGroup is written: the status of scheduler-plugins' is written by the controller of that project, from the pods.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from gpuplane import names
from gpuplane.api.pod_groups import PluginPodGroup, WorkloadPodGroup
from gpuplane.scheduler.gangs.gang import (
    GPU,
    LABELS,
    LONGEST_TIMEOUT,
    MOST_PODS,
    NODE,
    TIMEOUT_SECONDS,
    DeclaredGang,
    Gang,
    GangSource,
    annotated_gang,
)
from gpuplane.scheduler.gangs.members import GangKey
from kubekit.errors import InvalidInput
from kubekit.kube import Client, Clock, Informer
from kubekit.scheduling.podinfo import amounts

_CURES: Final = {
    GangSource.PLUGIN_GROUP: "install the CustomResourceDefinition of scheduler-plugins",
    GangSource.WORKLOAD_GROUP: "start kube-apiserver with --feature-gates=GenericWorkload=true and "
    "--runtime-config=scheduling.k8s.io/v1alpha2=true",
}
_LEVEL_NAMES: Final = (GPU, NODE, *LABELS)
PodGroup = PluginPodGroup | WorkloadPodGroup
GROUP_KINDS: Final[dict[GangSource, type[PluginPodGroup] | type[WorkloadPodGroup]]] = {
    GangSource.PLUGIN_GROUP: PluginPodGroup,
    GangSource.WORKLOAD_GROUP: WorkloadPodGroup,
}


class GangLookup(Protocol):
    """Source of the gangs that declarations become."""

    def gang(self, namespace: str, declared: DeclaredGang) -> Gang | str:
        """Return the gang that a pod of the namespace declares, or why there is none yet."""
        ...


class GangGroups:
    """Follows both kinds of PodGroups.

    Args:
        changed: called when the group of a gang came, changed or went.
        served: called when the API server serves a kind that it did not serve before, or serves it no more.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        changed: Callable[[GangKey], None],
        served: Callable[[GangSource], None],
    ) -> None:
        self._changed = changed
        self.informers: dict[GangSource, Informer[Any]] = {
            source: Informer(client, kind, clock=clock, optional=True) for source, kind in GROUP_KINDS.items()
        }
        for source, informer in self.informers.items():
            informer.add_handler(partial(self._group_changed, source))
            informer.on_served.append(partial(served, source))

    def gang(self, namespace: str, declared: DeclaredGang) -> Gang | str:
        """Return the gang that a pod of the namespace declares, or why there is none yet."""
        return gang_with(namespace, declared, self._is_served, self._find)

    def _is_served(self, source: GangSource) -> bool:
        return self.informers[source].served

    def _find(self, source: GangSource, key: str) -> PodGroup | None:
        found: PodGroup | None = self.informers[source].get(key)
        return found

    def timeout(self, namespace: str, declared: DeclaredGang) -> float:
        """Return the seconds for which a part of the gang may be bound without the rest."""
        gang = self.gang(namespace, declared)
        return float(gang.timeout if isinstance(gang, Gang) else declared.timeout or TIMEOUT_SECONDS)

    def _group_changed(self, source: GangSource, old: Any, new: Any) -> None:
        meta = (new or old).metadata
        self._changed((meta.namespace, source, meta.name))


def gang_with(
    namespace: str,
    declared: DeclaredGang,
    is_served: Callable[[GangSource], bool],
    find: Callable[[GangSource, str], PodGroup | None],
) -> Gang | str:
    """Return the gang that a pod of the namespace declares, or why there is none yet.

    Args:
        is_served: whether the API server has the kind of PodGroups.
        find: returns the PodGroup with a namespace/name.
    """
    if declared.source is GangSource.ANNOTATIONS:
        return annotated_gang(declared)
    kind, key = f"podgroups.{declared.source}", f"{namespace}/{declared.name}"
    if not is_served(declared.source):
        problem = f"the API server does not serve {kind}; cure: {_CURES[declared.source]}"
        return f"gang {declared.name}: {problem}"
    try:
        group = find(declared.source, key)
        if isinstance(group, PluginPodGroup):
            return plugin_gang(declared, group)
        if group is not None:
            return workload_gang(declared, group)
    except InvalidInput as error:
        return f"gang {declared.name}: {error}"
    return f"gang {declared.name}: its PodGroup does not exist yet ({kind} {key})"


def plugin_gang(declared: DeclaredGang, group: PluginPodGroup) -> Gang:
    """Return the gang of a PodGroup of scheduler-plugins. Raises InvalidInput for a group that cannot be scheduled."""
    spec = group.spec
    try:
        minimum = tuple(sorted(amounts(spec.min_resources).items()))
    except InvalidInput as error:
        raise InvalidInput(f"minResources of its PodGroup: {error.what}", cure="correct the PodGroup") from error
    seconds = spec.schedule_timeout_seconds
    timeout = TIMEOUT_SECONDS if seconds is None else max(1, min(seconds, LONGEST_TIMEOUT))
    return Gang(
        declared.name,
        _size(spec.min_member, "minMember"),
        declared.required,
        declared.preferred,
        declared.timeout or timeout,
        minimum,
    )


def workload_gang(declared: DeclaredGang, group: WorkloadPodGroup) -> Gang:
    """Return the gang of a PodGroup of Kubernetes. Raises InvalidInput for a group that cannot be scheduled."""
    spec = group.spec
    if spec.resource_claims:
        raise InvalidInput("its PodGroup has resource claims", cure="give its pods to default-scheduler")
    policy, constraints = spec.scheduling_policy.gang, spec.scheduling_constraints
    required = declared.required
    for constraint in constraints.topology if constraints is not None else ():
        if constraint.key in _LEVEL_NAMES:
            raise InvalidInput(
                f"the label {constraint.key!r} of its PodGroup's topology has the name of a level of gpuplane",
                cure=f"another label, or the annotation {names.GANG_REQUIRED_TOPOLOGY_ANNOTATION}",
            )
        if required and required != constraint.key:
            raise InvalidInput(
                f"its pods require the topology {required}, and its PodGroup {constraint.key}", cure="leave one of them"
            )
        required = constraint.key
    return Gang(
        declared.name,
        _size(policy.min_count, "minCount") if policy is not None else 1,
        required,
        declared.preferred,
        declared.timeout or TIMEOUT_SECONDS,
    )


def _size(count: int, field: str) -> int:
    if count > MOST_PODS:
        raise InvalidInput(f"{field} of its PodGroup is {count}", cure=f"at most {MOST_PODS}")
    return max(1, count)
