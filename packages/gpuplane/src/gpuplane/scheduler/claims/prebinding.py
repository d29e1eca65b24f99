"""Reserves and writes what has to be there before the Binding of a pod: its volumes, then its devices."""

from __future__ import annotations

from gpuplane.scheduler.claims.device_binding import DeviceBinder
from gpuplane.scheduler.claims.volume_binding import VolumeBinder
from kubekit.errors import KubekitError, Retryable
from kubekit.scheduling.podinfo import PodInfo

NO_ANSWER = "the API server did not answer"


class PreBinding:
    """Volumes and devices of pods whose Binding follows."""

    def __init__(self, volumes: VolumeBinder, devices: DeviceBinder) -> None:
        self._volumes = volumes
        self._devices = devices
        self._parts = (volumes, devices)

    def reserve(self, pod: PodInfo, node: str) -> None:
        """Count what the pod gets on the node as taken. Raises KubekitError, with nothing taken."""
        try:
            for part in self._parts:
                part.reserve(pod, node)
        except KubekitError:
            self.release(pod.uid)
            raise

    def waits(self, uid: str) -> bool:
        """Return whether something has to be written before the pod is bound."""
        return any(part.waits(uid) for part in self._parts)

    async def bind(self, uid: str) -> None:
        """Write what was reserved for the pod. Raises Retryable with kube-scheduler's words where that failed."""
        for part in self._parts:
            if not part.waits(uid):
                continue
            try:
                await part.bind(uid)
            except (KubekitError, TimeoutError) as error:
                raise Retryable(f'running PreBind plugin "{part.plugin}": {str(error) or NO_ANSWER}') from error

    def release(self, uid: str, *, settled: bool = False) -> None:
        """End what was reserved for the pod. `settled`: it is bound or deleted."""
        self._volumes.release(uid)
        self._devices.release(uid, settled=settled)
