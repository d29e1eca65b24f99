"""Makes the volumes of one pod on its node, and says where each lies.

Volumes are made when the pod's first container starts, and again before each later start: what is there stays.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tinykube.images import ImageMissing
from tinykube.kubelet.atomicfiles import VolumeFile, write_files
from tinykube.kubelet.claimedvolumes import ClaimedVolumes
from tinykube.kubelet.containers import Isolation, mount_memory, run_as_root
from tinykube.kubelet.env import Sources
from tinykube.kubelet.machine import KubeletMachine
from tinykube.kubelet.ownership import can_own, group_differs, owner_script, token_user, user_script, volume_group
from tinykube.kubelet.pod import EmptyDir, KubeletPod, KubeletVolume, TokenSource, memory_size
from tinykube.kubelet.volumes import TokenFile, VolumeUnready, host_path, inside_root, volume_files


class ImageUnpulled(VolumeUnready):
    """The image of a volume cannot be pulled; the pod waits as for the image of a container."""

    def __init__(self, what: str, image: str) -> None:
        super().__init__(what)
        self.image = image


class VolumePlaces:
    """The volumes of one pod."""

    def __init__(self, machine: KubeletMachine, pod: KubeletPod) -> None:
        self._machine = machine
        self._pod = pod
        self._mode = machine.launcher.mode
        self._claimed = ClaimedVolumes(machine, pod)
        self._group = volume_group(pod, self._mode)
        self._given: set[str] = set()  # local volumes that belong to the pod's group by now
        self._turn = asyncio.Lock()  # a start and a refresh do not write the same files

    async def make(self, pod: KubeletPod, sources: Sources, tokens: Mapping[TokenSource, str]) -> dict[str, Path]:
        """Return the place of each volume of a kind that there is here; `pod` is the pod as it is now.

        Raises VolumeUnready, OSError.
        """
        places = {}
        async with self._turn:
            self._pod = pod
            for volume in self._pod.spec.volumes:
                place = await self._place(volume, sources, tokens)
                if place is not None:
                    places[volume.name] = place
        return places

    async def _place(self, volume: KubeletVolume, sources: Sources, tokens: Mapping[TokenSource, str]) -> Path | None:
        if volume.host_path is not None:
            return host_path(self._machine.root, volume.host_path, volume.name)
        if volume.empty_dir is not None:
            return await self._empty(volume.name, volume.empty_dir)
        if volume.image is not None:
            return await asyncio.to_thread(self._image, volume.name, volume.image.reference)
        place = await self._claimed.place(volume)
        if place is not None:
            await self._give_local(volume, place)
            return place
        files = volume_files(self._pod, volume, sources, tokens, self._token_file())
        return None if files is None else await self._write(volume.name, files)

    def _home(self, kind: str, name: str) -> Path:
        return self._machine.pod_dir(self._pod.metadata.uid) / "volumes" / kind / name

    # -- files of API objects ----------------------------------------------------------------------------------------

    def _token_file(self) -> TokenFile:
        """Return how a token is readable: by its user and group alone where the pod names one of them."""
        user = token_user(self._pod)
        if user is None and self._pod.spec.security_context.fs_group is None:
            return TokenFile()
        return TokenFile(0o600, user if can_own(user, self._mode) else None)

    async def _write(self, name: str, files: Mapping[str, VolumeFile]) -> Path:
        place = self._home("files", name)
        if self._group is None and all(file.user is None for file in files.values()):
            write_files(place, files)
        else:
            await asyncio.to_thread(write_files, place, files, partial(self._own, files))
        return place

    def _own(self, files: Mapping[str, VolumeFile], top: Path, folder: Path) -> None:
        self._run(owner_script(top, self._group, read_only=True))
        self._run(user_script(folder, files))

    def _run(self, script: str) -> None:
        if script:
            run_as_root(self._mode, "sh", "-c", script)

    # -- the other kinds ---------------------------------------------------------------------------------------------

    async def _empty(self, name: str, volume: EmptyDir) -> Path:
        place = self._home("kubernetes.io~empty-dir", name)
        if volume.medium not in ("", "Memory"):
            raise VolumeUnready(
                f'MountVolume.SetUp failed for volume "{name}" : simulated nodes have no {volume.medium}'
            )
        memory = volume.medium == "Memory" and self._mode.isolation is Isolation.ROOT
        if place.is_mount() if memory else place.is_dir():
            return place
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o777)
        if memory:
            allocatable = self._machine.allocatable.get("memory", "0")
            mount_memory(place, memory_size(volume, self._pod, allocatable))
        if self._group is not None:
            await asyncio.to_thread(self._run, owner_script(place, self._group))
        return place

    async def _give_local(self, volume: KubeletVolume, place: Path) -> None:
        """Give a local volume to the pod's group, as often as the pod's policy says."""
        claim, group = volume.persistent_volume_claim, self._group
        if group is None or not self._claimed.takes_group(volume.name) or volume.name in self._given:
            return
        policy = self._pod.spec.security_context.fs_group_change_policy
        if not (claim is not None and claim.read_only) and (
            policy != "OnRootMismatch" or group_differs(place, self._mode.outside_group(group))
        ):
            await asyncio.to_thread(self._run, owner_script(place, group))
        self._given.add(volume.name)

    def _image(self, name: str, reference: str) -> Path:
        """Return a copy of the files that an image has here: those of `files` in its `image.toml`."""
        images = self._machine.images
        try:
            image = images.find(reference)
        except ImageMissing as error:
            raise ImageUnpulled(f'Failed to pull image "{reference}": {error}', reference) from error
        if not image.files:
            raise ImageUnpulled(images.missing(reference), reference)
        place = self._home("kubernetes.io~image", name)
        if place.is_dir():
            return place
        half = place.with_name(f".{name}.new")
        shutil.rmtree(half, ignore_errors=True)
        for directory in image.directories:
            inside_root(half, directory).mkdir(parents=True)
        for source, target in image.file_links():
            inside_root(half, target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, inside_root(half, target))
        half.rename(place)
        return place
