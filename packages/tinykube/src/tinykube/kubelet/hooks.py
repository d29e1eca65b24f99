"""The hooks of a container: a command in it, a GET, or a pause. Source: kubernetes.io, Container Lifecycle Hooks."""

from __future__ import annotations

from tinykube.kubelet.containers import ContainerRecord
from tinykube.kubelet.machine import KubeletMachine
from tinykube.kubelet.pod import KubeletPod, LifecycleHandler, SpecContainer
from tinykube.kubelet.probes import http_problem, port_number


async def run_hook(
    machine: KubeletMachine,
    pod: KubeletPod,
    container: SpecContainer,
    record: ContainerRecord,
    handler: LifecycleHandler,
) -> str:
    """Run a hook to its end; return its error, "" for success."""
    if handler.exec is not None:
        code, output = await machine.run_inside(record, handler.exec.command)
        return f"exit code {code}: {output.strip()}" if code else ""
    if handler.http_get is not None:
        get = handler.http_get
        try:
            host = get.host or machine.pod_ip(pod.metadata.uid)
            return await http_problem(get, host, port_number(container, get.port))
        except OSError as error:
            return str(error)
    if handler.sleep is not None:
        await machine.clock.sleep(handler.sleep.seconds)
    return ""
