"""The host ports of a node's pods: a kubelet refuses a pod that wants one that another pod has."""

from __future__ import annotations

import itertools

from kubekit.scheduling.filters import ANY_ADDRESS, HostPort, check_ports
from tinykube.kubelet.pod import KubeletPod
from tinykube.kubelet.rejected import PodRejected


def host_ports(pod: KubeletPod) -> tuple[HostPort, ...]:
    """Return the host ports of the containers that run next to each other."""
    sidecars = (container for container in pod.spec.init_containers if container.sidecar)
    return tuple(
        (port.host_ip or ANY_ADDRESS, port.protocol, port.host_port)
        for container in (*pod.spec.containers, *sidecars)
        for port in container.ports
        if port.host_port
    )


class HostPorts:
    """The host ports of each pod, from its admission until its last container has ended."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[HostPort, ...]] = {}

    def take(self, pod: KubeletPod) -> None:
        """Raises PodRejected, in the words of a kubelet, and then the pod has none."""
        taken = check_ports(host_ports(pod), tuple(itertools.chain.from_iterable(self._held.values())))
        if taken is not None:
            raise PodRejected(taken.plugin, f"Predicate {taken.plugin} failed: {taken.reasons[0]}")
        self.hold(pod)

    def hold(self, pod: KubeletPod) -> None:
        """As `take`, for a pod that an earlier kubelet of the node admitted."""
        if ports := host_ports(pod):
            self._held[pod.metadata.uid] = ports

    def release(self, uid: str) -> None:
        self._held.pop(uid, None)
