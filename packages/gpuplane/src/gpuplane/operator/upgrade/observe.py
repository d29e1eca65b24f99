"""Reads the facts of upgrades from the cluster's objects. Pure; values that need a request are arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from gpuplane import names
from gpuplane.api.gpunode import STAGES, GPUNode, Stage, StageName, StageState
from gpuplane.api.requests import uses_gpus
from gpuplane.api.upgrade import unix_time, upgrade_record, upgrade_state
from gpuplane.operator.observed import COMPONENT_LABEL, DRIVER, answers, operand_pod
from gpuplane.operator.policy import PART_OF, PART_OF_LABEL, has_gpus, has_opted_out
from gpuplane.operator.stages import OPERANDS, users
from gpuplane.operator.upgrade.facts import DriverPod, PodFact, UpgradeFacts
from gpuplane.operator.upgrade.templates import NAME_LABEL, digest_of, is_kept, kept_name, template_digest_of
from kubekit.api.core import DaemonSet, Node, Pod

VALIDATED = (StageName.DRIVER, StageName.TOOLKIT, StageName.CUDA, StageName.PLUGIN)
_FROM_THE_DRIVER = STAGES[STAGES.index(StageName.DRIVER) :]
_GATE = names.DEPLOY_PREFIX + DRIVER
_FOLLOWERS = frozenset(
    operand.gate for operand in users(next(operand for operand in OPERANDS if operand.gate == DRIVER))
)
_MIRROR = "kubernetes.io/config.mirror"  # of a static pod, which cannot be evicted


class Drivers:
    """The driver DaemonSets: those in force, and those kept to go back to.

    `own_image` is the operator's own: a driver from it stays loaded when its pod is replaced.
    """

    def __init__(self, daemonsets: Iterable[DaemonSet], own_image: str) -> None:
        found = [d for d in daemonsets if d.metadata.labels.get(COMPONENT_LABEL) == DRIVER and _is_ours(d)]
        self.kept = [daemonset for daemonset in found if is_kept(daemonset)]
        self.in_force = [daemonset for daemonset in found if not is_kept(daemonset) and _selects_open_gates(daemonset)]
        self._by_uid = {daemonset.metadata.uid: daemonset for daemonset in self.in_force}
        self._own_image = own_image

    def of(self, node: Node, pods: Iterable[Pod]) -> DaemonSet | None:
        """The DaemonSet in force for a node: that of its driver's pod, or the one that would make one."""
        for pod in pods:
            for owner in pod.metadata.owner_references:
                if owner.uid in self._by_uid:
                    return self._by_uid[owner.uid]
        return next((d for d in self.in_force if _selects(d, node)), None)

    def keeps(self, daemonset: DaemonSet, digest: str) -> bool:
        """Return whether nodes of `daemonset` can go back to the driver with `digest`."""
        wanted = kept_name(daemonset.metadata.name, digest)
        return any(kept.metadata.name == wanted for kept in self.kept)

    def in_place(self, daemonset: DaemonSet) -> bool:
        """Return whether its pods may be replaced under running GPU pods, for they leave the driver loaded."""
        return all(container.image == self._own_image for container in daemonset.spec.template.spec.containers)

    def outdated(self, pods: Iterable[Pod]) -> bool:
        """Return whether some driver's pod was made from another template than is in force now."""
        current = {template_digest_of(daemonset) for daemonset in (*self.in_force, *self.kept)}
        return any(template_digest_of(pod) not in current for pod in pods)


def is_driver_pod(pod: Pod) -> bool:
    """Return whether a pod has a driver running, of a DaemonSet in force or a kept one."""
    labels = pod.metadata.labels
    return (
        pod.metadata.namespace == names.OPERATOR_NAMESPACE
        and labels.get(COMPONENT_LABEL) == DRIVER
        and labels.get(PART_OF_LABEL) == PART_OF
        and not labels.get(NAME_LABEL, "").endswith("-removal")
    )


