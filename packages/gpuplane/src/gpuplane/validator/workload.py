"""The pod that proves the whole way: scheduler, kubelet, device plugin, runtime, driver, GPU.

It goes through the scheduler, which knows whether a GPU is free and accounts for it, and asks for this node by name.
It runs the same vectorAdd in the same image as the validator. It stays when it has completed: people look for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from pathlib import Path
from typing import Any, ClassVar, Final

from gpuplane import names
from gpuplane.api.requests import GpuOffer
from gpuplane.operand import OperandContext
from gpuplane.validator.checks import ValidationProblem
from gpuplane.validator.process import PROGRAM
from kubekit.api.core import Pod
from kubekit.api.meta import ObjectMeta, Resource, Struct
from kubekit.errors import KubekitError
from kubekit.kube import AlreadyExists, ApiError, Informer, NotFound

NAME: Final = names.VALIDATION_POD
MANIFEST: Final = Path(__file__).with_name("validation-pod.yaml")  # importlib.resources would take 2 MB of memory
PATIENCE_SECONDS: Final = 180.0
GRACE_SECONDS: Final = 10.0
LOG_LINES: Final = 5
# The kubelet turned the pod away: right after a start of its own it does not know the device plugin yet, and may still
# count devices of pods that are gone. It says nothing of the GPU.
REJECTED: Final = ("UnexpectedAdmissionError", f"OutOf{names.NVIDIA_PREFIX}", f"OutOf{names.VCUDA_CORE}")
REJECTED_PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds; the last one for all that follow
# Waiting reasons after which a container does not start without a repair.
HOPELESS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError"}
)


class NoRoom(KubekitError):
    """The scheduler finds no free GPU for the pod."""


def pod_name(node_name: str) -> str:
    """Return the name, which is always the same for a node: a validator that starts again finds its pod.

    The admission policy gpuplane-validation-pods holds each validator to it.
    """
    return f"{NAME}-{node_name}"


class PullSecret(Struct):
    """A reference to a Secret of the same namespace."""

    name: str = ""


class ValidatorContainer(Struct):
    """The fields of the validator's container that the validation pod takes over."""

    image: str = ""
    image_pull_policy: str = ""


class ValidatorPodSpec(Struct):
    """The fields of the validator's `spec` that the validation pod takes over."""

    containers: tuple[ValidatorContainer, ...] = ()
    image_pull_secrets: tuple[PullSecret, ...] = ()


class ValidatorPod(Struct):
    """The validator's own pod."""

    RESOURCE: ClassVar[Resource] = Pod.RESOURCE

    metadata: ObjectMeta = ObjectMeta()
    spec: ValidatorPodSpec = ValidatorPodSpec()


