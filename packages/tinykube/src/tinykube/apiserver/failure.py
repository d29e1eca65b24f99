"""The API server's refusals: a `Status` object, with Kubernetes' messages, since clients match on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kubekit.errors import KubekitError
from tinykube.apiserver.builtin import ResourceInfo

Object = dict[str, Any]


class Cause(msgspec.Struct, frozen=True):
    """One finding about one field; `reason` as in `metav1.CauseType` (FieldValueInvalid, FieldValueRequired, ...)."""

    reason: str
    message: str
    field: str

    def to_dict(self) -> dict[str, str]:
        return {"reason": self.reason, "message": self.message, "field": self.field}

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class ApiFailure(KubekitError):
    """A request that the API server refuses: HTTP status, Kubernetes reason, message and details."""

    def __init__(
        self, status: int, reason: str, message: str, details: dict[str, Any] | None = None, *, retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after = retry_after
        self.metadata: dict[str, Any] = {}

    def __str__(self) -> str:
        return self.message

    def to_status(self) -> dict[str, Any]:
        """The `Status` object that goes over the wire."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.status
        return body


def _details(info: ResourceInfo, name: str, causes: Sequence[Cause] = ()) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if info.group:
        details["group"] = info.group
    details["kind"] = info.plural
    if causes:
        details["causes"] = [cause.to_dict() for cause in causes]
    return details


def not_found(info: ResourceInfo, name: str) -> ApiFailure:
    return ApiFailure(404, "NotFound", f'{info.qualified} "{name}" not found', _details(info, name))


def already_exists(info: ResourceInfo, name: str) -> ApiFailure:
    return ApiFailure(409, "AlreadyExists", f'{info.qualified} "{name}" already exists', _details(info, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(info: ResourceInfo, name: str, message: str = MODIFIED) -> ApiFailure:
    text = f'Operation cannot be fulfilled on {info.qualified} "{name}": {message}'
    return ApiFailure(409, "Conflict", text, _details(info, name))


def invalid(info: ResourceInfo, name: str, causes: Sequence[Cause], *, kind: str = "") -> ApiFailure:
    """422 with every finding, joined as the real server joins them; `kind` where it names another."""
    shown = kind or info.kind
    group = "" if info.group == "events.k8s.io" else info.group  # NB: findings about an Event are about that of core
    kind = f"{shown}.{group}" if group else shown
    texts = list(dict.fromkeys(str(cause) for cause in causes))
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details: dict[str, Any] = {"name": name} if name else {}
    if group:
        details["group"] = group
    details["kind"] = shown
    details["causes"] = [cause.to_dict() for cause in causes]
    return ApiFailure(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details)


def forbidden(info: ResourceInfo, name: str, message: str, causes: Sequence[Cause] = ()) -> ApiFailure:
    text = f'{info.qualified} "{name}" is forbidden: {message}' if name else f"{info.qualified} is forbidden: {message}"
    return ApiFailure(403, "Forbidden", text, _details(info, name, causes))


def invalid_options(kind: str, cause: Cause) -> ApiFailure:
    """422 for an option of a request; `kind` is CreateOptions, PatchOptions, ListOptions and so on."""
    details = {"group": "meta.k8s.io", "kind": kind, "causes": [cause.to_dict()]}
    return ApiFailure(422, "Invalid", f'{kind}.meta.k8s.io "" is invalid: {cause}', details)


def invalid_patch(patched: Object, why: str) -> ApiFailure:
    """422 for a patch that leaves what cannot be read as an object of its kind."""
    _, _, short = why.partition(" cannot be handled as a ")
    cause = invalid_value("patch", msgspec.json.encode(patched).decode(), short.partition(": ")[2] or why)
    details = {"causes": [cause.to_dict()]}
    return ApiFailure(422, "Invalid", f' "" is invalid: {cause}', details)


def bad_request(message: str) -> ApiFailure:
    return ApiFailure(400, "BadRequest", message)


def method_not_allowed() -> ApiFailure:
    return ApiFailure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def no_such_resource() -> ApiFailure:
    return ApiFailure(404, "NotFound", "the server could not find the requested resource", {})


def gone(message: str) -> ApiFailure:
    return ApiFailure(410, "Expired", message)


_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


def expired_page(token: str) -> ApiFailure:
    """410 for a page of a list that is too old; `token` continues the list as it is now."""
    error = gone(_EXPIRED)
    error.metadata["continue"] = token
    return error


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else msgspec.json.encode(value).decode()


def invalid_value(field: str, value: object, message: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {_shown(value)}: {message}", field)


def required(field: str, message: str = "") -> Cause:
    return Cause("FieldValueRequired", f"Required value: {message}" if message else "Required value", field)


def not_supported(field: str, value: object, allowed: Sequence[str]) -> Cause:
    """List the allowed words in their order here, since the real server sorts some lists and others not."""
    listed = ", ".join(f'"{word}"' for word in allowed)
    return Cause("FieldValueNotSupported", f"Unsupported value: {_shown(value)}: supported values: {listed}", field)


def not_found_value(field: str, value: object, message: str = "") -> Cause:
    text = f"Not found: {_shown(value)}"
    return Cause("FieldValueNotFound", f"{text}: {message}" if message else text, field)


def duplicate(field: str, value: object, message: str = "") -> Cause:
    text = f"Duplicate value: {_shown(value)}"
    return Cause("FieldValueDuplicate", f"{text}: {message}" if message else text, field)


def forbidden_value(field: str, message: str) -> Cause:
    return Cause("FieldValueForbidden", f"Forbidden: {message}", field)
