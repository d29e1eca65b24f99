"""Finds out whether kube-scheduler asks gpuplane's extender, from the cluster's pods and events. Pure.

A kube-scheduler that was not configured for the extender binds shares to nodes without room: the kubelet then refuses
them. Two facts give it away. The extender reports a share that was bound without it as the event `ExtenderNotAsked`.
Where the scheduler runs in a pod, as in clusters of kubeadm, its arguments name no configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuplane import names
from gpuplane.cli.status_views import ExtenderBypass
from kubekit.api.core import Container, Event, Pod
from kubekit.api.quantity import whole

CURE: Final = "gpuplane run scheduler --print-config kube prints the configuration with which kube-scheduler asks"
_CONTROL_PLANE: Final = "kube-system"
_SCHEDULER: Final = "kube-scheduler"
_CONFIGURED: Final = ("--config", "--policy-config-file", "--policy-configmap")


def bound_without(pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods with shares that have a node and no assignment: only then an event may say why."""
    return [
        pod
        for pod in pods
        if pod.spec.node_name
        and not pod.status.ended
        and names.ASSIGNMENT_ANNOTATION not in pod.metadata.annotations
        and _asks_share(pod)
    ]


def not_asked(events: Iterable[Event], pods: Iterable[Pod]) -> tuple[str, ...]:
    """Return the pods, as namespace/name, that kube-scheduler bound without asking; empty if it has asked since.

    It has asked where a pod of the same scheduler that was created later carries an assignment.
    """
    reported = {event.involved_object.uid for event in events if event.reason == names.EXTENDER_NOT_ASKED}
    if not reported:
        return ()
    pods = list(pods)
    bypassing = [pod for pod in bound_without(pods) if pod.metadata.uid in reported]
    asked: dict[str, str] = {}
    for pod in pods:
        if pod.spec.node_name and names.ASSIGNMENT_ANNOTATION in pod.metadata.annotations:
            name = pod.spec.scheduler_name
            asked[name] = max(asked.get(name, ""), pod.metadata.creation_timestamp)
    return tuple(
        sorted(
            f"{pod.metadata.namespace}/{pod.metadata.name}"
            for pod in bypassing
            if asked.get(pod.spec.scheduler_name, "") <= pod.metadata.creation_timestamp
        )
    )


def unconfigured(pods: Iterable[Pod], *, installed: bool = False) -> tuple[str, ...]:
    """Return the pods of a kube-scheduler that starts without a configuration, though the extender is there.

    Empty where a second scheduler places the pods with GPUs, and where the scheduler runs in no pod that can be read.

    Args:
        installed: the extender is installed; otherwise its pods say so.
    """
    found = []
    there = set()
    for pod in pods:
        there.add(pod.metadata.labels.get("app.kubernetes.io/name", ""))
        if pod.metadata.namespace != _CONTROL_PLANE:
            continue
        if any(_is_unconfigured(container) for container in pod.spec.containers):
            found.append(f"{pod.metadata.namespace}/{pod.metadata.name}")
    installed = installed or names.EXTENDER_NAME in there
    return tuple(sorted(found)) if installed and names.SECOND_SCHEDULER_NAME not in there else ()


def bypass_of(events: Iterable[Event], pods: Iterable[Pod], *, installed: bool = False) -> ExtenderBypass | None:
    """Return what shows that kube-scheduler does not ask the extender; None without a sign. See `unconfigured`."""
    pods = list(pods)
    if schedulers := unconfigured(pods, installed=installed):
        return ExtenderBypass(schedulers=schedulers)
    shares = not_asked(events, pods)
    return ExtenderBypass(shares=shares) if shares else None


def reason(bypass: ExtenderBypass, shown: int) -> str:
    """Return the sign in words: `ml/tune-7 was bound without it, perhaps to a GPU without room`."""
    pods = bypass.schedulers or bypass.shares
    first = ", ".join(pods[:shown]) + (f" and {len(pods) - shown} more" if len(pods) > shown else "")
    one = len(pods) == 1
    if bypass.schedulers:
        return f"{first} {'starts' if one else 'start'} without --config"
    return f"{first} {'was' if one else 'were'} bound without it, perhaps to {'a GPU' if one else 'GPUs'} without room"


def _asks_share(pod: Pod) -> bool:
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    asked = (container.resources.limits.get(names.VCUDA_CORE) for container in containers)
    return any(amount is not None and whole(amount) % 100 for amount in asked)


def _is_unconfigured(container: Container) -> bool:
    words = (*container.command, *container.args)
    programs = [word for word in words if word.rpartition("/")[2] == _SCHEDULER]
    return bool(programs) and not any(word.partition("=")[0] in _CONFIGURED for word in words)