def manifest(context: OperandContext, ours: ValidatorPod | None, offer: GpuOffer) -> dict[str, Any]:
    """Return the pod. `ours` is the validator's own: the workload has its image, how to pull it, and its owner, the
    DaemonSet. The pod is deleted with the DaemonSet, and not when one validator pod is replaced by the next.
    """
    import yaml  # late: 4 MB, and most validators find their proof from before

    pod: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    metadata, spec = pod["metadata"], pod["spec"]
    metadata |= {"name": pod_name(context.node_name), "namespace": context.namespace}
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"] = [context.node_name]
    (container,) = spec["containers"]
    container["command"] = [sys.executable, "-m", PROGRAM]
    limits = container["resources"]["limits"]
    del limits[names.GPU_RESOURCE]
    limits[offer.resource] = offer.least
    image = context.image
    if ours is not None:
        own = ours.spec.containers[0]
        image = image or own.image
        # NB: with the admission plugin AlwaysPullImages an image that is on the node needs its secrets too.
        if ours.spec.image_pull_secrets:
            spec["imagePullSecrets"] = [{"name": secret.name} for secret in ours.spec.image_pull_secrets]
        if own.image_pull_policy:
            container["imagePullPolicy"] = own.image_pull_policy
        metadata["ownerReferences"] = [
            {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
            for owner in ours.metadata.owner_references
            if owner.controller
        ]
    container["image"] = image or names.IMAGE
    return pod


def verdict(pod: Pod) -> ValidationProblem | bool | None:
    """True when the pod has succeeded, False when it finds no room, a Problem when it failed, None while it may
    still."""
    if pod.status.phase == "Succeeded":
        return True
    where = f"pod/{pod.metadata.name}"
    if pod.status.phase == "Failed":
        ended = [status.state.terminated for status in pod.status.container_statuses]
        text = pod.status.message or next((e.message for e in ended if e is not None and e.message), "")
        reason = pod.status.reason or next((e.reason for e in ended if e is not None and e.reason), "")
        if reason.startswith(REJECTED):
            cure = f"kubectl -n {pod.metadata.namespace} describe {where}"
            return ValidationProblem(
                "PluginWorkloadRejected", f"the kubelet refused the validation pod: {text}", where, cure
            )
        what = f"the validation pod failed: {text or reason or 'no reason given'}"
        return ValidationProblem(
            "PluginWorkloadFailed", what, where, f"kubectl -n {pod.metadata.namespace} logs {where}"
        )
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False" and condition.reason == "Unschedulable":
            return False
    for status in pod.status.container_statuses:
        waiting = status.state.waiting
        if waiting is not None and waiting.reason in HOPELESS:
            what = f"the validation pod does not start: {waiting.reason} {waiting.message}".rstrip()
            cure = f"kubectl -n {pod.metadata.namespace} describe {where}"
            return ValidationProblem("PluginWorkloadNotStarted", what, where, cure)
    return None


async def run_pod(
    context: OperandContext,
    offer: GpuOffer = GpuOffer(),  # noqa: B008 - frozen
    patience: float = PATIENCE_SECONDS,
    grace: float = GRACE_SECONDS,
) -> ValidationProblem | None:
    """Run the pod to its end; None when it passed.

    Args:
        offer: by which name the node offers GPUs.
        patience: seconds after which a pod that has not ended has failed.
        grace: seconds in which a scheduler that found no room may find some; it may not have seen yet that the kubelet
            offers GPUs.

    Raises:
        NoRoom: no GPU is free; the pod is gone again.
        ApiError: the API server refused or is away.
    """
    client, name, namespace = context.client, pod_name(context.node_name), context.namespace
    pods = Informer(client, Pod, namespace, fields=f"metadata.name={name}")
    changed = asyncio.Event()
    pods.add_handler(lambda old, new: changed.set())
    pods.start()

    async def outcome(uid: str, *, final: bool) -> ValidationProblem | bool:
        while True:
            changed.clear()
            pod = pods.get(f"{namespace}/{name}")
            result = None if pod is None or pod.metadata.uid != uid else verdict(pod)
            if result is not None and not (final and result is False):
                return result
            await changed.wait()

    rejected: ValidationProblem | None = None
    pauses = itertools.chain(REJECTED_PAUSES, itertools.repeat(REJECTED_PAUSES[-1]))
    try:
        await pods.synced()
        async with asyncio.timeout(patience):
            while True:
                uid = await _create(context, offer, pods, changed)
                result = await outcome(uid, final=False)
                if not isinstance(result, ValidationProblem) or result.reason != "PluginWorkloadRejected":
                    break
                rejected = result
                await context.sleep(next(pauses))
            if result is False:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace):
                        result = await outcome(uid, final=True)
    except TimeoutError:
        where = f"pod/{name}"
        return rejected or ValidationProblem(
            "PluginWorkloadTimedOut",
            f"the validation pod did not end within {patience:g} s",
            where,
            f"kubectl -n {namespace} describe {where}",
        )
    finally:
        await pods.stop()
    if result is False:
        await client.delete(Pod, name, namespace, uid=uid, grace_seconds=0)
        raise NoRoom("no GPU is free for the validation pod")
    return await _with_log(context, result) if isinstance(result, ValidationProblem) else None


async def _create(context: OperandContext, offer: GpuOffer, pods: Informer[Pod], changed: asyncio.Event) -> str:
    """Create the pod, in the place of one that an earlier validation left; returns its uid."""
    name, namespace = pod_name(context.node_name), context.namespace
    ours = await context.client.get(ValidatorPod, context.pod_name, namespace) if context.pod_name else None
    body = manifest(context, ours, offer)
    while True:
        changed.clear()
        old = pods.get(f"{namespace}/{name}")
        if old is not None:
            # When it is gone already, the informer is about to say so.
            with contextlib.suppress(NotFound):
                await context.client.delete(Pod, name, namespace, uid=old.metadata.uid, grace_seconds=0)
            await changed.wait()
            continue
        try:
            created = await context.client.create(body)
        except AlreadyExists:
            await changed.wait()
            continue
        return str(created["metadata"]["uid"])


async def _with_log(context: OperandContext, problem: ValidationProblem) -> ValidationProblem:
    """The problem with the end of the pod's log, which says more than an exit code."""
    path = Pod.RESOURCE.path(context.namespace, pod_name(context.node_name), "log")
    try:
        text = (await context.client.request("GET", path, {"tailLines": str(LOG_LINES)})).decode(errors="replace")
    except ApiError:
        return problem  # a pod that never started has no log; its own words are in the problem
    said = " ".join(line.strip() for line in text.splitlines() if line.startswith(("what", "Test ")))
    if not said:
        return problem
    return ValidationProblem(problem.reason, f"{problem.message}; it said: {said}", problem.where, problem.cure)
