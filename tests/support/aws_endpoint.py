"""An AWS endpoint on this machine: moto's server over HTTP, with faults and EC2's own habits in front.

moto launches each instance of a request. In front of it `AwsEndpoint` has missing capacity, client tokens that
are honoured, spot prices, throttling, refusals, lost answers, and instances that are listed late. State is
moto's, of the whole process: one endpoint at a time.
"""

from __future__ import annotations

import io
import json
import socket
import threading
import urllib.parse
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from xml.sax.saxutils import escape

import boto3
import msgspec
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

REGION: Final = "us-east-1"
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": REGION}
_XMLNS: Final = 'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"'
_OVERRIDE: Final = "LaunchTemplateConfigs.1.Overrides."
_LOOK_SECONDS: Final = 0.01  # until the server sees that it is to end; without it, half a second for each test
Start = Callable[..., Any]


class PlannedFault(msgspec.Struct):
    """The fault of the next `times` calls of an action: `code` refuses them; `lose` drops the connection.

    `lose` is request (before the action) or answer (after it).
    """

    action: str
    times: int
    code: str = ""
    message: str = ""
    status: int = 400
    lose: str = ""


class AwsEndpoint:
    """The endpoint. `made` lists the actions that arrived, with those that a fault answered."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.closed: set[tuple[str, str, str]] = set()  # (type, zone, capacity type) that EC2 lacks
        self.refusal = "InsufficientInstanceCapacity"
        self.spot_prices: dict[str, float] = {}  # type -> dollars an hour
        self.products: list[dict[str, Any]] = []  # of the price list
        self.parameters: dict[str, str] = {}  # public ones of SSM; moto refuses to have them written
        # Types of the region; empty for all of moto's, which take seconds to write and to read.
        self.types: tuple[str, ...] = ()
        self.statuses: list[dict[str, Any]] = []  # of instances with trouble: id, and check with its age or event code
        self.hidden = 0  # the next answers of DescribeInstances that hide the newest instances
        self.url = ""
        self._faults: list[PlannedFault] = []
        self._fleets: dict[str, tuple[str, bytes]] = {}  # client token -> parameters, answer
        self._lock = threading.Lock()
        self._moto = DomainDispatcherApplication(create_backend_app)

    def plan(
        self, action: str, *, code: str = "", message: str = "", status: int = 400, lose: str = "", times: int = 1
    ) -> None:
        """Plan a fault."""
        self._faults.append(PlannedFault(action, times, code, message, status, lose))

    def calm(self) -> None:
        """Forget all faults."""
        self._faults.clear()
        self.closed.clear()
        self.hidden = 0

    def reset(self) -> None:
        """Forget everything that was made, and what arrived."""
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")).close()
        self.made.clear()
        self._fleets.clear()
        self.statuses.clear()
        self.calm()

    def client(self, service: str) -> Any:
        """Return a client of the endpoint as any user has it."""
        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        form = dict(urllib.parse.parse_qsl(body.decode())) if not target else {}
        action = target.rpartition(".")[2] or form.get("Action", "")
        with self._lock:
            self.made.append(action)
            fault = self._take(action)
        if fault is not None and fault.code:
            return _answer(start, _refusal(fault.code, fault.message, bool(target)), f"{fault.status} Fault")
        if fault is not None and fault.lose == "request":
            return _drop(environ)
        answer = self._served(action, form, body, environ, start)
        if fault is not None and fault.lose == "answer":
            return _drop(environ)
        return answer

    def _take(self, action: str) -> PlannedFault | None:
        for fault in self._faults:
            if fault.action == action and fault.times:
                fault.times -= 1
                return fault
        return None

    def _served(
        self, action: str, form: dict[str, str], body: bytes, environ: dict[str, Any], start: Start
    ) -> Iterable[bytes]:
        if action == "CreateFleet":
            return self._create_fleet(form, environ, start)
        if action == "DescribeSpotPriceHistory":
            return _answer(start, self._spot_history(form))
        if action == "DescribeInstanceStatus":
            return _answer(start, self._instance_statuses(form))
        if action == "GetParameter" and (name := json.loads(body)["Name"]) in self.parameters:
            parameter = {"Name": name, "Type": "String", "Value": self.parameters[name]}
            return _answer(start, json.dumps({"Parameter": parameter}).encode(), kind="application/x-amz-json-1.1")
        if action == "GetProducts":
            found = {"FormatVersion": "aws_v1", "PriceList": [json.dumps(product) for product in self.products]}
            return _answer(start, json.dumps(found).encode(), kind="application/x-amz-json-1.1")
        if action == "DescribeInstanceTypes" and self.types:
            named = {f"InstanceType.{number}": name for number, name in enumerate(self.types, 1)}
            return self._forward(urllib.parse.urlencode(form | named).encode(), environ, start)
        if action == "DescribeInstances" and self.hidden:
            self.hidden -= 1
            return _answer(
                start, f"<DescribeInstancesResponse {_XMLNS}><reservationSet/></DescribeInstancesResponse>".encode()
            )
        return self._forward(body, environ, start)

    def _forward(self, body: bytes, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        environ = environ | {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return self._moto(environ, start)  # type: ignore[no-any-return]

    def _create_fleet(self, form: dict[str, str], environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        token = form.get("ClientToken", "")
        parameters = urllib.parse.urlencode(sorted(form.items()))
        with self._lock:
            if token and token in self._fleets:
                before, answer = self._fleets[token]
                if before != parameters:
                    text = "Client token already used before with other parameters"
                    return _answer(start, _refusal("IdempotentParameterMismatch", text, False), "400 Bad Request")
                return _answer(start, answer)
            capacity_type = form["TargetCapacitySpecification.DefaultTargetCapacityType"]
            rest, refused = self._divided(form, capacity_type)
            if not any(key.startswith(_OVERRIDE) for key in rest):
                answer = _no_fleet(self.refusal, capacity_type, refused)
            else:
                statuses: list[str] = []
                body = urllib.parse.urlencode(rest).encode()
                answer = b"".join(self._forward(body, environ, lambda status, *_: statuses.append(status)))
                if not statuses[0].startswith("200"):
                    return _answer(start, answer, statuses[0])
            if token:
                self._fleets[token] = (parameters, answer)
        return _answer(start, answer)

    def _divided(self, form: dict[str, str], capacity_type: str) -> tuple[dict[str, str], list[dict[str, str]]]:
        """Return the request without the overrides that have no capacity, and those."""
        overrides: dict[int, dict[str, str]] = defaultdict(dict)
        rest = {}
        for key, value in form.items():
            if key.startswith(_OVERRIDE):
                number, _, name = key.removeprefix(_OVERRIDE).partition(".")
                overrides[int(number)][name] = value
            else:
                rest[key] = value
        refused, had = [], 0
        for _, override in sorted(overrides.items()):
            place = (override["InstanceType"], override["AvailabilityZone"], capacity_type)
            if place in self.closed:
                refused.append(override)
                continue
            had += 1
            rest |= {f"{_OVERRIDE}{had}.{name}": value for name, value in override.items()}
        return rest, refused

    def _instance_statuses(self, form: dict[str, str]) -> bytes:
        """Those that a request's one filter selects: by a check that fails, or by an event's code."""
        asked = form["Filter.1.Name"]
        values = {value for key, value in form.items() if key.startswith("Filter.1.Value.")}
        items = ""
        for one in self.statuses:
            if asked == "event.code" and one.get("event") in values:
                event = f"<code>{one['event']}</code><description>{one.get('description', '')}</description>"
                part = f"<eventsSet><item>{event}</item></eventsSet>"
            elif asked == f"{one.get('check')}-status.status":
                name, since = f"{one['check']}Status", one["since"]
                detail = f"<name>reachability</name><status>failed</status><impairedSince>{since}</impairedSince>"
                part = f"<{name}><status>impaired</status><details><item>{detail}</item></details></{name}>"
            else:
                continue
            items += f"<item><instanceId>{one['id']}</instanceId>{part}</item>"
        name = "DescribeInstanceStatusResponse"
        return f"<{name} {_XMLNS}><instanceStatusSet>{items}</instanceStatusSet></{name}>".encode()

    def _spot_history(self, form: dict[str, str]) -> bytes:
        items = "".join(
            f"<item><instanceType>{machine}</instanceType><productDescription>Linux/UNIX</productDescription>"
            f"<spotPrice>{price:.6f}</spotPrice><timestamp>2026-01-01T00:00:00.000Z</timestamp>"
            f"<availabilityZone>{REGION}{letter}</availabilityZone></item>"
            for machine, price in self.spot_prices.items()
            for letter in "abc"
        )
        name = "DescribeSpotPriceHistoryResponse"
        return f"<{name} {_XMLNS}><spotPriceHistorySet>{items}</spotPriceHistorySet></{name}>".encode()


def _drop(environ: dict[str, Any]) -> Iterable[bytes]:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError


def _answer(start: Start, body: bytes, status: str = "200 OK", kind: str = "text/xml") -> Iterable[bytes]:
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def _refusal(code: str, message: str, is_json: bool) -> bytes:
    if is_json:
        return json.dumps({"__type": code, "message": message}).encode()
    error = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    return f"<Response><Errors>{error}</Errors><RequestID>{uuid.uuid4()}</RequestID></Response>".encode()


def _no_fleet(code: str, capacity_type: str, refused: list[dict[str, str]]) -> bytes:
    items = "".join(
        f"<item><errorCode>{code}</errorCode><errorMessage>We do not have {override['InstanceType']}</errorMessage>"
        f"<lifecycle>{capacity_type}</lifecycle><launchTemplateAndOverrides><overrides>"
        f"<instanceType>{override['InstanceType']}</instanceType><subnetId>{override['SubnetId']}</subnetId>"
        f"<availabilityZone>{override['AvailabilityZone']}</availabilityZone></overrides></launchTemplateAndOverrides></item>"
        for override in refused
    )
    parts = f"<fleetId>fleet-{uuid.uuid4()}</fleetId><errorSet>{items}</errorSet><fleetInstanceSet/>"
    return f"<CreateFleetResponse {_XMLNS}>{parts}</CreateFleetResponse>".encode()


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Write nothing: each call would be a line."""


@contextmanager
def aws_endpoint() -> Iterator[AwsEndpoint]:
    """Serve an endpoint. It begins with what the process's last endpoint left in moto, until `reset`."""
    endpoint = AwsEndpoint()
    server = make_server("127.0.0.1", 0, endpoint, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(_LOOK_SECONDS,), daemon=True)
    thread.start()
    endpoint.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
