"""Authenticates callers: bearer tokens, service account tokens, client certificates, impersonation.

Tokens of people and nodes are fixed and known by heart; those of service accounts are signed (JWT, HS256), so that any
number of them costs no memory, and live as long as their service account, their pod and their own expiry.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from tinykube.apiserver.asgi import CERTIFICATE_SUBJECT, HttpRequest
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.hooks import Attributes, Authorizer, ImpersonationRefused, Object, User

ISSUER: Final = "https://kubernetes.default.svc"
AUTHENTICATED: Final = "system:authenticated"
ANONYMOUS: Final = User("system:anonymous", ("system:unauthenticated",))
_HEADER: Final = {"alg": "HS256", "typ": "JWT"}
_POD: Final = "authentication.kubernetes.io/pod-"
_NODE: Final = "authentication.kubernetes.io/node-"

Find = Callable[[str, str, str], Object | None]  # (plural, namespace, name) -> object


def service_account_user(namespace: str, name: str, uid: str = "", **extra: tuple[str, ...]) -> User:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return User(f"system:serviceaccount:{namespace}:{name}", groups, uid, extra)


def node_user(name: str) -> User:
    """A kubelet."""
    return User(f"system:node:{name}", ("system:nodes", AUTHENTICATED))


ADMIN: Final = User("kubernetes-admin", ("system:masters", AUTHENTICATED))


class InvalidToken(ValueError):
    """A token that identifies no user; the message says why."""


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class ServiceAccountTokens:
    """Issues and checks the tokens of service accounts. `key` signs; a server that restarts with the same key accepts
    the old tokens.
    """

    def __init__(self, key: bytes, find: Find, clock: Callable[[], float]) -> None:
        self._key = key
        self._find = find
        self._clock = clock

    def issue(
        self, account: Object, seconds: int, *, audiences: tuple[str, ...] = (), pod: Object | None = None
    ) -> tuple[str, int]:
        """A token for a ServiceAccount and the time (seconds since 1970) until which it is good."""
        now = int(self._clock())
        metadata = account["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        private: Object = {"namespace": namespace, "serviceaccount": {"name": name, "uid": metadata["uid"]}}
        if pod is not None:
            private["pod"] = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            if node := (pod.get("spec") or {}).get("nodeName"):
                found = self._find("nodes", "", node)
                private["node"] = {"name": node, **({"uid": found["metadata"]["uid"]} if found else {})}
        claims = {
            "aud": list(audiences or (ISSUER,)),
            "exp": now + seconds,
            "iat": now,
            "iss": ISSUER,
            "jti": secrets.token_hex(16),
            "kubernetes.io": private,
            "nbf": now,
            "sub": f"system:serviceaccount:{namespace}:{name}",
        }
        head = _b64(msgspec.json.encode(_HEADER)) + "." + _b64(msgspec.json.encode(claims))
        return f"{head}.{self._sign(head)}", now + seconds

    def _sign(self, head: str) -> str:
        return _b64(hmac.new(self._key, head.encode(), hashlib.sha256).digest())

    def check(self, token: str, audiences: tuple[str, ...] = (ISSUER,)) -> tuple[User, tuple[str, ...]]:
        """Return the account of a token and the wanted audiences that it is for. Raises InvalidToken."""
        head, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(head).encode()):
            raise InvalidToken("the token's signature is not ours")
        try:
            claims = msgspec.json.decode(_unb64(head.partition(".")[2]))
        except (binascii.Error, ValueError) as problem:
            raise InvalidToken(f"the token cannot be read: {problem}") from None
        if claims["exp"] <= self._clock():
            raise InvalidToken("service account token has expired")
        common = tuple(audience for audience in audiences if audience in claims["aud"])
        if not common:
            raise InvalidToken(f"token audiences {claims['aud']} is invalid for the target audiences {list(audiences)}")
        return self._user(claims["kubernetes.io"], claims["jti"]), common

    def _user(self, private: Mapping[str, Any], jti: str) -> User:
        namespace, account = private["namespace"], private["serviceaccount"]
        self._alive("serviceaccounts", namespace, account, "service account")
        extra: dict[str, tuple[str, ...]] = {"authentication.kubernetes.io/credential-id": (f"JTI={jti}",)}
        if pod := private.get("pod"):
            self._alive("pods", namespace, pod, "pod")
            extra |= {_POD + "name": (pod["name"],), _POD + "uid": (pod["uid"],)}
        if node := private.get("node"):
            extra[_NODE + "name"] = (node["name"],)
            if uid := node.get("uid"):
                extra[_NODE + "uid"] = (uid,)
        return service_account_user(namespace, account["name"], account["uid"], **extra)

    def _alive(self, plural: str, namespace: str, reference: Mapping[str, str], what: str) -> None:
        found = self._find(plural, namespace, reference["name"])
        if found is None or found["metadata"]["uid"] != reference["uid"]:
            raise InvalidToken(f"{what} {namespace}/{reference['name']} of this token has been deleted")


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
    """The user of a client certificate: its common name, its organizations as groups. TLS has checked who signed it."""
    subject = request.scope.get(CERTIFICATE_SUBJECT) or ()
    parts = [attribute for name in subject for attribute in name]
    names = [value for key, value in parts if key == "commonName"]
    groups = [value for key, value in parts if key == "organizationName"]
    return User(names[0], (*groups, AUTHENTICATED)) if names else None


def _websocket_token(request: HttpRequest) -> str:
    """Browsers cannot set headers of a WebSocket; Kubernetes lets them send the token as a subprotocol."""
    prefix = "base64url.bearer.authorization.k8s.io."
    for protocol in request.header(b"sec-websocket-protocol").split(","):
        if protocol.strip().startswith(prefix):
            try:
                return _unb64(protocol.strip().removeprefix(prefix)).decode()
            except (binascii.Error, UnicodeDecodeError):
                return ""
    return ""
