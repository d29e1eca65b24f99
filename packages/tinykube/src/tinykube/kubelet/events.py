"""The kubelet's events, with the reasons and words that people know from `kubectl describe`."""

from __future__ import annotations

import msgspec

from kubekit.api.core import reference
from kubekit.kube import Client, EventRecorder
from tinykube.kubelet.pod import KubeletPod, SpecContainer


class Events:
    """Reports about the pods of one node; never blocks and never fails."""

    def __init__(self, client: Client, node_name: str) -> None:
        self._recorder = EventRecorder(client, "kubelet", instance=node_name)

    def note(self, pod: KubeletPod, reason: str, message: str, container: SpecContainer | None = None) -> None:
        self._say(pod, "Normal", reason, message, container)

    def warn(self, pod: KubeletPod, reason: str, message: str, container: SpecContainer | None = None) -> None:
        self._say(pod, "Warning", reason, message, container)

    def _say(self, pod: KubeletPod, level: str, reason: str, message: str, container: SpecContainer | None) -> None:
        about = reference(pod)
        if container is not None:
            kind = "initContainers" if container in pod.spec.init_containers else "containers"
            about = msgspec.structs.replace(about, field_path=f"spec.{kind}{{{container.name}}}")
        self._recorder.event(about, "Warning" if level == "Warning" else "Normal", reason, message)

    async def aclose(self) -> None:
        await self._recorder.aclose()
