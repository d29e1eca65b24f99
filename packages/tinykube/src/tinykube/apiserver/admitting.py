"""Asks the admission chain about one write: about the object, or about what is posted to a subresource in its place."""

from __future__ import annotations

from collections.abc import Callable

from tinykube.apiserver.hooks import Admission, AdmissionRequest, Object
from tinykube.apiserver.kinds import Kind
from tinykube.apiserver.scales import SCALE, scale_of, with_scale


def _as_it_is(obj: Object) -> None:
    return None


async def admitted(
    admission: Admission | None, request: AdmissionRequest, default: Callable[[Object], None] = _as_it_is
) -> Object:
    """Return the object of a request as the chain leaves it. `default` completes what a webhook changed.

    Raises ApiFailure when the write is refused.
    """
    if admission is not None:
        admission.restrict(request)
    if admission is not None and admission.wanted(request.info, request.operation, request.subresource):
        request.obj = await admission.mutate(request)
        if request.obj is not None:
            default(request.obj)
        await admission.validate(request)
    return request.obj if request.obj is not None else {}


async def scale_admitted(admission: Admission | None, kind: Kind, request: AdmissionRequest) -> Object:
    """Return the object with the replicas of its Scale as the chain leaves it: webhooks see the Scale alone."""
    obj, old = request.obj, request.old
    assert obj is not None and old is not None, "a Scale is an update"
    request.obj, request.old, request.kind = scale_of(kind, obj), scale_of(kind, old), SCALE
    return with_scale(kind, obj, await admitted(admission, request))
