"""Volumes that a pod has by claims: the hostPath or local path of the volume that the claim is bound to.

A claim is looked up when a pod's first container starts, and stays where it was found: as on a real node, a mount does
not follow what becomes of its claim.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from kubekit.api.core import Node
from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct
from kubekit.kube import ApiError
from kubekit.scheduling.selectors import compile_node_terms
from tinykube.kubelet.machine import KubeletMachine
from tinykube.kubelet.pod import HostPath, KubeletPod, KubeletVolume
from tinykube.kubelet.volumes import VolumeUnready, host_path, inside_root


class _ClaimSpec(Struct):
    volume_name: str = ""
    volume_mode: str = "Filesystem"


class _Phase(Struct):
    phase: str = ""


class MountedClaim(Struct):
    """A PersistentVolumeClaim."""

    RESOURCE: ClassVar[Resource] = built_in("v1", "PersistentVolumeClaim")

    metadata: ObjectMeta = ObjectMeta()
    spec: _ClaimSpec = _ClaimSpec()
    status: _Phase = _Phase()


class _Local(Struct):
    path: str


class _ClaimReference(Struct):
    uid: str = ""


class _NodeAffinity(Struct):
    required: dict[str, Any] | None = None


class _VolumeSpec(Struct):
    host_path: HostPath | None = None
    local: _Local | None = None
    claim_ref: _ClaimReference | None = None
    node_affinity: _NodeAffinity | None = None


class MountedVolume(Struct):
    """A PersistentVolume."""

    RESOURCE: ClassVar[Resource] = built_in("v1", "PersistentVolume")

    metadata: ObjectMeta = ObjectMeta()
    spec: _VolumeSpec = _VolumeSpec()


def claim_of(pod: KubeletPod, volume: KubeletVolume) -> str:
    """Return the name of a volume's claim: named, or made for the pod; empty for a volume without one."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return f"{pod.metadata.name}-{volume.name}" if volume.ephemeral is not None else ""


class ClaimedVolumes:
    """Finds the places of a pod's claims."""

    def __init__(self, machine: KubeletMachine, pod: KubeletPod) -> None:
        self._machine = machine
        self._pod = pod
        self._places: dict[str, Path] = {}
        self._is_local: dict[str, bool] = {}

    async def place(self, volume: KubeletVolume) -> Path | None:
        """Return where a volume of the pod lies, None for one without a claim. Raises VolumeUnready in the kubelet's
        words."""
        name, claim_name = volume.name, claim_of(self._pod, volume)
        if not claim_name:
            return None
        if name not in self._places:
            found = await self._volume(name, claim_name, own=volume.ephemeral is not None)
            await self._check_node(found)
            self._places[name] = self._find(found)
            self._is_local[name] = found.spec.local is not None
        return self._places[name]

    def takes_group(self, name: str) -> bool:
        """Return whether `fsGroup` applies to a volume that was found: to a local one, not to a hostPath."""
        return self._is_local.get(name, False)

    async def _volume(self, name: str, claim_name: str, *, own: bool) -> MountedVolume:
        namespace = self._pod.metadata.namespace
        try:
            return await self._bound(namespace, claim_name, own=own)
        except VolumeUnready as error:
            raise VolumeUnready(
                f"Unable to attach or mount volumes: unmounted volumes=[{name}], unattached volumes=[], failed to "
                f"process volumes=[{name}]: error processing PVC {namespace}/{claim_name}: {error.what}"
            ) from error

    async def _bound(self, namespace: str, claim_name: str, *, own: bool) -> MountedVolume:
        client = self._machine.client
        try:
            claim = await client.get(MountedClaim, claim_name, namespace)
        except ApiError as error:
            raise VolumeUnready(f"failed to fetch PVC from API server: {error.what}") from error
        if own and not any(one.uid == self._pod.metadata.uid for one in claim.metadata.owner_references):
            pod = f"{namespace}/{self._pod.metadata.name}"
            raise VolumeUnready(f"PVC {namespace}/{claim_name} was not created for pod {pod} (pod is not owner)")
        if claim.metadata.deletion_timestamp:
            raise VolumeUnready("PVC is being deleted")
        if claim.status.phase != "Bound" or not claim.spec.volume_name:
            raise VolumeUnready("PVC is not bound")
        try:
            volume = await client.get(MountedVolume, claim.spec.volume_name)
        except ApiError as error:
            text = f"failed to fetch PV {claim.spec.volume_name} from API server: {error.what}"
            raise VolumeUnready(text) from error
        if volume.spec.claim_ref is None or volume.spec.claim_ref.uid != claim.metadata.uid:
            raise VolumeUnready(f"PV {claim.spec.volume_name} is bound to another claim")
        if claim.spec.volume_mode == "Block":
            raise VolumeUnready("volumes of mode Block are of a kind that simulated nodes do not have")
        return volume

    async def _check_node(self, volume: MountedVolume) -> None:
        affinity = volume.spec.node_affinity
        terms = compile_node_terms(affinity.required) if affinity is not None else None
        if terms is None:
            return
        node = await self._machine.client.get(Node, self._machine.node_name)
        if not any(term.matches("", node.metadata.labels) for term in terms):
            raise VolumeUnready(
                f'MountVolume.NodeAffinity check failed for volume "{volume.metadata.name}" : '
                "no matching NodeSelectorTerms"
            )

    def _find(self, volume: MountedVolume) -> Path:
        name, root = volume.metadata.name, self._machine.root
        if volume.spec.host_path is not None:
            return host_path(root, volume.spec.host_path, name)
        if volume.spec.local is None:
            raise VolumeUnready(f'volume "{name}" is of a kind that simulated nodes do not have')
        path = inside_root(root, volume.spec.local.path)
        if not path.exists():
            raise VolumeUnready(
                f'MountVolume.NewMounter initialization failed for volume "{name}" : '
                f'path "{volume.spec.local.path}" does not exist'
            )
        return path
