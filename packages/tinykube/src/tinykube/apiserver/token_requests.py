"""Answers requests for tokens of service accounts: POST serviceaccounts/NAME/token.

Source: pkg/registry/core/serviceaccount/storage/token.go of Kubernetes 1.36, and the part of the admission plugin
NodeRestriction that is about these requests.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from kubekit.api.durations import format_time
from tinykube.apiserver.account_tokens import ISSUER, ServiceAccountTokens
from tinykube.apiserver.asgi import HttpRequest, HttpResponse, json_response
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure, Cause, bad_request, forbidden, invalid_value, not_found
from tinykube.apiserver.hooks import Find, Object, User
from tinykube.apiserver.negotiation import parse_object
from tinykube.apiserver.node_authorizer import node_of

_MIN_SECONDS: Final = 600
_DEFAULT_SECONDS: Final = 3600
_MAX_SECONDS: Final = 2**32
_BINDABLE: Final = {"Pod": "pods", "Node": "nodes", "Secret": "secrets"}


class BoundReference(msgspec.Struct, frozen=True, rename="camel"):
    """The object with which a token ends."""

    kind: str | None = None
    api_version: str | None = None
    name: str | None = None
    uid: str | None = None


class TokenWish(msgspec.Struct, frozen=True, rename="camel"):
    """The spec of a TokenRequest, with its defaults."""

    audiences: tuple[str, ...] | None = None
    expiration_seconds: int | None = None
    bound_object_ref: BoundReference | None = None


class TokenRequests:
    """Issues tokens. `resource` returns the names of a kind by its plural."""

    def __init__(
        self,
        tokens: ServiceAccountTokens,
        find: Find,
        resource: Callable[[str], ResourceInfo],
        clock: Callable[[], float],
    ) -> None:
        self._tokens = tokens
        self._find = find
        self._clock = clock
        self._resource = resource

    async def connect(self, request: HttpRequest, info: ResourceInfo, namespace: str, name: str) -> HttpResponse:
        data = await request.body()
        body = parse_object(request, data) if data else {}
        metadata = _metadata(body, namespace, name)
        account = self._get("serviceaccounts", namespace, name)
        uid = account["metadata"]["uid"]
        if metadata.get("uid") not in (None, "", uid):
            text = f"the UID in the token request ({metadata['uid']}) does not match the UID of the service account"
            raise _conflict("TokenRequest", name, f"{text} ({uid})", "authentication.k8s.io")
        spec, wish = _wish(body)
        now = self._clock()
        bound = self._bound(namespace, account, wish.bound_object_ref, request.user)
        seconds: int = spec["expirationSeconds"]
        token, until = self._tokens.issue(account, seconds, audiences=tuple(spec["audiences"]), **bound)
        made = {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": _time(now)}
        answer: Object = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {**metadata, **made},
            "spec": spec,
            "status": {"token": token, "expirationTimestamp": _time(until)},
        }
        return json_response(answer, 201)

    def _get(self, plural: str, namespace: str, name: str) -> Object:
        found = self._find(plural, namespace, name)
        if found is None:
            raise not_found(self._resource(plural), name)
        return found

    def _bound(self, namespace: str, account: Object, wanted: BoundReference | None, user: User) -> dict[str, Object]:
        """Return the object that the token is bound to, by the name of its argument of `issue`.

        Raises ApiFailure for one that does not exist, or that the account or the node may not bind tokens to.
        """
        mine = account["metadata"]["name"]
        if (node := node_of(user)) is not None:
            self._check_node(node, namespace, mine, wanted)
        if wanted is None:
            return {}
        group, _, version = (wanted.api_version or "").rpartition("/")
        plural = _BINDABLE.get(wanted.kind or "")
        if group or plural is None:
            raise bad_request(f"cannot bind token to object of type {group}/{version}, Kind={wanted.kind or ''}")
        name = wanted.name or ""
        found = self._get(plural, "" if plural == "nodes" else namespace, name)
        if plural == "pods" and (found.get("spec") or {}).get("serviceAccountName") != mine:
            text = f'cannot bind token for serviceaccount "{mine}" to pod running with different serviceaccount name.'
            raise bad_request(text)
        if wanted.uid and wanted.uid != found["metadata"]["uid"]:
            raise _conflict(wanted.kind or "", name, _other_uid(wanted))
        return {plural.removesuffix("s"): found}

    def _check_node(self, node: str, namespace: str, account: str, wanted: BoundReference | None) -> None:
        """Raises ApiFailure 403 for a token that a kubelet needs for no pod of its node."""
        if wanted is None or (wanted.api_version, wanted.kind) != ("v1", "Pod") or not wanted.name:
            why = "node requested token not bound to a pod"
        elif not wanted.uid:
            why = "node requested token with a pod binding without a uid"
        else:
            pod = self._get("pods", namespace, wanted.name)
            if pod["metadata"]["uid"] != wanted.uid:
                why = _other_uid(wanted)
            elif (pod.get("spec") or {}).get("nodeName") != node:
                why = "node requested token bound to a pod scheduled on a different node"
            else:
                return
        raise forbidden(self._resource("serviceaccounts"), account, why)


def _metadata(body: Object, namespace: str, name: str) -> Object:
    """Return the metadata of a request. Raises ApiFailure 400 or 422 where they name another account than the URL."""
    metadata: Any = body.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise bad_request("metadata: the body of the request is not a TokenRequest")
    if metadata.get("namespace") not in (None, "", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if metadata.get("name") not in (None, "", name):
        text = "must match the service account name if specified"
        raise _invalid(name, invalid_value("metadata.name", metadata["name"], text))
    return metadata


def _wish(body: Object) -> tuple[Object, TokenWish]:
    """Return the spec with its defaults, as the answer shows it and as a struct. Raises ApiFailure 400, 422."""
    given = body.get("spec") or {}
    try:
        wish = msgspec.convert(given, TokenWish)
    except msgspec.ValidationError as error:
        what = 'TokenRequest in version "v1" cannot be handled as a TokenRequest'
        raise bad_request(f"{what}: spec: {error}") from None
    seconds = _DEFAULT_SECONDS if wish.expiration_seconds is None else wish.expiration_seconds
    for wrong, text in (
        (seconds < _MIN_SECONDS, "may not specify a duration less than 10 minutes"),
        (seconds > _MAX_SECONDS, "may not specify a duration larger than 2^32 seconds"),
    ):
        if wrong:
            raise _invalid("", invalid_value("spec.expirationSeconds", seconds, text))
    spec = {
        "audiences": list(wish.audiences or (ISSUER,)),
        "expirationSeconds": seconds,
        "boundObjectRef": given.get("boundObjectRef"),
    }
    return spec, wish


def _other_uid(wanted: BoundReference) -> str:
    text = f"the UID in the bound object reference ({wanted.uid}) does not match the UID in record"
    return f"{text}. The object might have been deleted and then recreated"


def _invalid(name: str, cause: Cause) -> ApiFailure:
    details: Object = {"name": name} if name else {}
    details |= {"group": "authentication.k8s.io", "kind": "TokenRequest", "causes": [cause.to_dict()]}
    return ApiFailure(422, "Invalid", f'TokenRequest.authentication.k8s.io "{name}" is invalid: {cause}', details)


def _conflict(kind: str, name: str, why: str, group: str = "") -> ApiFailure:
    """409, which names the kind and not the resource."""
    qualified = f"{kind}.{group}" if group else kind
    details = {"name": name, **({"group": group} if group else {}), "kind": kind}
    return ApiFailure(409, "Conflict", f'Operation cannot be fulfilled on {qualified} "{name}": {why}', details)


def _time(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))
