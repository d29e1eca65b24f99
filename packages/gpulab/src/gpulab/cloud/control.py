"""The requests of `gpuplane cloud` to a running cloud: the bill, faults, interruptions, new images. JSON over HTTP.

The endpoint serves it under /_cloud/ on its own port. Requests come on threads of the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gpulab.cloud.bill import make_bill
from gpulab.cloud.booter import Booter
from gpulab.cloud.catalogue import cloud_types
from gpulab.cloud.endpoint import CloudEndpoint
from gpulab.cloud.fault_names import COUNTED
from gpulab.cloud.faults import ClosedOffering, CloudFaults
from gpulab.cloud.instances import RUNNING
from gpulab.cloud.moto_app import CloudAnswer
from gpulab.cloud.notices import spot_interruption
from gpulab.cloud.query import CloudRefusal
from gpulab.cloud.region import RegionMaker
from gpuplane.autoscaler.catalogue import SPOT
from gpuplane.autoscaler.providers.aws_types import ZONES
from kubekit.documents import decode_json
from kubekit.errors import InvalidInput

_JSON: Final = "application/json"


class CapacityOrder(msgspec.Struct, frozen=True):
    """Close or open the offerings of a type; `seconds` 0 closes them until they are opened."""

    machine: str
    zone: str = ""
    capacity_type: str = ""
    seconds: float = 0.0
    open: bool = False


class InterruptOrder(msgspec.Struct, frozen=True):
    """Take an instance back after a notice of `seconds`."""

    instance: str
    seconds: float


class FaultOrder(msgspec.Struct, frozen=True):
    """Let a counted fault happen `times` times."""

    fault: str
    times: int


class BootOrder(msgspec.Struct, frozen=True):
    """Let instances take so many seconds to boot."""

    seconds: float


class CloudControl:
    """Carries out the orders of one cloud. `later` runs a function after some seconds."""

    def __init__(self, later: Callable[[float, Callable[[], None]], None]) -> None:
        self.endpoint: CloudEndpoint | None = None
        self.booter: Booter | None = None
        self.maker: RegionMaker | None = None
        self._later = later
        self._imaging = threading.Lock()

    def answer(self, method: str, path: str, body: bytes) -> CloudAnswer:
        """Answer one request; errors as `{"what": ..., "cure": ...}`."""
        if self.endpoint is None or self.booter is None:
            return _json(503, {"what": "the cloud is starting", "cure": "try again"})
        orders: dict[tuple[str, str], Callable[[], Any]] = {
            ("GET", "bill"): self._bill,
            ("GET", "faults"): self._faults,
            ("POST", "capacity"): lambda: self._capacity(decode_json(body, CapacityOrder)),
            ("POST", "interrupt"): lambda: self._interrupt(decode_json(body, InterruptOrder)),
            ("POST", "fault"): lambda: self._fault(decode_json(body, FaultOrder)),
            ("POST", "boot"): lambda: self._boot(decode_json(body, BootOrder)),
            ("POST", "image"): self._image,
        }
        order = orders.get((method, path))
        if order is None:
            return _json(404, {"what": f"the cloud has no {path!r}", "cure": ""})
        try:
            found = order()
            if method == "POST":
                with self.endpoint.lock:
                    self.endpoint.keep()
            return _json(200, found)
        except InvalidInput as error:
            return _json(400, {"what": error.what, "cure": error.cure})

    def _bill(self) -> Any:
        assert self.endpoint is not None
        assert self.booter is not None
        return make_bill(self.endpoint.instances(), dict(self.booter.nodes), dict(self.booter.ended), time.time())

    @property
    def _known(self) -> CloudFaults:
        assert self.endpoint is not None
        return self.endpoint.faults

    def _faults(self) -> Any:
        assert self.endpoint is not None
        now = time.time()
        with self.endpoint.lock:
            closed = [
                {
                    "machine": one.machine,
                    "zone": one.zone,
                    "capacityType": one.capacity_type,
                    "secondsLeft": None if one.until == float("inf") else round(one.until - now, 1),
                }
                for one in self._known.closed(now)
            ]
            return {"closed": closed, "counted": self._known.left(), "bootSeconds": self._known.boot_seconds}

    def _capacity(self, order: CapacityOrder) -> Any:
        assert self.endpoint is not None
        if order.machine not in cloud_types():
            raise InvalidInput(f"no instance type {order.machine!r}", cure=f"one of {', '.join(cloud_types())}")
        if order.zone not in ("", *ZONES):
            raise InvalidInput(f"no zone {order.zone!r}", cure=f"one of {', '.join(ZONES)}")
        with self.endpoint.lock:
            if order.open:
                self._known.open(order.machine)
            else:
                until = time.time() + order.seconds if order.seconds else float("inf")
                self._known.close(ClosedOffering(order.machine, order.zone, order.capacity_type, until))
        return self._faults()

    def _fault(self, order: FaultOrder) -> Any:
        assert self.endpoint is not None
        if order.fault not in COUNTED:
            raise InvalidInput(f"no fault {order.fault!r}", cure=f"one of {', '.join(COUNTED)}")
        if order.times < 0:
            raise InvalidInput(f"{order.times} times is negative", cure="0 ends a fault")
        with self.endpoint.lock:
            self._known.count(order.fault, order.times)
        return self._faults()

    def _boot(self, order: BootOrder) -> Any:
        assert self.endpoint is not None
        if order.seconds < 0:
            raise InvalidInput(f"{order.seconds} seconds is negative")
        with self.endpoint.lock:
            self._known.boot_seconds = order.seconds
        return self._faults()

    def _interrupt(self, order: InterruptOrder) -> Any:
        endpoint = self.endpoint
        assert endpoint is not None
        found = next((one for one in endpoint.instances() if one.id == order.instance), None)
        if found is None or found.state != RUNNING:
            state = "there is no such instance" if found is None else f"it is {found.state}"
            raise InvalidInput(f"{order.instance} cannot be interrupted: {state}", cure="gpuplane cloud ls lists them")
        if found.capacity_type != SPOT:
            cure = "only spot instances are taken back; aws ec2 terminate-instances ends others"
            raise InvalidInput(f"{order.instance} is {found.capacity_type}", cure=cure)
        endpoint.send_notice(spot_interruption(order.instance, endpoint.region, time.time()))

        def take_back() -> None:
            try:
                endpoint.terminate(order.instance)
            except CloudRefusal:
                return  # it has ended meanwhile

        self._later(order.seconds, take_back)
        return {"instance": order.instance, "seconds": order.seconds}

    def _image(self) -> Any:
        endpoint, maker = self.endpoint, self.maker
        if endpoint is None or endpoint.made is None or maker is None:
            raise InvalidInput("the cloud is starting", cure="try again")
        with self._imaging:
            image = maker.new_image(endpoint.made)
            for known in endpoint.made.parameters.values():
                endpoint.set_architecture(known)
        return {"image": image}


def _json(status: int, content: Any) -> CloudAnswer:
    return CloudAnswer(status, _JSON, msgspec.json.encode(content))
