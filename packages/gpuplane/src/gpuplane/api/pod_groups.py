"""Groups of pods that start together, as other projects declare them: scheduler-plugins and Kubernetes itself.

gpuplane serves neither kind: a cluster may have either, both, or neither. Only the fields that scheduling reads are
here.

Source: `scheduling.x-k8s.io/v1alpha1` of scheduler-plugins; `scheduling.k8s.io/v1alpha2` of Kubernetes 1.36, served
with the feature gate GenericWorkload.
"""

from __future__ import annotations

from typing import Any, ClassVar

from kubekit.api.meta import ObjectMeta, Resource, Struct


class PluginGroupSpec(Struct):
    """`min_member` pods start together; `min_resources` is what has to be free for the group before it starts."""

    min_member: int = 1
    min_resources: dict[str, Any] = {}
    schedule_timeout_seconds: int | None = None


class PluginPodGroup(Struct):
    """A PodGroup of scheduler-plugins. Its status is written by the controller of that project, from the pods."""

    RESOURCE: ClassVar[Resource] = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", True)

    metadata: ObjectMeta = ObjectMeta()
    spec: PluginGroupSpec = PluginGroupSpec()


class WorkloadGangPolicy(Struct):
    min_count: int = 1


class WorkloadSchedulingPolicy(Struct):
    """`gang` is None for a group whose pods are scheduled one by one."""

    gang: WorkloadGangPolicy | None = None


class WorkloadTopologyConstraint(Struct):
    """All pods of the group run on nodes with the same value of the label `key`."""

    key: str


class WorkloadSchedulingConstraints(Struct):
    topology: tuple[WorkloadTopologyConstraint, ...] = ()


class WorkloadGroupSpec(Struct):
    scheduling_policy: WorkloadSchedulingPolicy = WorkloadSchedulingPolicy()
    scheduling_constraints: WorkloadSchedulingConstraints | None = None
    resource_claims: tuple[dict[str, Any], ...] = ()


class WorkloadPodGroup(Struct):
    """A PodGroup of Kubernetes, made by a controller from a template of a Workload, or by hand."""

    RESOURCE: ClassVar[Resource] = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup", True)

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadGroupSpec = WorkloadGroupSpec()
