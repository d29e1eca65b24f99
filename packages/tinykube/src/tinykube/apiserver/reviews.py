"""The virtual resources that answer questions about identity and access, and the tokens of service accounts.

SubjectAccessReview and its kin (`kubectl auth can-i`), SelfSubjectRulesReview (`--list`), SelfSubjectReview (`auth
whoami`), TokenReview, TokenRequest.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from kubekit.api.durations import format_time
from tinykube.apiserver.asgi import HttpRequest, HttpResponse, json_response
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure, Cause, bad_request, not_found
from tinykube.apiserver.hooks import Attributes, Object, Review, User
from tinykube.apiserver.identity import ISSUER, Find, InvalidToken, RequestAuthenticator
from tinykube.apiserver.negotiation import parse_object
from tinykube.apiserver.rbac import RBAC

_MIN_SECONDS: Final = 600
_DEFAULT_SECONDS: Final = 3600
_MAX_SECONDS: Final = 365 * 86400


def _attributes(spec: Object) -> Attributes:
    """Raises ApiFailure 400 when the review asks about nothing."""
    if resource := spec.get("resourceAttributes"):
        return Attributes(
            resource.get("verb", ""),
            resource.get("group", ""),
            resource.get("version", ""),
            resource.get("resource", ""),
            resource.get("subresource", ""),
            resource.get("namespace", ""),
            resource.get("name", ""),
        )
    if path := spec.get("nonResourceAttributes"):
        return Attributes(path.get("verb", ""), path=path.get("path", ""))
    text = "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
    cause = Cause("FieldValueInvalid", text, "spec.resourceAttributes")
    message = f'.authorization.k8s.io "" is invalid: {cause}'
    raise ApiFailure(422, "Invalid", message, {"group": "authorization.k8s.io", "causes": [cause.to_dict()]})


def _user_info(user: User) -> Object:
    info: Object = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra.items()}
    return info


class Reviews:
    """Answers reviews by the authorizer and the authenticator of this server."""

    def __init__(self, identity: RequestAuthenticator, rbac: RBAC) -> None:
        self._identity = identity
        self._rbac = rbac

    def by_plural(self) -> dict[str, Review]:
        return {
            "selfsubjectaccessreviews": self._self_access,
            "subjectaccessreviews": self._access,
            "localsubjectaccessreviews": self._local_access,
            "selfsubjectrulesreviews": self._rules,
            "selfsubjectreviews": self._self,
            "tokenreviews": self._token,
        }

    def _decide(self, obj: Object, user: User, wanted: Attributes) -> Object:
        status: Object = {"allowed": self._rbac.authorize(user, wanted) is None}
        if status["allowed"] and (reason := self._rbac.reason(user, wanted)):
            status["reason"] = reason
        return {"metadata": {}, **obj, "status": status}

    async def _self_access(self, obj: Object, namespace: str, user: User) -> Object:
        return self._decide(obj, user, _attributes(obj.get("spec") or {}))

    async def _access(self, obj: Object, namespace: str, user: User) -> Object:
        spec = obj.get("spec") or {}
        asked = User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""))
        if not asked.name and not asked.groups:
            raise bad_request("spec.user: Invalid value: at least one of user or group must be specified")
        return self._decide(obj, asked, _attributes(spec))

    async def _local_access(self, obj: Object, namespace: str, user: User) -> Object:
        wanted = (obj.get("spec") or {}).get("resourceAttributes") or {}
        if wanted.get("namespace") != namespace:
            raise bad_request("spec.resourceAttributes.namespace: Invalid value: must match metadata.namespace")
        return await self._access(obj, namespace, user)

    async def _rules(self, obj: Object, namespace: str, user: User) -> Object:
        where = (obj.get("spec") or {}).get("namespace") or ""
        if not where:
            raise bad_request("no namespace on request")
        resources: list[Object] = []
        paths: list[Object] = []
        if "system:masters" in user.groups:
            resources.append({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})
            paths.append({"verbs": ["*"], "nonResourceURLs": ["*"]})
        for rule in self._rbac.rules(user, where):
            (paths if rule.urls else resources).append(rule.source)
        status = {"resourceRules": resources, "nonResourceRules": paths, "incomplete": False}
        return {**obj, "status": status}

    async def _self(self, obj: Object, namespace: str, user: User) -> Object:
        return {**obj, "status": {"userInfo": _user_info(user)}}

    async def _token(self, obj: Object, namespace: str, user: User) -> Object:
        spec = obj.get("spec") or {}
        audiences = tuple(spec.get("audiences") or ())
        status: Object
        try:
            if audiences:
                found, common = self._identity.accounts.check(spec.get("token", ""), audiences)
            else:
                found, common = self._identity.who(spec.get("token", "")), (ISSUER,)
            status = {"authenticated": True, "user": _user_info(found), "audiences": list(common)}
        except InvalidToken as problem:
            status = {"user": {}, "error": str(problem)}
        return {"metadata": {}, **obj, "status": status}


class TokenRequests:
    """POST serviceaccounts/NAME/token."""

    def __init__(
        self,
        identity: RequestAuthenticator,
        find: Find,
        account_info: ResourceInfo,
        clock: Callable[[], float],
    ) -> None:
        self._identity = identity
        self._find = find
        self._clock = clock
        self._info = account_info

    async def connect(self, request: HttpRequest, info: ResourceInfo, namespace: str, name: str) -> HttpResponse:
        account = self._find("serviceaccounts", namespace, name)
        if account is None:
            raise not_found(self._info, name)
        data = await request.body()
        body = parse_object(request, data) if data else {}
        spec = body.get("spec") or {}
        seconds = int(spec.get("expirationSeconds") or _DEFAULT_SECONDS)
        if seconds < _MIN_SECONDS:
            text = f"Invalid value: {seconds}: may not specify a duration less than 10 minutes"
            cause = Cause("FieldValueInvalid", text, "spec.expirationSeconds")
            raise ApiFailure(
                422,
                "Invalid",
                f'TokenRequest.authentication.k8s.io "" is invalid: {cause}',
                {"group": "authentication.k8s.io", "kind": "TokenRequest", "causes": [cause.to_dict()]},
            )
        pod = self._bound_pod(namespace, account, spec.get("boundObjectRef"))
        token, until = self._identity.accounts.issue(
            account, min(seconds, _MAX_SECONDS), audiences=tuple(spec.get("audiences") or ()), pod=pod
        )
        expires = format_time(datetime.fromtimestamp(until, UTC))
        made = format_time(datetime.fromtimestamp(self._clock(), UTC))
        answer: Object = {
            **body,
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {"name": name, "namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": made},
            "spec": {"audiences": [ISSUER], "expirationSeconds": seconds, "boundObjectRef": None, **spec},
            "status": {"token": token, "expirationTimestamp": expires},
        }
        return json_response(answer, 201)

    def _bound_pod(self, namespace: str, account: Object, reference: Object | None) -> Object | None:
        if not reference or reference.get("kind") != "Pod":
            return None
        name = reference.get("name", "")
        pod = self._find("pods", namespace, name)
        if pod is None:
            raise ApiFailure(404, "NotFound", f'pods "{name}" not found', {"name": name, "kind": "pods"})
        if reference.get("uid") not in (None, "", pod["metadata"]["uid"]):
            text = f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record"
            raise ApiFailure(409, "Conflict", f'Operation cannot be fulfilled on pods "{name}": {text}')
        wanted = (pod.get("spec") or {}).get("serviceAccountName") or "default"
        mine = account["metadata"]["name"]
        if wanted != mine:
            text = f'cannot bind token for serviceaccount "{mine}" to pod "{name}", which runs as "{wanted}"'
            raise bad_request(text)
        return pod
