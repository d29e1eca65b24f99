"""A small adapter of metrics for scenarios: an HTTPS server with the custom and the external metrics API."""

from __future__ import annotations

import contextlib
import datetime
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kubekit.kube.certificates import Validity, issue, make_authority

CUSTOM = "custom.metrics.k8s.io/v1beta2"
EXTERNAL = "external.metrics.k8s.io/v1beta1"
TIME = "2026-01-01T00:00:00Z"


class MetricsAdapter:
    """`custom` maps what follows the namespace in a path to (name, value) of objects; `external` a metric to values."""

    def __init__(self) -> None:
        self.custom: dict[str, list[tuple[str, str]]] = {}
        self.external: dict[str, list[str]] = {}
        self.port = 0

    def page(self, path: str) -> Any:
        """Return the document of a path; None where there is none."""
        parts = path.strip("/").split("/")
        version = "/".join(parts[1:3])
        if len(parts) == 3:
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": []}
        rest = "/".join(parts[5:])
        if version == CUSTOM and rest in self.custom:
            metric = {"name": parts[-1], "selector": None}
            items = [
                {"describedObject": {"kind": "X", "name": name}, "metric": metric, "timestamp": TIME, "value": value}
                for name, value in self.custom[rest]
            ]
            return {"kind": "MetricValueList", "apiVersion": CUSTOM, "metadata": {}, "items": items}
        if version == EXTERNAL and rest in self.external:
            values = [
                {"metricName": rest, "metricLabels": {}, "timestamp": TIME, "value": value}
                for value in self.external[rest]
            ]
            return {"kind": "ExternalMetricValueList", "apiVersion": EXTERNAL, "metadata": {}, "items": values}
        return None


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[MetricsAdapter]:
    """Run an adapter on a port of its own, with a certificate that no one knows."""
    adapter = MetricsAdapter()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = adapter.page(unquote(urlsplit(self.path).path))
            missing = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 404}
            missing |= {"reason": "NotFound", "message": "the adapter has no such metric"}
            body = json.dumps(missing if page is None else page).encode()
            self.send_response(404 if page is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    now = datetime.datetime.now(datetime.UTC)
    validity = Validity(now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=1))
    pair = issue(make_authority("adapter", validity), "localhost", validity, hosts=("localhost",))
    files = directory / "adapter.crt", directory / "adapter.key"
    files[0].write_bytes(pair.certificate_pem)
    files[1].write_bytes(pair.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    adapter.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield adapter
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
