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
            kind = "ephemeralContainers" if container in pod.spec.ephemeral_containers else kind
            about = msgspec.structs.replace(about, field_path=f"spec.{kind}{{{container.name}}}")
        self._recorder.event(about, "Warning" if level == "Warning" else "Normal", reason, message)

    def pulled(self, pod: KubeletPod, container: SpecContainer, *, now: bool) -> None:
        """The image is there; `now` where this start asked for it."""
        image = container.image
        if now:
            self.note(pod, "Pulling", f'Pulling image "{image}"', container)
            text = f'Successfully pulled image "{image}" in 0s (0s including waiting). Image size: 0 bytes.'
            self.note(pod, "Pulled", text, container)
        else:
            self.note(pod, "Pulled", f'Container image "{image}" already present on machine', container)

    def not_pulled(self, pod: KubeletPod, container: SpecContainer, image: str, why: str, *, again: bool) -> None:
        """The image of a container or its volume cannot be had; `again` after the first try."""
        if again:
            self.note(pod, "BackOff", f'Back-off pulling image "{image}"', container)
            self.warn(pod, "Failed", "Error: ImagePullBackOff", container)
        else:
            self.note(pod, "Pulling", f'Pulling image "{image}"', container)
            self.warn(pod, "Failed", why, container)
            self.warn(pod, "Failed", "Error: ErrImagePull", container)

    def backing_off(self, pod: KubeletPod, container: SpecContainer) -> None:
        """A container that ended waits before its next start."""
        meta = pod.metadata
        where = f"{container.name} in pod {meta.name}_{meta.namespace}({meta.uid})"
        self.warn(pod, "BackOff", f"Back-off restarting failed container {where}", container)

    async def aclose(self) -> None:
        await self._recorder.aclose()
