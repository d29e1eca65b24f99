"""MutatingAdmissionPolicies: changes of objects in CEL, made before any webhook is asked.

An expression constructs a configuration that is merged into the object as server-side apply merges it, or a list of
JSON patches. Each mutation sees what those before it have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kubekit.cel import CelError
from tinykube.apiserver.apply import merge
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.hooks import AdmissionRequest, Object
from tinykube.apiserver.patch import json_patch
from tinykube.apiserver.policies import AdmissionPolicy, Authorize, Binding, BoundPolicies, FindParams, Mutation
from tinykube.apiserver.schema import Schema

# The merge rules of a kind
FindSchema = Callable[[ResourceInfo], Schema]


class MutatingPolicies(BoundPolicies):
    """The MutatingAdmissionPolicies in force."""

    def __init__(self, find_params: FindParams, authorize: Authorize, find_schema: FindSchema) -> None:
        super().__init__(find_params, authorize)
        self._find_schema = find_schema

    def mutate(self, request: AdmissionRequest, namespace: Object | None, *, again: bool = False) -> None:
        """Change `request.obj` as the policies say, of all or (`again`) of those that want to see others' changes.

        Raises ApiFailure where a mutation fails and its policy does not ignore that.
        """
        for policy, binding in self._matching(request, namespace):
            if again and not policy.again:
                continue
            for params in self._params(policy, binding, request):
                self._change(policy, binding, request, namespace, params)

    def _change(
        self,
        policy: AdmissionPolicy,
        binding: Binding,
        request: AdmissionRequest,
        namespace: Object | None,
        params: Object | None,
    ) -> None:
        before = request.obj
        for mutation in policy.mutations:
            scope = self._scope(policy, binding, request, namespace, params)
            if scope is None or request.obj is None:
                return
            try:
                request.obj = self._changed(request.info, request.obj, mutation, mutation.program(scope))
            except (CelError, ApiFailure) as problem:
                request.obj = before  # all mutations of a policy, or none
                if policy.ignores_failure:
                    return
                raise self._denied(policy, binding, request, f"mutation failed: {problem}") from None

    def _changed(self, info: ResourceInfo, obj: Object, mutation: Mutation, value: Any) -> Object:
        if not mutation.applied:
            return _object(json_patch(obj, value))
        return _object(merge(obj, _object(value), self._find_schema(info)))


def _object(value: Any) -> Object:
    if not isinstance(value, dict):
        raise CelError("must evaluate to an object")
    return value
