"""PodExplanation (`gpuplane.dev/v1alpha1`, namespaced): a question why pods wait or where they are, with its answer.

A user who may view one namespace cannot read the nodes and the pods of other tenants, which the answer depends on. The
user creates a PodExplanation; the operator reads the cluster with its own rights, and writes the answer into the status
without the names of other tenants' pods. As with a SubjectAccessReview, the object is a request, not a wish: the
operator deletes it a minute later.

The bounds of a request stand here, since the API server enforces them: a name is a name and no path, and the number of
pods of one request is limited.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from gpuplane.api.marks import shaped
from kubekit.api.meta import ObjectMeta, Resource, Struct

MOST_PODS: Final = 32  # of one request
_NAME: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class PodExplanationSpec(Struct):
    """The request.

    Fields:
    pods: names of pods in the namespace of the object
    """

    pods: Annotated[
        tuple[Annotated[str, shaped(maxLength=253, pattern=_NAME)], ...], shaped(minItems=1, maxItems=MOST_PODS)
    ]


class PodExplanationAnswer(Struct):
    """The answer about one pod; `explanation` is empty where there is no such pod.

    Fields:
    pod: name of the pod
    explanation: the same as gpuplane explain POD -o json prints, kind Explanation of cli.gpuplane.dev/v1
    """

    pod: str
    explanation: dict[str, Any] = {}


class PodExplanationStatus(Struct):
    """The answer. The operator writes it once.

    Fields:
    answered: when the operator answered; empty until then
    error: why there is no answer
    answers: one for each pod
    """

    answered: str = ""
    error: str = ""
    answers: tuple[PodExplanationAnswer, ...] = ()


class PodExplanation(Struct, kw_only=True):
    """Why pods of a namespace wait or where they are, answered by the operator for users who may not read the nodes.

    The operator deletes the object a minute after its creation.

    Fields:
    spec: the request
    status: the answer
    """

    RESOURCE: ClassVar[Resource] = Resource("gpuplane.dev", "v1alpha1", "podexplanations", "PodExplanation", True)

    metadata: ObjectMeta = ObjectMeta()
    spec: PodExplanationSpec
    status: PodExplanationStatus = PodExplanationStatus()
