"""Mutating and validating webhooks: which are asked, how they are asked, what their answers mean.

Calls go out from threads (`httpspool.py`) with the caBundle of the configuration; a service is
reached at the address of a ready pod behind it, under its own name as far as TLS is concerned.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import logging
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from kubekit.cel import CelError, CelProgram, CelSyntaxError
from kubekit.documents import DocumentError, decode_json
from tinykube.apiserver.asgi import MAX_BODY_BYTES
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.hooks import AdmissionRequest, Object
from tinykube.apiserver.httpspool import HttpsPool, ServerAddress
from tinykube.apiserver.matching import Match, parse_match, review_request
from tinykube.apiserver.patch import json_patch

logger = logging.getLogger("tinykube.apiserver")

_THREADS: Final = 32
_VARIABLES: Final = ("object", "oldObject", "request")

# (namespace, service name, port) -> the address behind it, None when nothing is ready there
Resolve = Callable[[str, str, int], tuple[str, int] | None]


class Webhook(msgspec.Struct, frozen=True):
    """One webhook of a configuration, compiled."""

    name: str
    match: Match
    conditions: tuple[CelProgram, ...]
    client: Object
    ignores_failure: bool
    timeout_seconds: float
    has_side_effects: bool
    again: bool  # reinvocationPolicy: IfNeeded


class CallFailed(Exception):
    """A webhook could not be asked or answered nonsense."""


def compile_webhooks(configuration: Object) -> list[Webhook]:
    """Raises CelSyntaxError for a match condition that does not compile."""
    return [
        Webhook(
            spec["name"],
            parse_match(spec, "rules"),
            tuple(CelProgram(c["expression"], _VARIABLES) for c in spec.get("matchConditions") or ()),
            spec["clientConfig"],
            spec.get("failurePolicy") == "Ignore",
            float(spec.get("timeoutSeconds") or 10),
            spec.get("sideEffects") not in ("None", "NoneOnDryRun"),
            spec.get("reinvocationPolicy") == "IfNeeded",
        )
        for spec in configuration.get("webhooks") or ()
    ]


class Webhooks:
    """The webhooks in force."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._mutating: list[Webhook] = []
        self._validating: list[Webhook] = []
        self._pool = HttpsPool()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="webhook")

    def load(self, mutating: Iterable[Object], validating: Iterable[Object]) -> None:
        """Take the stored configurations as they are now, in the order of their names."""
        self._mutating = [hook for configuration in mutating for hook in _compiled(configuration)]
        self._validating = [hook for configuration in validating for hook in _compiled(configuration)]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.close()

    def covers(self, info: ResourceInfo, operation: str, subresource: str) -> bool:
        return any(hook.match.covers(info, operation, subresource) for hook in (*self._mutating, *self._validating))

    async def mutate(self, request: AdmissionRequest, namespace: Object | None) -> None:
        """Changes `request.obj` as the webhooks say. A webhook that wants it is called again when later ones changed
        more."""
        changed_after: dict[str, bool] = {}
        for hook in self._mutating:
            if self._asks(hook, request, namespace) and await self._mutate_by(hook, request):
                changed_after = dict.fromkeys(changed_after, True)
            if hook.again:
                changed_after[hook.name] = False
        for hook in self._mutating:
            if changed_after.get(hook.name) and self._asks(hook, request, namespace):
                await self._mutate_by(hook, request)

    async def _mutate_by(self, hook: Webhook, request: AdmissionRequest) -> bool:
        response = await self._call(hook, request)
        if response is None or not response.get("patch"):
            return False
        try:
            operations = decode_json(base64.b64decode(response["patch"]), limit=MAX_BODY_BYTES)
            patched = json_patch(request.obj or {}, operations)
        except (ValueError, TypeError, DocumentError, ApiFailure) as problem:  # a patch that is no base64, or no text
            if hook.ignores_failure:
                return False
            raise _internal(hook, f"the patch cannot be applied: {problem}") from problem
        changed: bool = patched != request.obj
        request.obj = patched
        return changed

    async def validate(self, request: AdmissionRequest, namespace: Object | None) -> None:
        hooks = [hook for hook in self._validating if self._asks(hook, request, namespace)]
        results = await asyncio.gather(*(self._call(hook, request) for hook in hooks), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    @staticmethod
    def _asks(hook: Webhook, request: AdmissionRequest, namespace: Object | None) -> bool:
        if not hook.match.matches(request, namespace):
            return False
        scope = {"object": request.obj, "oldObject": request.old}
        if hook.conditions:
            scope["request"] = review_request(request, "")
        try:
            return all(condition(scope) is True for condition in hook.conditions)
        except CelError as problem:
            if hook.ignores_failure:
                return False
            raise _internal(hook, f"match condition failed: {problem}") from None

    async def _call(self, hook: Webhook, request: AdmissionRequest) -> Object | None:
        """The `response` of an AdmissionReview, None when the failure is ignored. Raises ApiFailure when it denies."""
        if request.dry_run and hook.has_side_effects:
            text = f'admission webhook "{hook.name}" does not support dry run'
            raise ApiFailure(400, "BadRequest", text)
        uid = str(uuid.uuid4())
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {**review_request(request, uid), "object": request.obj, "oldObject": request.old},
        }
        body = msgspec.json.encode(review)
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(self._threads, self._post, hook, body)
            response = _response_of(answer, uid)
        except CallFailed as problem:
            if hook.ignores_failure:
                request.warnings.append(f'failed calling webhook "{hook.name}": {problem}')
                return None
            raise _internal(hook, str(problem)) from problem
        request.warnings.extend(response.get("warnings") or ())
        if not response.get("allowed"):
            raise _denied(hook, response.get("status") or {})
        return response

    def _post(self, hook: Webhook, body: bytes) -> bytes:
        url = hook.client.get("url")
        if url:
            parts = urlsplit(url)
            server, address = parts.hostname or "", (parts.hostname or "", parts.port or 443)
            path = parts.path + (f"?{parts.query}" if parts.query else "")
        else:
            service = hook.client["service"]
            server = f"{service['name']}.{service['namespace']}.svc"
            path = service.get("path") or "/"
            port = service.get("port") or 443
            url = f"https://{server}:{port}{path}"
            found = self._resolve(service["namespace"], service["name"], port)
            if found is None:
                raise CallFailed(f'no endpoints available for service "{service["name"]}"')
            address = found
        try:
            bundle = base64.b64decode(hook.client.get("caBundle") or "").decode()
            target = f"{path or '/'}{'&' if '?' in path else '?'}timeout={hook.timeout_seconds:g}s"
            reply = self._pool.post(ServerAddress(server, address, bundle), target, body, hook.timeout_seconds)
        except (OSError, http.client.HTTPException, ValueError) as problem:
            whole = f"{url}?timeout={hook.timeout_seconds:g}s"
            why = "context deadline exceeded" if isinstance(problem, TimeoutError) else str(problem)
            if isinstance(problem, ConnectionRefusedError):
                why = f"dial tcp {address[0]}:{address[1]}: connect: connection refused"
            raise CallFailed(f'failed to call webhook: Post "{whole}": {why}') from problem
        if reply.status != 200:
            text = 'an error on the server ("unknown") has prevented the request from succeeding'
            raise CallFailed(f"failed to call webhook: {text}")
        return reply.data


