"""The API server in this process, asked through its ASGI face: every test sees what a client would see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tinykube.apiserver import Registry
from tinykube.apiserver.rest import Rest

Object = dict[str, Any]
START = 1_800_000_000  # 2027-01-15T08:00:00Z

PATCH = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Answer:
    def __init__(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.status, self.headers, self.data = status, headers, data

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def message(self) -> str:
        return str(self.json["message"])


class Watch:
    """An open watch; `next` gives the next event, `wait_closed` waits for its end."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Object | None] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def next(self) -> tuple[str, Object]:
        event = await asyncio.wait_for(self.events.get(), 5)
        assert event is not None, "the watch has ended"
        return event["type"], event["object"]

    async def names(self, count: int) -> list[tuple[str, str]]:
        found = [await self.next() for _ in range(count)]
        return [(kind, obj["metadata"]["name"]) for kind, obj in found]

    def quiet(self) -> bool:
        return self.events.empty()

    async def ended(self) -> None:
        assert self.task is not None
        await asyncio.wait_for(self.task, 5)

    async def close(self) -> None:
        self.gone.set()
        await self.ended()


class Api:
    """Requests to one API server. `clock` may be moved."""

    def __init__(self) -> None:
        self.time = float(START)
        self.registry = Registry(clock=lambda: self.time)
        self.app = Rest(self.registry)
        self.watches: list[Watch] = []

    def _scope(self, method: str, path: str, params: dict[str, str], headers: dict[str, str]) -> Object:
        pairs = {"user-agent": "test/1", "accept": "application/json", **headers}
        return {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": urlencode(params, quote_via=quote).encode(),
            "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
        }

    async def __call__(
        self, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None, **params: object
    ) -> Answer:
        """`body` goes as JSON, bytes as they are; further keywords are query parameters."""
        if isinstance(body, bytes):
            data = body
        else:
            data = b"" if body is None else json.dumps(body).encode()
        heads = {"content-type": "application/json", **(headers or {})}
        sent: list[Any] = []

        async def receive() -> Object:
            return {"type": "http.request", "body": data}

        async def send(message: Any) -> None:
            sent.append(message)

        query = {name: str(value) for name, value in params.items()}
        await self.app(self._scope(method, path, query, heads), receive, send)
        head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], head, b"".join(message.get("body", b"") for message in sent[1:]))

    async def patch(self, path: str, body: object, type: str = "merge", **params: object) -> Answer:
        return await self("PATCH", path, body, headers={"content-type": PATCH[type]}, **params)

    async def create(self, path: str, body: object, **params: object) -> Object:
        answer = await self("POST", path, body, **params)
        assert answer.status == 201, answer.data
        made: Object = answer.json
        return made

    async def get(self, path: str, **params: object) -> Object:
        answer = await self("GET", path, **params)
        assert answer.status == 200, answer.data
        found: Object = answer.json
        return found

    async def watch(self, path: str, *, headers: dict[str, str] | None = None, **params: object) -> Watch:
        """Returns when the server has begun to answer."""
        watch = Watch()
        begun = asyncio.Event()
        self.watches.append(watch)
        query = {"watch": "true", **{name: str(value) for name, value in params.items()}}
        scope = self._scope("GET", path, query, headers or {})

        async def receive() -> Object:
            await watch.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            begun.set()
            for line in message.get("body", b"").splitlines():
                watch.events.put_nowait(json.loads(line))

        async def run() -> None:
            await self.app(scope, receive, send)
            watch.events.put_nowait(None)

        watch.task = asyncio.create_task(run())
        await asyncio.wait_for(begun.wait(), 5)
        return watch


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    made = Api()
    yield made
    made.app.close()
    for watch in made.watches:
        await watch.close()


@pytest.fixture
def pod() -> Callable[..., Object]:
    def make(name: str = "p", **spec: Any) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "busybox:1"}], **spec},
        }

    return make
