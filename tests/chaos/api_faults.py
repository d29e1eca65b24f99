"""Faults of an API server: an ASGI application around another one, controlled by a file that a run rewrites.

The administrator's requests pass, so that the run itself sees the truth.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, MutableMapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LOOK_SECONDS: Final = 0.2
BUSY: Final = (429, (b"retry-after", b"1"))
BROKEN: Final = (500, (b"x-chaos", b"error"))


class ApiFault(StrEnum):
    """The way in which a request fails."""

    DELAY = "delay"  # it is answered late
    ERROR = "error"  # 500, and nothing is done
    BUSY = "busy"  # 429, and nothing is done
    CUT = "cut"  # the connection ends before the answer, and nothing is done
    LOST = "lost"  # it is done, and the connection ends before the answer
    TWICE = "twice"  # it is done twice, as by a client that repeats it after a lost answer


class ApiFaults(msgspec.Struct, frozen=True):
    """The faults of a `part` (0 to 1) of the requests; `seconds` is the longest delay, `spared` one bearer token."""

    kinds: tuple[ApiFault, ...] = ()
    part: float = 0.0
    seconds: float = 1.0
    spared: str = ""


class FaultyServer:
    """The application `app`, with the faults that `file` has at that moment; none without the file."""

    def __init__(self, app: Any, file: Path, choice: random.Random | None = None) -> None:
        self._app = app
        self._file = file
        self._random = choice or random.Random()
        self._faults = ApiFaults()
        self._looked = -LOOK_SECONDS

    def close(self) -> None:
        self._app.close()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        fault = self._chosen(scope)
        if fault is ApiFault.DELAY:
            await asyncio.sleep(self._random.uniform(0, self._faults.seconds))
        elif fault is ApiFault.ERROR:
            return await _answer(send, *BROKEN)
        elif fault is ApiFault.BUSY:
            return await _answer(send, *BUSY)
        elif fault is ApiFault.CUT:
            return await _cut(send)
        elif fault in (ApiFault.LOST, ApiFault.TWICE):
            body = await _whole(receive)
            await self._app(scope, _again(body), _nowhere)
            if fault is ApiFault.LOST:
                return await _cut(send)
            receive = _again(body)
        await self._app(scope, receive, send)
        return None

    def _chosen(self, scope: MutableMapping[str, Any]) -> ApiFault | None:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked, self._faults = now, read(self._file)
        faults = self._faults
        if scope["type"] != "http" or not faults.kinds or self._random.random() >= faults.part:
            return None
        if dict(scope["headers"]).get(b"authorization", b"") == f"Bearer {faults.spared}".encode():
            return None
        fault = self._random.choice(faults.kinds)
        reads = scope.get("method") in ("GET", "HEAD")
        return None if reads and fault in (ApiFault.LOST, ApiFault.TWICE) else fault


def read(file: Path) -> ApiFaults:
    """Return the faults of a file; none where it is absent."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=ApiFaults)
    except (FileNotFoundError, msgspec.DecodeError):
        return ApiFaults()


async def _answer(send: Send, status: int, header: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [header, (b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def _cut(send: Send) -> None:
    """End the connection: the answer is shorter than it says, so the server closes it."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})
    await send({"type": "http.response.body", "body": b"{", "more_body": True})


async def _nowhere(message: Message) -> None:
    """Take an answer that no client gets."""


async def _whole(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _again(body: bytes) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
