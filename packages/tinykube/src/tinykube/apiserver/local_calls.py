"""Reads the API from inside the API server's process, through the same paths as any client.

So a caller reads what clients read: what is served here, what a CRD serves, and what another API server serves in
place of it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from kubekit.documents import DocumentError, decode_json
from tinykube.apiserver.asgi import CERTIFICATE_SUBJECT, Message
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.rest import Rest

_LONGEST: Final = 16 << 20
#: What Kubernetes' clients say of an answer that is no Status.
_WORDS: Final = {
    400: "the server rejected our request for an unknown reason",
    404: "the server could not find the requested resource",
    503: "the server is currently unable to handle the request",
    504: "the server was unable to return a response in the time allotted, but may still be processing the request",
}


class _Answer(msgspec.Struct):
    status: int = 0
    body: bytes = b""


class LocalReader:
    """Reads as one user. `get` returns the parsed answer."""

    def __init__(self, registry: Registry, user: str) -> None:
        self._rest = Rest(registry)
        self._subject = ((("commonName", user),),)

    async def get(self, path: str, query: dict[str, str], subject: str) -> Any:
        """Return the JSON of an answer.

        Args:
            path: as in a URL, not encoded.
            subject: the resource that a message names, such as `pods.metrics.k8s.io`.

        Raises ApiFailure with the words of Kubernetes' clients, also for an answer that is no JSON.
        """
        answer = _Answer()

        asked = iter(({"type": "http.request", "body": b"", "more_body": False},))

        async def receive() -> Message:
            if (message := next(asked, None)) is not None:
                return message
            gone: Message = await asyncio.get_running_loop().create_future()  # this client does not go away
            return gone

        async def send(message: Message) -> None:
            answer.status = message.get("status", answer.status)
            answer.body += message.get("body", b"")

        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": urlencode(query).encode(),
            "headers": [(b"accept", b"application/json"), (b"host", b"kubernetes.default.svc")],
            CERTIFICATE_SUBJECT: self._subject,
        }
        await self._rest(scope, receive, send)
        try:
            body = decode_json(answer.body, limit=_LONGEST)
        except DocumentError:
            body = None
        if answer.status == 200 and isinstance(body, dict):
            return body
        if isinstance(body, dict) and body.get("kind") == "Status" and body.get("message"):
            raise ApiFailure(answer.status, str(body.get("reason") or ""), str(body["message"]))
        words = _WORDS.get(answer.status)
        if words is None:
            shown = answer.body[:200].decode(errors="replace").strip()
            words = f'an error on the server ("{shown}") has prevented the request from succeeding'
        raise ApiFailure(answer.status, "", f"{words} (get {subject})")
