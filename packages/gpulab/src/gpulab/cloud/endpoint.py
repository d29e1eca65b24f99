"""The cloud's endpoint: AWS' requests over HTTP, answered by moto where moto is right, else by this cloud.

Invariants:

- A launch with the client token of an earlier one launches nothing: it has the answer of the earlier one.
- An instance is terminated only when its machine is off.
- Requests of the cloud itself have no faults.
- A change is on disk before its request is answered.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from gpulab.cloud import own_answers
from gpulab.cloud.catalogue import cloud_types, price
from gpulab.cloud.fault_names import LOST_ANSWERS, THROTTLED
from gpulab.cloud.faults import CloudFaults
from gpulab.cloud.fleet import INSTANT, FleetRequest, choose, fleet_answer, read_fleet, run_form
from gpulab.cloud.instances import SHUTTING_DOWN, LabInstance, MotoRegion
from gpulab.cloud.moto_app import CloudAnswer, MotoApp
from gpulab.cloud.notices import state_change
from gpulab.cloud.query import AwsRequest, CloudRefusal, json_error, read_request, xml_answer, xml_error
from gpulab.cloud.region import INTERNAL, CloudRegion
from gpulab.cloud.settings import ACCOUNT
from gpuplane.autoscaler.providers.aws_types import ZONES

log = logging.getLogger("gpulab.cloud")

_XML: Final = "text/xml;charset=UTF-8"
_JSON: Final = "application/x-amz-json-1.1"
_CHANGES: Final = ("RunInstances", "CreateFleet", "TerminateInstances", "StopInstances", "StartInstances")
_LAUNCHES: Final = ("RunInstances", "CreateFleet")
_READS: Final = ("Describe", "Get")
_DROPPED: Final = CloudAnswer(0, "", b"")


class CloudEndpoint:
    """The WSGI application. `changed` is called, on any thread, after an instance may have begun or ended.

    `machines` has the ids of the instances whose machine is on; the booter changes it under the lock.
    """

    def __init__(
        self,
        region: str,
        faults: CloudFaults,
        clock: Callable[[], float],
        changed: Callable[[], None],
        control: Callable[[str, str, bytes], CloudAnswer],
    ) -> None:
        self.lock = threading.RLock()
        self.region = region
        self.faults = faults
        self.machines: set[str] = set()
        self.made: CloudRegion | None = None
        self.keep: Callable[[], None] = _keep_nothing  # called under the lock after each change
        self.restart: Callable[[str], None] = _restart_nothing  # called under the lock for each instance
        self._clock = clock
        self._changed = changed
        self._control = control
        self._moto = MotoApp(region)
        self._state = MotoRegion(ACCOUNT, region)
        self._launched: dict[str, tuple[bytes, bytes]] = {}  # client token -> (digest of the request, answer)
        self._fleets = 0
        self._restrict()

    def _restrict(self) -> None:
        lacking = self._state.restrict(cloud_types(), ZONES)
        if lacking:
            log.warning("EC2 does not describe types=%s", ",".join(sorted(lacking)))

    def kept(self) -> dict[str, Any]:
        """Return what `restore` takes. The caller holds the lock, and makes a copy."""
        return {
            "ec2": self._state.kept(),
            "launched": self._launched,
            "fleets": self._fleets,
            "made": self.made,
            "faults": self.faults,
        }

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Go on from what an earlier process kept."""
        self._state.restore(parts["ec2"], ACCOUNT)
        self._launched, self._fleets = parts["launched"], parts["fleets"]
        self.made, self.faults = parts["made"], parts["faults"]
        self._restrict()

    def __call__(self, wsgi: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer = self._answer(wsgi)
        if answer is _DROPPED:
            # The server counts this as a client that went away: the connection ends without a word.
            wsgi["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError("a fault: the answer is lost")
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body))), *answer.headers]
        start_response(f"{answer.status} {'OK' if answer.status < 400 else 'Refused'}", headers)
        return [answer.body]

    def instances(self) -> list[LabInstance]:
        with self.lock:
            return self._state.instances()

    def set_state(self, instance: str, state: str) -> None:
        with self.lock:
            self._state.set_state(instance, state)
            self.keep()

    def set_architecture(self, image: str) -> None:
        with self.lock:
            self._state.set_architecture(image, "x86_64")

    def terminate(self, instance: str) -> None:
        """End an instance as AWS itself does. Raises CloudRefusal for an unknown one."""
        with self.lock:
            self._moto.call("ec2", "TerminateInstances", {"InstanceId.1": instance})
            self._after()
            self.keep()
        self._changed()

    def send_notice(self, text: str) -> None:
        """Put a notice into the queue of interruptions."""
        if self.made is not None:
            body = {"QueueUrl": self.made.queue, "MessageBody": text}
            self._moto.call("sqs", "SendMessage", body, target="AmazonSQS")

    # -- requests --------------------------------------------------------------------------------------------------

    def _answer(self, wsgi: Mapping[str, Any]) -> CloudAnswer:
        length = int(wsgi.get("CONTENT_LENGTH") or 0)
        body = wsgi["wsgi.input"].read(length) if length else b""
        path = wsgi.get("PATH_INFO", "")
        if path.startswith("/_cloud/"):
            return self._control(wsgi["REQUEST_METHOD"], path.removeprefix("/_cloud/"), body)
        headers = {name[5:].replace("_", "-").lower(): value for name, value in wsgi.items() if name[:5] == "HTTP_"}
        request = read_request(headers, body)
        forwarded = {**wsgi, "wsgi.input": io.BytesIO(body)}
        if request is None:
            return self._moto.forward(forwarded)
        own = INTERNAL in headers.get("user-agent", "")
        try:
            answer = self._answered(request, forwarded, own)
        except CloudRefusal as refusal:
            if "x-amz-target" in headers:
                return CloudAnswer(refusal.status, _JSON, json_error(refusal))
            return CloudAnswer(refusal.status, _XML, xml_error(refusal))
        if request.action in _CHANGES:
            self._changed()
        if request.action in _LAUNCHES and not own and self._takes(LOST_ANSWERS):
            log.info("lost the answer action=%s", request.action)
            return _DROPPED
        return answer

    def _takes(self, fault: str) -> bool:
        with self.lock:
            return self.faults.take(fault)

    def _answered(self, request: AwsRequest, wsgi: Mapping[str, Any], own: bool) -> CloudAnswer:
        if not own and self._takes(THROTTLED):
            raise CloudRefusal("RequestLimitExceeded", "Request limit exceeded.", 503)
        name = (request.service, request.action)
        known = self.made.parameters if self.made is not None else {}
        given = request.parameters
        if name == ("ec2", "CreateFleet") and given.get("Type") == INSTANT:
            with self.lock:
                return CloudAnswer(200, _XML, self._create_fleet(given))
        if name == ("ec2", "DescribeSpotPriceHistory"):
            return CloudAnswer(200, _XML, xml_answer(request.action, own_answers.spot_prices(given, self._clock())))
        if name == ("pricing", "GetProducts"):
            return CloudAnswer(200, _JSON, msgspec.json.encode(own_answers.products(given)))
        if name == ("ssm", "GetParameter") and own_answers.is_public(given.get("Name", "")):
            return CloudAnswer(200, _JSON, msgspec.json.encode(own_answers.parameter(given["Name"], known)))
        if name == ("ssm", "GetParameters") and all(map(own_answers.is_public, given.get("Names") or ("",))):
            return CloudAnswer(200, _JSON, msgspec.json.encode(own_answers.parameters(given["Names"], known)))
        if request.service != "ec2":
            return self._moto.forward(wsgi)  # NB: not under the lock, since a queue is polled for 20 s
        with self.lock:
            answer = self._moto.forward(wsgi)
            self._after()
            if request.action == "RebootInstances" and answer.status < 400:
                for instance in given.get("InstanceId") or ():
                    self.restart(instance)
            if not request.action.startswith(_READS):
                self.keep()
            return answer

    def _after(self) -> None:
        """Put back what moto has ended too early, and send notices about it."""
        for instance in self._state.shutting_down(self.machines):
            self.send_notice(state_change(instance, SHUTTING_DOWN, self.region, self._clock()))

    # -- launches --------------------------------------------------------------------------------------------------

    def _create_fleet(self, parameters: Mapping[str, Any]) -> bytes:
        request = read_fleet(parameters)
        digest = msgspec.json.encode(parameters, order="deterministic")
        if request.token in self._launched:
            asked, answer = self._launched[request.token]
            if asked != digest:
                message = "The client token was used for a request with other parameters"
                raise CloudRefusal("IdempotentParameterMismatch", message)
            return answer
        choice = choose(request, self._state.zones(), self._prices(request), self._open(request))
        instances: list[str] = []
        if choice.chosen is not None:
            form = run_form(request, choice.chosen)
            instances = _instance_ids(self._moto.call("ec2", "RunInstances", form).body)
        self._fleets += 1
        fleet = f"fleet-{self._fleets:08x}-0000-4000-8000-000000000000"
        answer = xml_answer("CreateFleet", fleet_answer(request, choice, fleet, instances))
        if request.token and instances:
            self._launched[request.token] = (digest, answer)
        self.keep()
        for instance in instances:
            assert choice.chosen is not None
            log.info("launched instance=%s type=%s as=%s", instance, choice.chosen.machine, request.capacity_type)
        return answer

    def _prices(self, request: FleetRequest) -> Callable[[str], float | None]:
        return lambda name: price(name, request.capacity_type) if name in cloud_types() else None

    def _open(self, request: FleetRequest) -> Callable[[str, str], bool]:
        return lambda name, zone: self.faults.is_open(name, zone, request.capacity_type, self._clock())


def _keep_nothing() -> None:
    """Until the region is made, and in tests: nothing is on disk."""


def _restart_nothing(instance: str) -> None:
    """Until the region is made, and in tests: no instance has a machine."""


def _instance_ids(body: bytes) -> list[str]:
    found = [part.partition(b"<")[0].decode() for part in body.split(b"<instanceId>")[1:]]
    return list(dict.fromkeys(found))
