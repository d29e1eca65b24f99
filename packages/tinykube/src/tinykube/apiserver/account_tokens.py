"""The tokens of service accounts: JSON Web Tokens with the claims of Kubernetes.

Tokens are signed, not stored. A token is good until it expires, or until its service account or the pod, secret or
node that it is bound to is deleted. Its signature is checked once: the claims of checked tokens are cached, and only
what changes with time (the clock, the objects) is looked at for each request.

Source: pkg/serviceaccount/claims.go and pkg/registry/core/serviceaccount/storage/token.go of Kubernetes 1.36.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

from kubekit.api.durations import parse_time
from tinykube.apiserver.hooks import Find, Object, User
from tinykube.apiserver.identity import service_account_user
from tinykube.apiserver.token_key import TokenKey

ISSUER: Final = "https://kubernetes.default.svc"
LEEWAY_S: Final = 60  # as a real server allows for clocks that differ
_CACHED_TOKENS: Final = 4096  # 2 KB each
#: Kubelets ask for this time (seconds) for the token that every pod has. Such a token is good for a year, so that
#: programs that read it only once go on; from `warnafter` on its use is counted.
_WARN_ONLY_S: Final = 3607
_EXTENDED_S: Final = 365 * 86400
_POD: Final = "authentication.kubernetes.io/pod-"
NODE_NAME: Final = "authentication.kubernetes.io/node-name"
_NODE_UID: Final = "authentication.kubernetes.io/node-uid"


class InvalidToken(ValueError):
    """A token that identifies no user; the message says why."""


class ClaimedObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object that a token names."""

    name: str
    uid: str = ""


class KubernetesClaims(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claims of Kubernetes' own. `warnafter` is in seconds since 1970."""

    namespace: str
    serviceaccount: ClaimedObject
    node: ClaimedObject | None = None
    pod: ClaimedObject | None = None
    secret: ClaimedObject | None = None
    warnafter: int | None = None


class TokenClaims(msgspec.Struct, frozen=True):
    """The payload of a token; times are in seconds since 1970."""

    aud: tuple[str, ...]
    exp: int
    iat: int
    iss: str
    jti: str
    kubernetes: KubernetesClaims = msgspec.field(name="kubernetes.io")
    nbf: int
    sub: str


_decode_claims = msgspec.json.Decoder(TokenClaims).decode


class ServiceAccountTokens:
    """Issues and checks tokens. A server that restarts with the same key accepts the tokens of before."""

    def __init__(self, key: TokenKey, find: Find, clock: Callable[[], float]) -> None:
        self.key = key
        self._find = find
        self._clock = clock
        self._read = lru_cache(_CACHED_TOKENS)(self._verified)

    def issue(
        self,
        account: Object,
        seconds: int,
        *,
        audiences: tuple[str, ...] = (),
        pod: Object | None = None,
        secret: Object | None = None,
        node: Object | None = None,
    ) -> tuple[str, int]:
        """A token for a ServiceAccount and the time (seconds since 1970) until which it is to be used.

        It is bound to at most one of the objects.
        """
        now, until = int(self._clock()), int(self._clock()) + seconds
        metadata = account["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        audiences = audiences or (ISSUER,)
        extended = pod is not None and seconds == _WARN_ONLY_S and set(audiences) <= {ISSUER}
        claims = TokenClaims(
            aud=audiences,
            exp=now + _EXTENDED_S if extended else until,
            iat=now,
            iss=ISSUER,
            jti=str(uuid.uuid4()),
            kubernetes=KubernetesClaims(
                namespace,
                ClaimedObject(name, metadata["uid"]),
                node=self._node_of(pod) if pod is not None else _claimed(node),
                pod=_claimed(pod),
                secret=_claimed(secret),
                warnafter=until if extended else None,
            ),
            nbf=now,
            sub=f"system:serviceaccount:{namespace}:{name}",
        )
        return self.key.sign(msgspec.json.encode(claims)), until

    def _node_of(self, pod: Object) -> ClaimedObject | None:
        name = (pod.get("spec") or {}).get("nodeName")
        if not name:
            return None
        return _claimed(self._find("nodes", "", name)) or ClaimedObject(name)

    def check(self, token: str, audiences: tuple[str, ...] = (ISSUER,)) -> tuple[User, tuple[str, ...]]:
        """Return the account of a token and the wanted audiences that it is for. Raises InvalidToken."""
        claims, user = self._read(token)
        now = self._clock()
        common = audiences if claims.aud == audiences else tuple(one for one in audiences if one in claims.aud)
        if not common:
            known, wanted = (" ".join(f'"{one}"' for one in several) for several in (claims.aud, audiences))
            raise InvalidToken(f"token audiences [{known}] is invalid for the target audiences [{wanted}]")
        if claims.exp <= now - LEEWAY_S:
            raise InvalidToken("service account token has expired")
        if claims.nbf > now + LEEWAY_S:
            raise InvalidToken("service account token is not valid yet")
        self._check_objects(claims.kubernetes, now)
        return user, common

    def _verified(self, token: str) -> tuple[TokenClaims, User]:
        payload = self.key.verify(token)
        if payload is None:
            raise InvalidToken("invalid bearer token")
        claims = _decode_claims(payload)
        return claims, _user(claims)

    def _check_objects(self, claims: KubernetesClaims, now: float) -> None:
        """Raises InvalidToken if an object that the token depends on is deleted."""
        namespace, account = claims.namespace, claims.serviceaccount
        found = self._find("serviceaccounts", namespace, account.name)
        if found is None:
            raise InvalidToken(f'serviceaccounts "{account.name}" not found')
        if found["metadata"]["uid"] != account.uid:
            uid = found["metadata"]["uid"]
            raise InvalidToken(f"service account UID ({uid}) does not match claim ({account.uid})")
        if _deleted(found, now):
            raise InvalidToken(f"service account {namespace}/{account.name} has been deleted")
        if claims.pod is not None:
            self._check_bound("pods", namespace, claims.pod, now)
        elif claims.secret is not None:
            self._check_bound("secrets", namespace, claims.secret, now)
        elif claims.node is not None:
            self._check_bound("nodes", "", claims.node, now)

    def _check_bound(self, plural: str, namespace: str, bound: ClaimedObject, now: float) -> None:
        found = self._find(plural, namespace, bound.name)
        if found is None or found["metadata"]["uid"] != bound.uid or _deleted(found, now):
            raise InvalidToken("service account token has been invalidated")


def _deleted(obj: Object, now: float) -> bool:
    """Return whether an object should be gone since a minute, though finalizers or a kubelet hold it."""
    at = obj["metadata"].get("deletionTimestamp")
    return at is not None and parse_time(at).timestamp() < now - LEEWAY_S


def _claimed(obj: Object | None) -> ClaimedObject | None:
    return None if obj is None else ClaimedObject(obj["metadata"]["name"], obj["metadata"]["uid"])


def _user(claims: TokenClaims) -> User:
    private = claims.kubernetes
    extra: dict[str, tuple[str, ...]] = {"authentication.kubernetes.io/credential-id": (f"JTI={claims.jti}",)}
    if pod := private.pod:
        extra |= {_POD + "name": (pod.name,), _POD + "uid": (pod.uid,)}
    if node := private.node:
        extra[NODE_NAME] = (node.name,)
        if node.uid:
            extra[_NODE_UID] = (node.uid,)
    account = private.serviceaccount
    return service_account_user(private.namespace, account.name, account.uid, **extra)
