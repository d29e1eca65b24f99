"""Startup, readiness and liveness probes of one container.

`judge` is the pure part: counts of consecutive results against the thresholds. Until the startup probe has passed
the other two do not run; what a probe finds goes to the worker, which decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Final

import msgspec

from tinykube.kubelet.containers import ContainerRecord
from tinykube.kubelet.grpchealth import grpc_problem
from tinykube.kubelet.pod import HTTPGet, KubeletProbe, SpecContainer

if TYPE_CHECKING:
    from tinykube.kubelet.podcontainers import PodContainers

_OUTPUT_CHARACTERS: Final = 1024


class ProbeTally(msgspec.Struct, frozen=True):
    """Consecutive results. `verdict` is None until a threshold was reached once."""

    successes: int = 0
    failures: int = 0
    verdict: bool | None = None


def judge(tally: ProbeTally, passed: bool, probe: KubeletProbe) -> ProbeTally:
    """The tally after one more result."""
    successes = tally.successes + 1 if passed else 0
    failures = 0 if passed else tally.failures + 1
    verdict = tally.verdict
    if successes >= probe.success_threshold:
        verdict = True
    elif failures >= probe.failure_threshold:
        verdict = False
    return ProbeTally(successes, failures, verdict)


async def watch_probes(
    containers: PodContainers, container: SpecContainer, record: ContainerRecord, *, adopted: bool = False
) -> None:
    """Probes `container` until cancelled (it ended) or a probe asks to kill it."""
    if container.startup_probe is not None and not adopted:
        started = await _until_verdict(containers, container, record, container.startup_probe)
        if not started:
            containers.note_probe(
                container.name, unhealthy=f"Container {container.name} failed startup probe, will be restarted"
            )
            return
        containers.note_probe(container.name, started=True, ready=container.readiness_probe is None)
    watchers = []
    if container.readiness_probe is not None:
        watchers.append(_readiness(containers, container, record, container.readiness_probe))
    if container.liveness_probe is not None:
        watchers.append(_liveness(containers, container, record, container.liveness_probe))
    await asyncio.gather(*watchers)


async def _until_verdict(
    containers: PodContainers, container: SpecContainer, record: ContainerRecord, probe: KubeletProbe
) -> bool:
    tally = ProbeTally()
    await containers.machine.clock.sleep(probe.initial_delay_seconds)
    while True:
        tally = judge(tally, await _run(containers, container, record, probe, "Startup"), probe)
        if tally.verdict is not None:
            return tally.verdict
        await containers.machine.clock.sleep(probe.period_seconds)


async def _readiness(
    containers: PodContainers, container: SpecContainer, record: ContainerRecord, probe: KubeletProbe
) -> None:
    tally = ProbeTally()
    await containers.machine.clock.sleep(probe.initial_delay_seconds)
    while True:
        tally = judge(tally, await _run(containers, container, record, probe, "Readiness"), probe)
        if tally.verdict is not None:
            containers.note_probe(container.name, ready=tally.verdict)
        await containers.machine.clock.sleep(probe.period_seconds)


async def _liveness(
    containers: PodContainers, container: SpecContainer, record: ContainerRecord, probe: KubeletProbe
) -> None:
    tally = ProbeTally()
    await containers.machine.clock.sleep(probe.initial_delay_seconds)
    while True:
        tally = judge(tally, await _run(containers, container, record, probe, "Liveness"), probe)
        if tally.verdict is False:
            containers.note_probe(
                container.name, unhealthy=f"Container {container.name} failed liveness probe, will be restarted"
            )
            return
        await containers.machine.clock.sleep(probe.period_seconds)


async def _run(
    containers: PodContainers, container: SpecContainer, record: ContainerRecord, probe: KubeletProbe, kind: str
) -> bool:
    try:
        problem = await asyncio.wait_for(_once(containers, container, record, probe), probe.timeout_seconds)
    except TimeoutError:
        problem = f"command timed out after {probe.timeout_seconds}s" if probe.exec else "context deadline exceeded"
    except OSError as error:
        problem = str(error)
    if problem:
        containers.machine.events.warn(containers.pod, "Unhealthy", f"{kind} probe failed: {problem}", container)
    return not problem


async def _once(
    containers: PodContainers, container: SpecContainer, record: ContainerRecord, probe: KubeletProbe
) -> str:
    """Run the probe once; return its error, "" for success."""
    if probe.exec is not None:
        code, output = await containers.machine.run_inside(record, probe.exec.command)
        return "" if code == 0 else output[:_OUTPUT_CHARACTERS] or f"exit code {code}"
    address = containers.machine.pod_ip(containers.pod.metadata.uid)
    if probe.http_get is not None:
        return await http_problem(
            probe.http_get, probe.http_get.host or address, port_number(container, probe.http_get.port)
        )
    if probe.tcp_socket is not None:
        port = port_number(container, probe.tcp_socket.port)
        _, writer = await asyncio.open_connection(probe.tcp_socket.host or address, port)
        writer.close()
        return ""
    if probe.grpc is not None:
        return await grpc_problem(address, probe.grpc.port, probe.grpc.service, probe.timeout_seconds)
    return "the probe has no handler"


def port_number(container: SpecContainer, port: int | str) -> int:
    """A probe's port: a number, or the name of one of the container's ports."""
    for known in container.ports:
        if known.name == port:
            return known.container_port
    try:
        return int(port)
    except ValueError:
        raise OSError(f"couldn't find port: {port}") from None


async def http_problem(get: HTTPGet, host: str, port: int) -> str:
    """One GET; what is wrong with the answer, "" for a status of 200 to 399."""
    # NB: certificates are not checked, as a kubelet does not.
    context = _unchecked_tls() if get.scheme == "HTTPS" else None
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        headers = {
            "Host": f"{host}:{port}",
            "User-Agent": "kube-probe/tinykube",
            "Accept": "*/*",
            "Connection": "close",
        }
        headers |= {header.name: header.value for header in get.http_headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        path = get.path if get.path.startswith("/") else f"/{get.path}"
        writer.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        await writer.drain()
        words = (await reader.readline()).split()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if len(words) < 2 or not words[1].isdigit():
        return "malformed HTTP response"
    status = int(words[1])
    return "" if 200 <= status < 400 else f"HTTP probe failed with statuscode: {status}"


def _unchecked_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
