"""Why an operand's pod does not run, in words and with a cure: pure functions of what its kubelet says.

Invariant: one trouble has one reason and one text for as long as it lasts. The kubelet tells an image that it cannot
pull in turns as ErrImagePull (with the cause) and ImagePullBackOff (often without); that is one trouble here.
"""

from __future__ import annotations

import re
from typing import Final

from gpuplane import names
from gpuplane.api.gpunode import Stage, StageName, StageState
from gpuplane.operator.driver_sets import DRIVER_IMAGE_CONTAINER
from gpuplane.operator.observed import PULLING, ObservedNode, OperandPod
from gpuplane.operator.stages import Operand

PULL: Final = "ErrImagePull"
# NB: `repository` and `image` of an operand's group have no effect, and those of `driver` change the installer.
_OWN_IMAGE: Final = "repeat gpuplane install with --image, or set operator.repository, image and version of the chart"
_RESTARTING: Final = frozenset({"CrashLoopBackOff", "RunContainerError", "StartError"})
_NOT_ALLOWED: Final = re.compile(r"\b(401|403)\b|unauthori[sz]ed|denied|authentication required|no basic auth", re.I)
_ABSENT: Final = re.compile(r"not found|manifest unknown|does not exist|NotFound", re.I)


def trouble(seen: ObservedNode, operand: Operand, pod: OperandPod, old: Stage | None) -> Stage:
    """Return the stage to store when its operand's pod has a problem; `old` is the stored stage."""
    where, reason, message = f"pod/{pod.name}", pod.problem, pod.message
    if reason in PULLING:
        reason, cause = PULL, _cause(pod)
        if not cause and old is not None and (old.reason, old.where) == (PULL, where):
            return old
        message = f"cannot pull {pod.image or 'its image'}" + (f": {cause}" if cause else "")
        cure = _pull_cure(seen, operand, pod, cause)
    elif reason in _RESTARTING:
        cure = f"kubectl -n {names.OPERATOR_NAMESPACE} logs {where} --previous"
    else:
        cure = f"kubectl -n {names.OPERATOR_NAMESPACE} describe {where}"
    return Stage(state=StageState.RUNNING, reason=reason, message=message, where=where, cure=cure)


def _cause(pod: OperandPod) -> str:
    """Return the reason of a failed pull: the runtime's message after the image's name, which may occur several
    times.
    """
    said = re.sub(r"^Back-off pulling image \"[^\"]*\"(: ErrImagePull)?(: )?", "", pod.message.strip())
    for name in (f'"{pod.image}": ', f"{pod.image}: "):
        said = said.rpartition(name)[2]
    return said.strip()


def _pull_cure(seen: ObservedNode, operand: Operand, pod: OperandPod, cause: str) -> str:
    """Return what makes the image pullable. Only a driver image is a choice of the policy; every other container runs
    the operator's own image, which the installation chooses.
    """
    spec = f"ClusterPolicy spec.{operand.group}"
    if StageName.DRIVER in operand.makes and seen.driver_owner:
        spec = f"NVIDIADriver {seen.driver_owner} spec"
    registry = pod.image.partition("/")[0]
    own = pod.container != DRIVER_IMAGE_CONTAINER
    if _NOT_ALLOWED.search(cause):
        return f"{spec}.imagePullSecrets: a secret for {registry} in namespace {names.OPERATOR_NAMESPACE}"
    if cause and not _ABSENT.search(cause):
        choice = _OWN_IMAGE if own else f"{spec}.repository"
        return f"see that the node reaches {registry} (proxy, DNS), or {choice}: a mirror that it reaches"
    if own:
        return f"{_OWN_IMAGE}: an image that there is"
    if seen.kernel and seen.kernel in pod.image:
        return f"{spec}.version: one with an image for {seen.kernel}, or usePrecompiled: false"
    return f"{spec}: repository, image and version of an image that there is"
