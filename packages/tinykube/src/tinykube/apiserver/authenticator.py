"""Authenticates requests: bearer tokens, client certificates, tokens of service accounts, impersonation.

Tokens of people and nodes are fixed and known by heart; those of service accounts are checked by their signature.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable
from typing import Final

from tinykube.apiserver.account_tokens import InvalidToken, ServiceAccountTokens
from tinykube.apiserver.asgi import CERTIFICATE_SUBJECT, HttpRequest
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.hooks import Attributes, Authorizer, ImpersonationRefused, User
from tinykube.apiserver.identity import ANONYMOUS, AUTHENTICATED, service_account_user
from tinykube.apiserver.token_key import from_base64

_TOKEN_PROTOCOL: Final = "base64url.bearer.authorization.k8s.io."


class RequestAuthenticator:
    """The authenticator: fixed tokens, service account tokens, and impersonation where it is allowed."""

    def __init__(self, accounts: ServiceAccountTokens, authorizer: Authorizer | None = None) -> None:
        self.accounts = accounts
        self._authorizer = authorizer
        self._fixed: dict[str, User] = {}
        self.find: Callable[[str], User | None] = lambda token: None
        """Finds the user of a token that may come and go while the server runs, such as a node's."""

    def add(self, token: str, user: User) -> None:
        """Let `token` stand for `user` from now on."""
        self._fixed[token] = user

    def who(self, token: str) -> User:
        """Raises InvalidToken."""
        user = self._fixed.get(token)
        if user is None and "." not in token:  # those of service accounts have dots
            user = self.find(token)
        return user if user is not None else self.accounts.check(token)[0]

    def authenticate(self, request: HttpRequest) -> User:
        """The user of a request; anonymous without credentials. Raises ApiFailure 401, ImpersonationRefused."""
        user = self._caller(request)
        if b"impersonate-user" in request.headers:
            return self._impersonate(user, request)
        return user

    def _caller(self, request: HttpRequest) -> User:
        scheme, _, token = request.header(b"authorization").partition(" ")
        if not scheme:
            token = _websocket_token(request)
            if not token:
                return _certificate_user(request) or ANONYMOUS
        elif scheme.lower() != "bearer":
            raise ApiFailure(401, "Unauthorized", "Unauthorized")
        try:
            return self.who(token.strip())
        except InvalidToken:
            raise ApiFailure(401, "Unauthorized", "Unauthorized") from None

    def _impersonate(self, user: User, request: HttpRequest) -> User:
        name = request.header(b"impersonate-user")
        headers = request.scope["headers"]
        groups = tuple(value.decode("latin-1") for key, value in headers if key == b"impersonate-group")
        self._may(user, "users", name)
        for group in groups:
            self._may(user, "groups", group)
        if name.startswith("system:serviceaccount:") and not groups:
            _, _, namespace, account = name.split(":", 3)
            return service_account_user(namespace, account)
        return User(name, tuple(dict.fromkeys((*groups, AUTHENTICATED))))

    def _may(self, user: User, resource: str, name: str) -> None:
        if self._authorizer is None:
            return
        problem = self._authorizer.authorize(user, Attributes("impersonate", resource=resource, name=name))
        if problem is not None:
            raise ImpersonationRefused(user)


def _certificate_user(request: HttpRequest) -> User | None:
    """The user of a client certificate: its common name (of several the last, as in Go), its organizations as groups.

    TLS has checked who signed it.
    """
    subject = request.scope.get(CERTIFICATE_SUBJECT) or ()
    parts = [attribute for name in subject for attribute in name]
    names = [value for key, value in parts if key == "commonName"]
    groups = [value for key, value in parts if key == "organizationName"]
    return User(names[-1], (*groups, AUTHENTICATED)) if names else None


def _websocket_token(request: HttpRequest) -> str:
    """Browsers cannot set headers of a WebSocket; Kubernetes lets them send the token as a subprotocol."""
    for protocol in request.header(b"sec-websocket-protocol").split(","):
        if protocol.strip().startswith(_TOKEN_PROTOCOL):
            try:
                return from_base64(protocol.strip().removeprefix(_TOKEN_PROTOCOL)).decode()
            except (binascii.Error, UnicodeDecodeError):
                return ""
    return ""


def for_others(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return headers of a request without what says who its caller is: a pod with it could act as the caller."""
    result = []
    for name, value in headers:
        if name == b"sec-websocket-protocol":
            protocols = [one.strip() for one in value.split(b",")]
            value = b", ".join(one for one in protocols if not one.startswith(_TOKEN_PROTOCOL.encode()))
            if not value:
                continue
        elif name == b"authorization" or name.startswith(b"impersonate-"):
            continue
        result.append((name, value))
    return result
