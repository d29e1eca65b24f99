"""The exporter of one node: `/metrics` and `/health` on port 9400.

Invariants:

- Values are read when they are asked for. Scrapes that come together share one reading.
- The meter reads every `METER_SECONDS`, however often it is scraped: a scrape appends what it had then.
- Never an old value: while the driver is away the answer is 503 with the reason.
- A list of fields that becomes wrong while it is served changes nothing: the one before stays, and the log says why.
- A container that has its GPUs from a CDI specification keeps those of its creation. The exporter ends when the
  specification changes, and the kubelet starts another container, with the new ones.
- Nothing is written to the API server: that the exporter works is seen at its pod's readiness.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from gpuplane.exporter import settings
from gpuplane.exporter.choice import FieldChoice, load
from gpuplane.exporter.claims import AdminClaims
from gpuplane.exporter.jobs import Jobs
from gpuplane.exporter.marks import PodMarks
from gpuplane.exporter.pods import GPUHolders
from gpuplane.exporter.render import Entity, Extra, GPUHolder, entities, lost_gpus, render
from gpuplane.exporter.settings import Settings
from gpuplane.exporter.usage import SharesInUse, node_reading
from gpuplane.hardware import GPUFacts, GPUSource, Sample
from gpuplane.host import Host, HostError, gpu_addresses
from gpuplane.metering import Meter, MeterNames, PodContainer, families
from gpuplane.operand import OperandContext
from kubekit.errors import InvalidInput, KubekitError, Retryable, Terminal
from kubekit.http_server import Handler, HttpAnswer, serving
from kubekit.kube.exposition import CONTENT_TYPE, exposition

log = logging.getLogger("gpuplane.exporter")

T = TypeVar("T")

PORT: Final = 9400
METER_SECONDS: Final = 10.0
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
INDEX: Final = b"""<!doctype html><title>GPU metrics</title>
<h1>GPU metrics of this node</h1>
<p><a href="metrics">metrics</a>, <a href="health">health</a></p>
"""


class Serve(Protocol):
    """Serve paths while in the context, as `operand.http.serving` does."""

    def __call__(
        self, paths: Mapping[str, Handler], address: str, port: int
    ) -> contextlib.AbstractAsyncContextManager[int]: ...


async def run(context: OperandContext, serve: Serve = serving) -> None:
    """Runs until cancelled.

    Raises:
        InvalidInput: the environment, or the list of fields.
        Terminal: the driver's library cannot be used by this process; a new one may.
    """
    given = settings.read(os.environ, context.config)
    if given.idle:
        log.warning("variables without effect names=%s", ",".join(given.idle))
    marks = None
    if given.pods:
        wanted = {"labels": given.pod_labels, "uid": given.pod_uid}
        marks = PodMarks(context.client, context.node_name, allowed=given.allowed_labels, **wanted)
    exporter = Exporter(context, given, _loaded(given.collectors), marks)
    following = [
        asyncio.create_task(_follow(given.collectors, exporter)),
        asyncio.create_task(_follow_devices(context, exporter)),
    ]
    try:
        await _serve(context, given, exporter, serve)
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        await exporter.stop()
        if marks is not None:
            await marks.stop()


def _loaded(path: Path | None) -> FieldChoice:
    choice = load(path)
    if choice.missing:
        log.warning("fields not offered by gpuplane file=%s fields=%s", path, ",".join(choice.missing))
    return choice


async def _follow(path: Path | None, exporter: Exporter) -> None:
    """Take over a list of fields that changes."""
    if path is None:
        return
    host = Host(path.parent)
    try:
        seen = host.read(path.name)
        async for _ in host.watch(path.name):
            now = host.read(path.name)
            if now == seen:
                continue
            seen = now
            try:
                exporter.choose(_loaded(path))
                log.info("list of fields changed file=%s", path)
            except InvalidInput as error:
                log.error("list of fields invalid, the previous list stays: %s", error)
    except KubekitError as error:
        log.warning("file not watched, changes act at the next start file=%s: %s", path, error)


async def _follow_devices(context: OperandContext, exporter: Exporter) -> None:
    """End the exporter when the specification of its devices becomes another one."""
    path = context.cdi_specification
    if path is None:
        return
    host = context.open_host(path.parent)
    try:
        seen = host.read(path.name)
        async for _ in host.watch(path.name):
            now = host.read(path.name)
            if now not in (None, seen):
                what = "the devices of the node changed, and this container has the previous ones"
                exporter.end(
                    Terminal(what, where=str(path), cure="nothing to do: the kubelet starts the container again")
                )
                return
    except KubekitError as error:
        log.warning("file not watched, new devices need a new pod file=%s: %s", path, error)


async def _serve(context: OperandContext, given: Settings, exporter: Exporter, serve: Serve) -> None:
    # At once, not with the first scrape: a GPU that is lost later keeps its place only in a source that knew it before.
    first = await exporter.health()
    if first.status is not HTTPStatus.OK:
        log.warning("%s", first.body.decode().strip())
    paths = {
        "/": exporter.index,
        "/metrics": exporter.metrics,
        "/health": exporter.health,
        "/-/ready": exporter.health,
    }
    address = given.address or context.address
    port = next(port for port in (context.port, given.port, PORT) if port is not None)
    pause, said = FIRST_PAUSE_SECONDS, ""
    while True:
        try:
            async with serve(paths, address, port) as bound:
                log.info("serving metrics address=%s port=%d", address or "*", bound)
                exporter.start()
                await exporter.broken
        except Retryable as error:
            if said != str(error):
                log.error("serving failed, retrying: %s", error)
                said = str(error)
            await context.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class Exporter:
    """Answers the paths. `broken` gets the error after which only a new process can help."""

    def __init__(
        self, context: OperandContext, given: Settings, choice: FieldChoice, marks: PodMarks | None = None
    ) -> None:
        self._context = context
        self._marks = marks
        self._settings = given
        self._choice = choice
        claims = AdminClaims(context.client)
        self._pods = GPUHolders(context.kubelet_dir, context.sleep, given.resources, claims)
        self._jobs = Jobs(context.host, given.jobs_dir)
        self._source: GPUSource | None = None
        self._driver_version = ""
        self._reading: asyncio.Task[bytes] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._meter = Meter()
        self._life = secrets.token_hex(8)
        self._metered = b""
        self._shares = SharesInUse(context.host_root)
        self._labels: dict[PodContainer, Mapping[str, str]] = {}
        self._metering: asyncio.Task[None] | None = None
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Watch what scrapes need; may be called again."""
        if self._marks is not None:
            self._marks.start()
        if self._metering is None:
            self._metering = asyncio.create_task(self._meter_always())

    async def stop(self) -> None:
        """End the meter, and close the driver's library."""
        if self._metering is not None:
            self._metering.cancel()
            await asyncio.gather(self._metering, return_exceptions=True)
        self.close()

    def choose(self, choice: FieldChoice) -> None:
        """Other fields from the next scrape on."""
        self._choice = choice

    async def index(self) -> HttpAnswer:
        """For people."""
        return HttpAnswer(INDEX, content_type="text/html; charset=utf-8")

    async def metrics(self) -> HttpAnswer:
        """All metrics of now."""
        try:
            return HttpAnswer(await self._shared_reading(), content_type=CONTENT_TYPE)
        except KubekitError as error:
            return self._failed(error)

    async def health(self) -> HttpAnswer:
        """200 when the driver answers."""
        try:
            await self._ask(self._open)
        except KubekitError as error:
            return self._failed(error)
        return HttpAnswer(b"OK\n")

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    async def _shared_reading(self) -> bytes:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(self._reading)

    async def _meter_always(self) -> None:
        while True:
            await self._context.sleep(METER_SECONDS)
            # A failed reading is a gap, which the meter books later; the next scrape reports the reason.
            with contextlib.suppress(KubekitError):
                await self._read_meter()

    async def _read_meter(self) -> None:
        held = await self._pods.holders() if self._settings.pods else {}
        if not self._pods.answered:
            return
        at_ns, inventory, samples = await self._ask(self._measure)
        replicas = await self._pods.replicas(held, at_ns) if _has_replica(held) else {}
        shown = entities(inventory, samples)
        self._meter.read(node_reading(at_ns, shown, samples, held, replicas, self._shares.read()))
        metered_pods = {who for _, who in self._meter.totals}
        self._labels = {who: labels for who, labels in self._labels.items() if who in metered_pods}
        hostname = self._context.node_name if self._settings.hostname else ""
        self._metered = exposition(families(self._meter.totals, self._names(shown, hostname)))

    async def _read(self) -> bytes:
        holders, (_, inventory, samples) = await asyncio.gather(self._held(), self._ask(self._measure))
        extra = Extra(
            driver_version=self._driver_version,
            hostname=self._context.node_name if self._settings.hostname else "",
            dashes=self._settings.dashes,
            holders=holders,
            jobs=self._jobs.read(),
            each_holder=self._settings.each_holder,
        )
        shown = entities(inventory, samples)
        lost = lost_gpus(shown, self._silent(inventory), extra.hostname)
        return render(self._choice.fields, shown, extra) + exposition([lost]) + self._metered

    def _names(self, shown: list[Entity], hostname: str) -> MeterNames:
        gpus = {
            entity.gpu.uuid: {
                "gpu": str(entity.gpu.index),
                "UUID": entity.gpu.uuid,
                "modelName": entity.gpu.model,
                **({"Hostname": hostname} if hostname else {}),
            }
            for entity in shown
        }
        return MeterNames(gpus, self._pod_labels, self._context.node_name, self._life, self._meter.seconds)

    def _pod_labels(self, who: PodContainer) -> Mapping[str, str]:
        """Return owner and marks of a pod; those of a pod that left stay until its totals are forgotten."""
        if self._marks is not None and self._marks.knows(who.namespace, who.pod):
            kind, name = self._marks.owner(who.namespace, who.pod)
            marks = dict(self._marks.of(who.namespace, who.pod))
            self._labels[who] = {**marks, "owner_kind": kind, "owner": name}
        return self._labels.get(who, {})

    def _silent(self, inventory: tuple[GPUFacts, ...]) -> list[str]:
        """Return the addresses of the GPUs that NVML does not list; none where the bus cannot be read."""
        listed = {gpu.pci for gpu in inventory}
        with contextlib.suppress(HostError):
            return [address for address in gpu_addresses(self._context.host) if address not in listed]
        return []

    async def _held(self) -> dict[str, list[GPUHolder]]:
        held = await self._pods.holders() if self._settings.pods else {}
        if self._marks is None:
            return held
        return {device: [self._marked(holder, self._marks) for holder in found] for device, found in held.items()}

    @staticmethod
    def _marked(holder: GPUHolder, marks: PodMarks) -> GPUHolder:
        found = marks.of(holder.namespace, holder.pod)
        return msgspec.structs.replace(holder, marks=found) if found else holder

    def _measure(self) -> tuple[int, tuple[GPUFacts, ...], tuple[Sample, ...]]:
        source = self._open()
        inventory = source.inventory()
        return time.monotonic_ns(), inventory, source.samples()

    def _open(self) -> GPUSource:
        if self._source is None:
            source = self._context.open_gpus()
            self._driver_version = source.driver_version()
            self._source = source
        return self._source

    async def _ask(self, question: Callable[[], T]) -> T:
        """Ask the driver, in a thread and one at a time; after a failure it is opened again for the next question."""
        async with self._one_at_a_time:
            try:
                return await asyncio.to_thread(question)
            except KubekitError:
                self.close()
                raise

    def end(self, error: KubekitError) -> None:
        """End the process with an error that only a new one heals."""
        if not self.broken.done():
            self.broken.set_exception(error)

    def _failed(self, error: KubekitError) -> HttpAnswer:
        if not isinstance(error, Retryable):
            self.end(error)
        return HttpAnswer(f"{error}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)


def _has_replica(holders: Mapping[str, list[GPUHolder]]) -> bool:
    return any(holder.replica for found in holders.values() for holder in found)
