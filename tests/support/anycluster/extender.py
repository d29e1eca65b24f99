"""A scheduler extender that answers as a scenario says, at the address in the scheduler's configuration."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

SHARE: Final = "conformance.gpuplane.dev/share"
Object = dict[str, Any]
Answer = Callable[[Object], Any]


def configuration(port: int) -> Object:
    """A KubeSchedulerConfiguration. Pods that do not ask for SHARE go their usual way."""
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}/scheduler",
        **{f"{verb}Verb": verb for verb in ("filter", "prioritize", "bind")},
        "weight": 1,
        "httpTimeout": "5s",
        "nodeCacheCapable": True,
        "managedResources": [{"name": SHARE, "ignoredByScheduler": True}],
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"qps": 500, "burst": 1000},
        "extenders": [extender],
    }


class Extender:
    """`answers` by verb take the body that came and give the answer; None is a status 500. `asked` keeps what came."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, Object]] = []

    def about(self, pod: str, verb: str) -> list[Object]:
        """Return the extender's requests about a pod, in order."""
        named = ((body.get("PodName") or body["Pod"]["metadata"]["name"], kind, body) for kind, body in self.asked)
        return [body for name, kind, body in named if (name, kind) == (pod, verb)]


@contextmanager
def serving(port: int) -> Iterator[Extender]:
    extender = Extender()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            verb = self.path.rpartition("/")[2]
            extender.asked.append((verb, body))
            answer = extender.answers[verb](body)
            data = json.dumps(answer).encode()
            self.send_response(500 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="extender")
    thread.start()
    try:
        yield extender
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
