"""The failures of an API server, or of the connection to it, as types.

The split that matters to a caller is Retryable against Terminal (see `kubekit.errors`); the class names are the
reasons of `metav1.Status`, so that a log line and `kubectl` use the same word.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kubekit.errors import KubekitError, NoAnswer, Retryable, Terminal


class ApiError(KubekitError):
    """The API server refused.

    `status` is the HTTP status (0 when there was no answer), `reason` the CamelCase word of the Status object, `causes`
    the field errors of a 422 as "path: message", `retry_after` the seconds the server asks to wait, None if it did not.
    """

    status: int = 0

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        cure: str = "",
        status: int | None = None,
        reason: str = "",
        causes: tuple[str, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(what, where=where, cure=cure)
        self.status = type(self).status if status is None else status
        self.reason = reason or type(self).__name__
        self.causes = causes
        self.retry_after = retry_after


class BadRequest(ApiError, Terminal):
    status = 400


class Unauthorized(ApiError, Terminal):
    status = 401
    exit_code = 3


class Forbidden(ApiError, Terminal):
    status = 403
    exit_code = 3


class NotFound(ApiError, Terminal):
    status = 404


class MethodNotAllowed(ApiError, Terminal):
    status = 405


class AlreadyExists(ApiError, Terminal):
    status = 409


class Conflict(ApiError, Retryable):
    """Another writer was first, or (server-side apply without force) owns a field."""

    status = 409


class Gone(ApiError, Retryable):
    """The resource version or continue token is too old: list again."""

    status = 410


class Invalid(ApiError, Terminal):
    """The object breaks the schema or a rule; `causes` has every finding."""

    status = 422


class TooManyRequests(ApiError, Retryable):
    status = 429


class ServerError(ApiError, Retryable):
    status = 500


class Rejected(ApiError, Terminal):
    """Any other 4xx."""

    status = 400


class Unreachable(ApiError, NoAnswer):
    """No answer: refused, reset, cut off in the middle, or too slow. `sent` is False when nothing can have happened."""

    def __init__(self, what: str, *, where: str = "", cure: str = "", sent: bool = True) -> None:
        super().__init__(what, where=where, cure=cure)
        self.sent = sent


class ConfigError(Terminal):
    """The kubeconfig, the service account files or a credential plugin cannot be used."""

    exit_code = 3


class _Cause(msgspec.Struct):
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None
    retryAfterSeconds: int = 0


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    c.status: c
    for c in (
        BadRequest,
        Unauthorized,
        Forbidden,
        NotFound,
        MethodNotAllowed,
        Conflict,
        Gone,
        Invalid,
        TooManyRequests,
    )
}
_decode_status = msgspec.json.Decoder(_Status).decode


def from_response(
    status: int, body: Any, *, where: str = "", retry_after: str | None = None, cures: dict[int, str] | None = None
) -> ApiError:
    """The error for an HTTP answer: `body` is bytes or `msgspec.Raw` of a Status object, or any other text.

    `status` 0 means: take the code from the Status (ERROR events of a watch).
    """
    try:
        parsed = _decode_status(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = bytes(body)[:200].decode(errors="replace").strip()
        parsed = _Status(message=text.splitlines()[0] if text else "")
    code = status or parsed.code or 500
    kind = _BY_STATUS.get(code)
    if kind is Conflict and parsed.reason == "AlreadyExists":
        kind = AlreadyExists
    elif parsed.reason in ("Expired", "Gone"):
        kind = Gone
    elif kind is None:
        kind = ServerError if code >= 500 else Rejected
    details = parsed.details
    wait = float(details.retryAfterSeconds) if details and details.retryAfterSeconds else None
    if retry_after is not None and retry_after.isdigit():
        wait = float(retry_after)
    return kind(
        parsed.message or f"the API server answered {code}",
        where=where,
        cure=(cures or {}).get(code, ""),
        status=code,
        reason=parsed.reason,
        causes=tuple(f"{c.field}: {c.message}" for c in (details.causes or [] if details else [])),
        retry_after=wait,
    )
