"""The virtual resources that answer questions about identity and access.

SubjectAccessReview and its kin (`kubectl auth can-i`), SelfSubjectRulesReview (`--list`), SelfSubjectReview (`auth
whoami`), TokenReview.
"""

from __future__ import annotations

from tinykube.apiserver.account_tokens import ISSUER, InvalidToken
from tinykube.apiserver.authenticator import RequestAuthenticator
from tinykube.apiserver.failure import ApiFailure, Cause, bad_request
from tinykube.apiserver.hooks import Attributes, Object, Review, User
from tinykube.apiserver.rbac import RBAC


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
        return {**obj, "status": {"userInfo": user.info()}}

    async def _token(self, obj: Object, namespace: str, user: User) -> Object:
        spec = obj.get("spec") or {}
        audiences = tuple(spec.get("audiences") or ())
        status: Object
        try:
            if audiences:
                found, common = self._identity.accounts.check(spec.get("token", ""), audiences)
            else:
                found, common = self._identity.who(spec.get("token", "")), (ISSUER,)
            status = {"authenticated": True, "user": found.info(), "audiences": list(common)}
        except InvalidToken as problem:
            status = {"user": {}, "error": str(problem)}
        return {"metadata": {}, **obj, "status": status}
