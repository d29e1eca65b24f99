"""Users of client certificates."""

from __future__ import annotations

import json
from typing import Any

from tinykube.apiserver import Registry
from tinykube.apiserver.asgi import CERTIFICATE_SUBJECT
from tinykube.apiserver.extensions import install
from tinykube.apiserver.rest import Rest


async def test_a_certificate_of_several_names_is_that_of_the_last() -> None:
    registry = Registry()
    install(registry)
    names = (("organizationName", "system:masters"), ("commonName", "first"), ("commonName", "last"))
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, object]:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await Rest(registry)({**scope, CERTIFICATE_SUBJECT: tuple((name,) for name in names)}, receive, send)
    user = json.loads(sent[1]["body"])["status"]["userInfo"]
    assert (user["username"], user["groups"]) == ("last", ["system:masters", "system:authenticated"])