def node_facts(
    node: Node,
    gpunode: GPUNode | None,
    pods: Collection[Pod],
    drivers: Drivers,
    *,
    managed: bool,
    troubled: Callable[[str, str, str], float],
    jobs: Collection[str] = (),
    drained: Collection[str] | None = None,
    refused: Mapping[str, str] = {},
    scratch: Collection[str] = (),
) -> UpgradeFacts:
    """The facts about one node.

    Args:
        pods: all on the node.
        managed: a policy is in force and wants a driver.
        troubled: gets the node's name, the uid of its driver's pod and what is wrong ("" for nothing), says for how
            many seconds it has been so.
        jobs, drained: names of pods that the policy's selectors mean; None for all.
        refused: why an eviction was refused, by uid.
        scratch: uids of pods that have an emptyDir.
    """
    name, meta = node.metadata.name, node.metadata
    driver_pods = sorted(filter(is_driver_pod, pods), key=lambda pod: pod.metadata.deletion_timestamp is not None)
    wanted = drivers.of(node, driver_pods)
    record = upgrade_record(node)
    labels = meta.labels
    stages = gpunode.status.stages if gpunode is not None else {}
    held = {stage for stage in VALIDATED if stage.value in stages and stages[stage.value].state.holds}
    trouble = _trouble(stages)
    skip = labels.get(names.UPGRADE_SKIP_LABEL) == "true"
    return UpgradeFacts(
        name,
        managed=managed and has_gpus(labels) and not has_opted_out(labels),
        ready=answers(node),
        cordoned=node.spec.unschedulable,
        state=upgrade_state(node),
        record=record,
        since=unix_time(record.since),
        initial=names.UPGRADE_INITIAL_ANNOTATION in meta.annotations,
        skip=skip or meta.annotations.get(names.UPGRADE_ENABLED_ANNOTATION) == "false",
        requested=meta.annotations.get(names.UPGRADE_REQUESTED_ANNOTATION) == "true",
        pin=labels.get(names.ROLLBACK_LABEL, ""),
        wanted=digest_of(wanted.spec.template.spec) if wanted is not None else "",
        wanted_template=template_digest_of(wanted) if wanted is not None else "",
        driver=_driver_pod(driver_pods[0], wanted, drivers) if driver_pods else None,
        kept=wanted is not None and drivers.keeps(wanted, record.before),
        followers=tuple(sorted(p.metadata.name for p in pods if _is_ours(p) and _component(p) in _FOLLOWERS)),
        expected=labels.get(_GATE) == "true",
        present=labels.get(_GATE) == "pre-installed" or _is_present(stages),
        loaded=StageName.DRIVER in held,
        settled=not any(
            stage.value in stages and stages[stage.value].state is not StageState.SKIPPED for stage in _FROM_THE_DRIVER
        ),
        validated=len(held) == len(VALIDATED),
        trouble=trouble,
        troubled=troubled(name, driver_pods[0].metadata.uid if driver_pods else "", trouble),
        jobs=tuple(sorted(pod_name for pod in pods if (pod_name := _name(pod)) in jobs)) if jobs else (),
        pods=tuple(
            pod_fact(pod, drained=drained, refused=refused.get(pod.metadata.uid, ""), scratch=scratch)
            for pod in pods
            if _stands_in_the_way(pod)
        ),
    )


def pod_fact(pod: Pod, *, drained: Collection[str] | None, refused: str, scratch: Collection[str]) -> PodFact:
    """A pod as evicting it sees it; `drained` are the names that the drain's selector means, None for all."""
    owner = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    name = _name(pod)
    skipped = pod.metadata.labels.get(names.UPGRADE_DRAIN_SKIP_LABEL) == "true"
    return PodFact(
        name,
        pod.metadata.uid,
        gpu=uses_gpus(pod),
        daemon=owner is not None and owner.kind == "DaemonSet",
        managed=owner is not None,
        scratch=pod.metadata.uid in scratch,
        ending=pod.metadata.deletion_timestamp is not None,
        drains=(drained is None or name in drained) and not skipped,
        refused=refused,
    )


def _driver_pod(pod: Pod, wanted: DaemonSet | None, drivers: Drivers) -> DriverPod:
    return DriverPod(
        pod.metadata.name,
        pod.metadata.uid,
        digest_of(pod.spec),
        template=template_digest_of(pod),
        ending=pod.metadata.deletion_timestamp is not None,
        ready=operand_pod(pod).ready,
        in_place=wanted is not None and drivers.in_place(wanted),
    )


def _is_present(stages: Mapping[str, Stage]) -> bool:
    stage = stages.get(StageName.DRIVER.value)
    return stage is not None and stage.state is StageState.PRESENT


def _trouble(stages: Mapping[str, Stage]) -> str:
    """Return the error of the first stage that does not hold, from the driver to the validator's last."""
    for name in VALIDATED:
        stage = stages.get(name.value)
        if stage is None:
            return ""
        if not stage.state.holds:
            said = stage.message or stage.reason
            return f"{name.value}: {said}" if said else ""
    return ""


def _stands_in_the_way(pod: Pod) -> bool:
    """Return whether upgrades may have to evict a pod: not what has ended, what a kubelet has from a file, or what is
    ours.
    """
    if pod.status.ended or _MIRROR in pod.metadata.annotations:
        return False
    return not (_is_ours(pod) and pod.metadata.namespace == names.OPERATOR_NAMESPACE)


def _is_ours(obj: Pod | DaemonSet) -> bool:
    return obj.metadata.labels.get(PART_OF_LABEL) == PART_OF


def _component(pod: Pod) -> str:
    return pod.metadata.labels.get(COMPONENT_LABEL, "")


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _selects_open_gates(daemonset: DaemonSet) -> bool:
    return daemonset.spec.template.spec.node_selector.get(_GATE) != "removing"


def _selects(daemonset: DaemonSet, node: Node) -> bool:
    """Return whether a DaemonSet's node selector means a node, its gate aside."""
    selector = daemonset.spec.template.spec.node_selector
    return all(node.metadata.labels.get(key) == value for key, value in selector.items() if key != _GATE)
