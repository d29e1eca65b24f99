"""moto's server as an object that is called with a request, in this process.

moto is not made for several threads, so the caller serialises what changes EC2.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from gpulab.cloud.query import CloudRefusal

_EC2_VERSION: Final = "2016-11-15"
_FAILED: Final = 400


class CloudAnswer(msgspec.Struct, frozen=True):
    """An answer over HTTP."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class MotoApp:
    """moto's WSGI application. It is imported here and not before: that takes a second."""

    def __init__(self, region: str) -> None:
        os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
        from moto.server import DomainDispatcherApplication, create_backend_app

        self._app: Any = DomainDispatcherApplication(create_backend_app)
        self._region = region

    def forward(self, environ: Mapping[str, Any]) -> CloudAnswer:
        """Let moto answer a request of WSGI."""
        from werkzeug.test import run_wsgi_app

        content, status, headers = run_wsgi_app(self._app, dict(environ), buffered=True)
        body = b"".join(_closed(content))
        left = tuple((name, value) for name, value in headers.items() if name.lower() not in _OWN_HEADERS)
        return CloudAnswer(int(status.split()[0]), headers.get("Content-Type", "text/xml"), body, left)

    def call(self, service: str, action: str, parameters: Mapping[str, Any], target: str = "") -> CloudAnswer:
        """Let moto answer a request of this cloud's own.

        Args:
            parameters: a form for EC2; what JSON encodes for a service whose `target` is named, such as AmazonSQS.

        Raises CloudRefusal when moto refuses.
        """
        from werkzeug.datastructures import Headers
        from werkzeug.test import EnvironBuilder

        headers = {
            "Authorization": f"AWS4-HMAC-SHA256 Credential=simulated/20260101/{self._region}/{service}/aws4_request, x"
        }
        if target:
            kind, body = "application/x-amz-json-1.0", msgspec.json.encode(dict(parameters))
            headers["X-Amz-Target"] = f"{target}.{action}"
        else:
            kind = "application/x-www-form-urlencoded; charset=utf-8"
            body = urlencode({"Action": action, "Version": _EC2_VERSION, **parameters}).encode()
        builder = EnvironBuilder(method="POST", path="/", headers=Headers(headers), data=body, content_type=kind)
        try:
            answer = self.forward(builder.get_environ())
        finally:
            builder.close()
        if answer.status >= _FAILED:
            raise CloudRefusal(_between(answer.body, b"Code"), _between(answer.body, b"Message"), answer.status)
        return answer


_OWN_HEADERS: Final = ("content-type", "content-length", "connection", "date", "server", "transfer-encoding")


def _closed(content: Iterable[bytes]) -> list[bytes]:
    try:
        return list(content)
    finally:
        close = getattr(content, "close", None)
        if close is not None:
            close()


def _between(body: bytes, name: bytes) -> str:
    """Return the text of the first element of a name; empty without one."""
    return body.partition(b"<" + name + b">")[2].partition(b"</" + name + b">")[0].decode(errors="replace")
