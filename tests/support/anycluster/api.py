"""Plain HTTP to an API server under one identity of a kubeconfig: every status, header and body as it came."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import yaml

Object = dict[str, Any]
PATIENCE_S: Final = 60.0
TYPES: Final = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Answer:
    """`status`, `headers` (lower case), `body` (data where it is JSON, else text), and all `warnings` of the answer."""

    def __init__(self, status: int, headers: dict[str, str], body: Any, warnings: Sequence[str] = ()) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.warnings = list(warnings)

    def __getitem__(self, key: str) -> Any:
        return self.body[key]

    @property
    def seen(self) -> Object:
        """Return the part of an answer that a transcript records."""
        seen: Object = {"status": self.status, "body": self.body}
        if warning := self.headers.get("warning"):
            seen["warning"] = warning
        return seen


class Access:
    """The address of an API server and the credentials for it, from a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        context = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
        cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == context["cluster"])
        user = next(u["user"] for u in config["users"] if u["name"] == context["user"])
        self.kubeconfig = kubeconfig
        self.url: str = cluster["server"]
        authority = _data(cluster, "certificate-authority")
        self.authority_pem = authority.decode() if authority else ""
        self.context = ssl.create_default_context(cadata=self.authority_pem or None)
        self.headers: dict[str, str] = {}
        if certificate := _data(user, "client-certificate"):
            with tempfile.NamedTemporaryFile() as both:
                both.write(certificate + b"\n" + (_data(user, "client-key") or b""))
                both.flush()
                self.context.load_cert_chain(both.name)
        if token := user.get("token"):
            self.headers["Authorization"] = f"Bearer {token}"
        if name := user.get("as"):
            self.headers["Impersonate-User"] = name


def _data(entry: Object, name: str) -> bytes | None:
    if inline := entry.get(f"{name}-data"):
        return base64.b64decode(inline)
    return Path(entry[name]).read_bytes() if entry.get(name) else None


class Api:
    """One connection. Not for several threads. With a `token`, that says who asks, and nothing else does."""

    def __init__(self, kubeconfig: Path, *, agent: str = "conformance", token: str = "") -> None:
        self.access = Access(kubeconfig)
        if token:
            self.access.context = ssl.create_default_context(cadata=self.access.authority_pem or None)
            self.access.headers = {"Authorization": f"Bearer {token}"}
        self._agent = agent
        self._connection: http.client.HTTPSConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connect(self) -> http.client.HTTPSConnection:
        parts = urlsplit(self.access.url)
        assert parts.hostname is not None, "a kubeconfig's server is a URL"
        return http.client.HTTPSConnection(
            parts.hostname, parts.port or 443, context=self.access.context, timeout=PATIENCE_S
        )

    def send(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        body: Any = None,
        *,
        type: str = "application/json",
        accept: str = "application/json",
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> http.client.HTTPResponse:
        target = f"{path}?{urlencode(query)}" if query else path
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"User-Agent": f"{self._agent}/1", "Accept": accept, **self.access.headers, **(headers or {})}
        if data is not None:
            sent["Content-Type"] = type
        connection.request(method, target, data, sent)
        return connection.getresponse()

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        """One request; what is not 2xx is an answer too."""
        kept = self._connection is not None
        while True:
            connection = self._connection or self.connect()
            self._connection = connection
            try:
                response = self.send(connection, method, path, body, **more)
                data = response.read()
                break
            except (http.client.HTTPException, OSError):  # a kept connection that the server has ended
                self.close()
                if not kept:
                    raise
                kept = False
        headers = {name.lower(): value for name, value in response.getheaders()}
        if headers.get("connection") == "close":
            self.close()
        text = data.decode(errors="replace")
        content = json.loads(text) if text[:1] in "{[" and text else text
        return Answer(response.status, headers, content, response.headers.get_all("warning") or ())

    def get(self, path: str, **more: Any) -> Answer:
        return self.call("GET", path, **more)

    def create(self, path: str, body: Any, **more: Any) -> Answer:
        return self.call("POST", path, body, **more)

    def replace(self, path: str, body: Any, **more: Any) -> Answer:
        return self.call("PUT", path, body, **more)

    def patch(self, path: str, body: Any, how: str = "merge", **more: Any) -> Answer:
        """`how` is one of json, merge, strategic, apply."""
        return self.call("PATCH", path, body, type=TYPES[how], **more)

    def delete(self, path: str, body: Any = None, **more: Any) -> Answer:
        return self.call("DELETE", path, body, **more)

    @contextlib.contextmanager
    def watch(self, path: str, **query: Any) -> Iterator[Iterator[Object]]:
        """The events of a watch, on a connection of its own; a refusal is one event, the Status."""
        connection = self.connect()
        try:
            response = self.send(connection, "GET", path, watch="true", **query)
            yield (json.loads(line) for line in iter(response.readline, b"") if line.strip())
        finally:
            connection.close()

    def until(self, path: str, condition: Callable[[Object], object], *, patience: float = PATIENCE_S) -> Object:
        """The object at `path` once `condition` holds of it; an absent one is {}."""
        collection, _, name = path.rpartition("/")
        deadline = time.monotonic() + patience
        last: Object = {}

        def one(items: list[Object]) -> bool:
            nonlocal last
            last = items[0] if items else {}
            return bool(condition(last))

        self._until(collection, one, deadline, fieldSelector=f"metadata.name={name}")
        return last

    def until_list(
        self, path: str, condition: Callable[[list[Object]], object], *, patience: float = PATIENCE_S, **query: Any
    ) -> list[Object]:
        """The objects of a collection once `condition` holds of them, by name."""
        found: list[Object] = []

        def all_of(items: list[Object]) -> bool:
            found[:] = sorted(items, key=lambda item: item["metadata"]["name"])
            return bool(condition(found))

        self._until(path, all_of, time.monotonic() + patience, **query)
        return found

    def _until(self, path: str, condition: Callable[[list[Object]], bool], deadline: float, **query: Any) -> None:
        while True:
            answer = self.get(path, **query)
            assert answer.status == 200, f"GET {path}: {answer.body}"
            if condition(answer["items"]):
                return
            left = deadline - time.monotonic()
            assert left > 0, f"{path} did not come to what was waited for: {json.dumps(answer['items'])[:4000]}"
            version = answer["metadata"]["resourceVersion"]
            # Any change, or the end of patience: look again.
            with self.watch(path, resourceVersion=version, timeoutSeconds=max(1, int(left)), **query) as events:
                next(events, None)
