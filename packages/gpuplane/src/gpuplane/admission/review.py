"""AdmissionReview in, AdmissionReview out: the verdict on a pod or a workload. Pure.

Pods that can never run are refused with every reason. A workload whose pods can never run is admitted with a warning,
which kubectl shows at once: what it makes is refused anyway, and it may have been stored before gpuplane came.

An object that does not have a pod's shape is admitted: the API server tells better what is wrong with it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.admission.scheduler_name import scheduler_patch
from gpuplane.admission.take_over import refused_image, take_over, warnings
from gpuplane.admission.translate import translate
from gpuplane.sharing.findings import findings, findings_of_object
from kubekit.api.core import Pod
from kubekit.documents import DocumentError, decode_json
from kubekit.errors import InvalidInput

GROUP: Final = "admission.k8s.io"
_MIRROR: Final = "kubernetes.io/config.mirror"  # the kubelet runs a static pod, whatever the verdict on its mirror
_LONGEST_MESSAGE: Final = 4096


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


class Question(msgspec.Struct, frozen=True, rename="camel"):
    """The `request` of an AdmissionReview, narrow."""

    uid: str
    kind: _Kind = _Kind()
    operation: str = ""
    namespace: str = ""
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    request: Question
    api_version: str = f"{GROUP}/v1"


class ReviewVerdict(msgspec.Struct, frozen=True):
    """`refused` says why it may not be; empty when it may. `patch` is a JSON Patch."""

    refused: str = ""
    warnings: tuple[str, ...] = ()
    patch: tuple[dict[str, Any], ...] = ()


def take_over_pod(asked: Question, image: str) -> ReviewVerdict:
    """Answer a mutating review of gpu-manager's objects: run gpuplane's `image` in their pods.

    A DaemonSet or Deployment stays as it is, with a warning. Of a pod that is there already only the image may change,
    so that image is refused; a pod that had it before stays as it is.
    """
    if asked.object is None:
        return ReviewVerdict()
    try:
        if asked.kind.kind != "Pod":
            return ReviewVerdict(warnings=tuple(warnings(asked.object["spec"]["template"]["spec"])))
        if asked.operation == "UPDATE":
            return ReviewVerdict(refused=refused_image(asked.object, asked.old_object or {}))
        done = take_over(asked.object, image)
        return ReviewVerdict(patch=done.patch, warnings=done.warnings)
    except InvalidInput as error:
        return ReviewVerdict(refused=f"GP209 {error}")
    except (AttributeError, TypeError, KeyError):
        return ReviewVerdict()  # no pod: validation says what is wrong with it


def mutate(asked: Question) -> ReviewVerdict:
    """Answer a mutating review: translate pods of Kubernetes 1.3 to 1.9."""
    if asked.kind.kind != "Pod" or asked.object is None:
        return ReviewVerdict()
    try:
        done = translate(asked.object, asked.old_object)
    except InvalidInput as error:
        return ReviewVerdict(refused=f"GP208 {error}")
    except (AttributeError, TypeError, KeyError):
        return ReviewVerdict()  # no pod: validation says what is wrong with it
    return ReviewVerdict(warnings=done.warnings, patch=done.patch)


def name_scheduler(asked: Question, name: str) -> ReviewVerdict:
    """Answer a mutating review of a new pod: give it to the scheduler of this name, if it requests GPUs."""
    if asked.kind.kind != "Pod" or asked.object is None or asked.operation != "CREATE":
        return ReviewVerdict()
    try:
        return ReviewVerdict(patch=scheduler_patch(asked.object, name))
    except (AttributeError, TypeError, KeyError):
        return ReviewVerdict()  # no pod: validation says what is wrong with it


def validate(asked: Question) -> ReviewVerdict:
    """Answer a validating review."""
    data = asked.object
    if data is None:
        return ReviewVerdict()
    if asked.kind.kind != "Pod":
        wrong = findings_of_object({**data, "kind": asked.kind.kind})
        return ReviewVerdict(warnings=tuple(f"its pods can never run: {finding}" for finding in wrong))
    try:
        pod = msgspec.convert(data, Pod)
    except msgspec.ValidationError:
        return ReviewVerdict()
    if _MIRROR in pod.metadata.annotations:
        return ReviewVerdict()
    wrong = findings(pod)
    errors = [str(finding) for finding in wrong if finding.severity == "error"]
    return ReviewVerdict(
        refused="; ".join(errors)[:_LONGEST_MESSAGE],
        warnings=tuple(str(finding) for finding in wrong if finding.severity == "warning"),
    )


def answer(body: bytes, say: Callable[[Question], ReviewVerdict]) -> bytes:
    """Return the AdmissionReview that answers `body`. Raises InvalidInput when `body` is not a review."""
    try:
        review = decode_json(body, _Review)
    except DocumentError as error:
        raise InvalidInput(f"no AdmissionReview: {error}") from error
    if not review.api_version.startswith(f"{GROUP}/"):
        raise InvalidInput(f"{review.api_version} is not {GROUP}")
    verdict = say(review.request)
    response: dict[str, Any] = {"uid": review.request.uid, "allowed": not verdict.refused}
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    if verdict.refused:
        response["status"] = {
            "code": HTTPStatus.FORBIDDEN.value,
            "reason": "Forbidden",
            "message": f"{verdict.refused} (gpuplane explain {verdict.refused.partition(' ')[0]})",
        }
    elif verdict.patch:
        response |= {
            "patchType": "JSONPatch",
            "patch": base64.b64encode(msgspec.json.encode(verdict.patch)).decode(),
        }
    return msgspec.json.encode({"apiVersion": review.api_version, "kind": "AdmissionReview", "response": response})


ASKS: Final = (names.GPU_RESOURCE, names.VCUDA_CORE, names.VCUDA_MEMORY, names.ALPHA_GPU)
"""The resources of pods that the webhooks want to see; a test holds the manifests to it."""