def _compiled(configuration: Object) -> list[Webhook]:
    try:
        return compile_webhooks(configuration)
    except CelSyntaxError as problem:
        logger.warning("webhooks of %s are not in force: %s", configuration["metadata"]["name"], problem)
        return []


def _response_of(answer: bytes, uid: str) -> Object:
    try:
        response: Any = decode_json(answer).get("response")
    except (DocumentError, AttributeError) as problem:
        raise CallFailed(f"the answer is no AdmissionReview: {problem}") from problem
    if not isinstance(response, dict):
        raise CallFailed("webhook response is absent")
    if response.get("uid") != uid:
        raise CallFailed(f"expected response.uid={uid}, got {response.get('uid')!r}")
    return response


def _denied(hook: Webhook, status: Object) -> ApiFailure:
    text = f'admission webhook "{hook.name}" denied the request'
    message = status.get("message") or status.get("reason")
    text += f": {message}" if message else " without explanation"
    code = int(status.get("code") or 400)
    reason = status.get("reason") or ("Forbidden" if code == 403 else "")
    return ApiFailure(code if code >= 400 else 400, reason, text, status.get("details"))


def _internal(hook: Webhook, why: str) -> ApiFailure:
    text = f'failed calling webhook "{hook.name}": {why}'
    return ApiFailure(500, "InternalError", f"Internal error occurred: {text}", {"causes": [{"message": text}]})
