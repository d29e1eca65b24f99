"""Each fault of the API server: what is done, and what the client gets."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.chaos.api_faults import ApiFault, ApiFaults, FaultyServer


class Server:
    """Answers 201 to everything, and counts."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def close(self) -> None:
        """Do nothing."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


async def answered(
    folder: Path, kind: ApiFault, method: str = "POST", token: str = "theirs"
) -> tuple[list[bytes], list[dict[str, Any]]]:
    """The bodies that were done, and the messages of the answer."""
    (folder / "api").write_bytes(msgspec.json.encode(ApiFaults(kinds=(kind,), part=1.0, seconds=0.0, spared="admin")))
    parts = [{"body": b"a", "more_body": True}, {"body": b"b"}] if method == "POST" else [{"body": b""}]
    sent: list[dict[str, Any]] = []
    server = Server()

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "headers": [(b"authorization", f"Bearer {token}".encode())]}
    await FaultyServer(server, folder / "api", random.Random(1))(scope, receive, send)
    return server.bodies, sent


@pytest.mark.parametrize(
    ("kind", "done", "status", "whole"),
    [
        (ApiFault.DELAY, [b"a"], 201, True),
        (ApiFault.ERROR, [], 500, True),
        (ApiFault.BUSY, [], 429, True),
        (ApiFault.CUT, [], 200, False),
        (ApiFault.LOST, [b"ab"], 200, False),
        (ApiFault.TWICE, [b"ab", b"ab"], 201, True),
    ],
)
async def test_a_write(tmp_path: Path, kind: ApiFault, done: list[bytes], status: int, whole: bool) -> None:
    bodies, [start, body] = await answered(tmp_path, kind)
    assert (bodies, start["status"], not body.get("more_body")) == (done, status, whole)


@pytest.mark.parametrize("kind", [ApiFault.LOST, ApiFault.TWICE])
async def test_a_read_is_done_once(tmp_path: Path, kind: ApiFault) -> None:
    bodies, [start, _] = await answered(tmp_path, kind, "GET")
    assert (bodies, start["status"]) == ([b""], 201)


async def test_the_administrator_is_spared(tmp_path: Path) -> None:
    bodies, [start, _] = await answered(tmp_path, ApiFault.ERROR, token="admin")
    assert (len(bodies), start["status"]) == (1, 201)
