"""Asks the API server whose token a request has (TokenReview), and what that user may do (SubjectAccessReview).

A server that acts for several users has rights of its own and shows each user only what the API server would show to
that user.
"""

from __future__ import annotations

import msgspec

from kubekit.kube.client import Client

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class ReviewedUser(msgspec.Struct, frozen=True):
    """The user of a token, as authenticators name it. Authorizers may read `extra` too: name, then values."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class ResourceAccess(msgspec.Struct, frozen=True):
    """An access to a resource; `namespace` is empty for all of them, and `name` for all objects."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class _UserInfo(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _UserInfo = msgspec.field(default_factory=_UserInfo)


class _TokenReview(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


async def review_token(client: Client, token: str) -> ReviewedUser | None:
    """Return the user of a token for this API server, None for a token that it does not accept. Raises ApiError.

    No error names the token.
    """
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    answer = await client.request("POST", _TOKENS, None, body, replay=True)
    status = msgspec.json.decode(answer, type=_TokenReview).status
    if not status.authenticated or not status.user.username:
        return None
    user = status.user
    extra = tuple((name, tuple(values)) for name, values in sorted((user.extra or {}).items()))
    return ReviewedUser(user.username, user.uid, tuple(user.groups or ()), extra)


async def review_access(client: Client, user: ReviewedUser, access: ResourceAccess) -> bool:
    """Return whether the API server allows the access to the user. Raises ApiError."""
    asked = {name: value for name, value in msgspec.to_builtins(access).items() if value}
    spec = {
        "user": user.username,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {name: list(values) for name, values in user.extra},
        "resourceAttributes": asked,
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = await client.request("POST", _ACCESS, None, body, replay=True)
    return msgspec.json.decode(answer, type=_AccessReview).status.allowed
