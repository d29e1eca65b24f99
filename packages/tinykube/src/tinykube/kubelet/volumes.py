"""Volumes of a pod: directories below the node's var/lib/kubelet/pods/<uid>, and mounts of them into containers.

Invariants:

- Files of API objects are decided here as a whole and written together (`atomicfiles`).
- A hostPath is a path of the node's root and cannot leave it, also not through a symbolic link of the root.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from kubekit.errors import Retryable
from tinykube.kubelet.atomicfiles import VolumeFile
from tinykube.kubelet.containers import BindMount
from tinykube.kubelet.env import ConfigInvalid, Sources, expand, field_value, resource_value, unknown_names
from tinykube.kubelet.pod import (
    DownwardVolume,
    HostPath,
    KeyToPath,
    KubeletPod,
    KubeletVolume,
    Projection,
    SpecContainer,
    TokenSource,
    VolumeMount,
    every_container,
)


class VolumeUnready(Retryable):
    """A volume cannot be mounted yet; the pod waits in ContainerCreating with FailedMount."""


class TokenFile(msgspec.Struct, frozen=True):
    """The file of a service account's token: its mode, None for that of its volume, and its owner."""

    mode: int | None = None
    user: int | None = None


def inside_root(root: Path, path: str) -> Path:
    """The real path of a node's absolute `path`: symbolic links are followed as inside a chroot."""
    done = root
    parts = [part for part in path.split("/") if part not in ("", ".")]
    hops = 0
    while parts:
        part = parts.pop(0)
        if part == "..":
            done = done.parent if done != root else root
            continue
        candidate = done / part
        if candidate.is_symlink():
            hops += 1
            if hops > 40:
                raise VolumeUnready(f"too many levels of symbolic links: {path}")
            target = str(candidate.readlink())
            if target.startswith("/"):
                done = root
            parts = [p for p in target.split("/") if p not in ("", ".")] + parts
            continue
        done = candidate
    return done


def host_path(root: Path, volume: HostPath, name: str) -> Path:
    """The source of a hostPath volume, made where its type says so. Raises VolumeUnready as the kubelet words it."""
    path = inside_root(root, volume.path)
    kind = volume.type
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o644)
    elif kind == "":
        if not path.exists():  # the runtime makes what an untyped hostPath names
            path.mkdir(parents=True, exist_ok=True)
        return path
    mode = path.stat().st_mode if path.exists() else 0
    tests = {
        "Directory": (stat.S_ISDIR, "a directory"),
        "DirectoryOrCreate": (stat.S_ISDIR, "a directory"),
        "File": (stat.S_ISREG, "a file"),
        "FileOrCreate": (stat.S_ISREG, "a file"),
        "Socket": (stat.S_ISSOCK, "a socket"),
        # NB: the simulated devices are regular files below /dev.
        "CharDevice": (lambda m: stat.S_ISCHR(m) or (stat.S_ISREG(m) and "/dev/" in str(path)), "a character device"),
        "BlockDevice": (stat.S_ISBLK, "a block device"),
    }
    if kind not in tests:
        raise VolumeUnready(f'volume "{name}": unknown hostPath type {kind}')
    test, words = tests[kind]
    if not mode or not test(mode):
        raise VolumeUnready(
            f'MountVolume.SetUp failed for volume "{name}" : hostPath type check failed: {volume.path} is not {words}'
        )
    return path


_MISSING_KEY: Final = {
    "configmap": "configmap references non-existent config key: ",
    "secret": "references non-existent secret key: ",
}


def keyed_files(
    kind: str, name: str, data: Mapping[str, bytes] | None, items: tuple[KeyToPath, ...], mode: int, optional: bool
) -> dict[str, VolumeFile]:
    """The files of a ConfigMap or Secret. Raises VolumeUnready when it, or a key of `items`, is missing."""
    if data is None:
        if optional:
            return {}
        raise VolumeUnready(f'{kind} "{name}" not found')
    if not items:
        return {key: VolumeFile(value, mode) for key, value in data.items()}
    files = {}
    for item in items:
        if item.key in data:
            files[item.path] = VolumeFile(data[item.key], mode if item.mode is None else item.mode)
        elif not optional:
            raise VolumeUnready(f"{_MISSING_KEY[kind]}{item.key}")
    return files


def downward_files(pod: KubeletPod, volume: DownwardVolume, mode: int, sources: Sources) -> dict[str, VolumeFile]:
    files = {}
    for item in volume.items:
        if item.field_ref is not None:
            text = field_value(pod, item.field_ref, sources)
        elif item.resource_field_ref is not None:
            text = resource_value(pod, None, item.resource_field_ref, sources)
        else:
            continue
        files[item.path] = VolumeFile(text.encode(), mode if item.mode is None else item.mode)
    return files


def volume_files(
    pod: KubeletPod,
    volume: KubeletVolume,
    sources: Sources,
    tokens: Mapping[TokenSource, str],
    token_file: TokenFile,
) -> dict[str, VolumeFile] | None:
    """The files of a volume that is made of API objects; None for the other kinds. Raises VolumeUnready."""
    try:
        return _volume_files(pod, volume, sources, tokens, token_file)
    except VolumeUnready as error:
        raise VolumeUnready(f'MountVolume.SetUp failed for volume "{volume.name}" : {error.what}') from error


def _volume_files(
    pod: KubeletPod,
    volume: KubeletVolume,
    sources: Sources,
    tokens: Mapping[TokenSource, str],
    token_file: TokenFile,
) -> dict[str, VolumeFile] | None:
    if volume.config_map is not None:
        c = volume.config_map
        return keyed_files("configmap", c.name, sources.config_files.get(c.name), c.items, c.default_mode, c.optional)
    if volume.secret is not None:
        s = volume.secret
        return keyed_files(
            "secret", s.secret_name, sources.secrets.get(s.secret_name), s.items, s.default_mode, s.optional
        )
    if volume.downward_api is not None:
        return downward_files(pod, volume.downward_api, volume.downward_api.default_mode, sources)
    if volume.projected is None:
        return None
    files: dict[str, VolumeFile] = {}
    for projection in volume.projected.sources:
        files |= _projected(pod, projection, volume.projected.default_mode, sources, tokens, token_file)
    return files


def _projected(
    pod: KubeletPod,
    projection: Projection,
    mode: int,
    sources: Sources,
    tokens: Mapping[TokenSource, str],
    token_file: TokenFile,
) -> dict[str, VolumeFile]:
    if projection.service_account_token is not None:
        token = projection.service_account_token
        kept = mode if token_file.mode is None else token_file.mode
        return {token.path: VolumeFile(tokens[token].encode(), kept, token_file.user)}
    if projection.config_map is not None:
        c = projection.config_map
        return keyed_files("configmap", c.name, sources.config_files.get(c.name), c.items, mode, c.optional)
    if projection.secret is not None:
        s = projection.secret
        return keyed_files("secret", s.name, sources.secrets.get(s.name), s.items, mode, s.optional)
    if projection.downward_api is not None:
        return downward_files(pod, projection.downward_api, mode, sources)
    raise VolumeUnready("a projected source is of a kind that simulated nodes do not have")


def needed_objects(pod: KubeletPod) -> tuple[set[str], set[str], set[TokenSource]]:
    """Names of the ConfigMaps and Secrets, and the tokens, that the pod's volumes and variables refer to."""
    maps: set[str] = set()
    secrets: set[str] = set()
    tokens: set[TokenSource] = set()
    for volume in pod.spec.volumes:
        if volume.config_map is not None:
            maps.add(volume.config_map.name)
        if volume.secret is not None:
            secrets.add(volume.secret.secret_name)
        for projection in volume.projected.sources if volume.projected is not None else ():
            if projection.config_map is not None:
                maps.add(projection.config_map.name)
            if projection.secret is not None:
                secrets.add(projection.secret.name)
            if projection.service_account_token is not None:
                tokens.add(projection.service_account_token)
    for container in every_container(pod):
        for source in container.env_from:
            maps |= {source.config_map_ref.name} if source.config_map_ref else set()
            secrets |= {source.secret_ref.name} if source.secret_ref else set()
        for variable in container.env:
            if variable.value_from is not None:
                from_map, from_secret = variable.value_from.config_map_key_ref, variable.value_from.secret_key_ref
                maps |= {from_map.name} if from_map else set()
                secrets |= {from_secret.name} if from_secret else set()
    return maps - {""}, secrets - {""}, tokens


def container_mounts(
    container: SpecContainer,
    volumes: Iterable[KubeletVolume],
    places: Mapping[str, Path],
    env: Mapping[str, str],
    *,
    by_path: bool = False,
) -> list[BindMount]:
    """The mounts of a container; `places` says where each volume lies. Volumes made of API objects are read-only.

    `by_path`: nothing is mounted, the container gets the paths.

    Raises VolumeUnready for an unknown volume, ConfigInvalid for a path that leads out of its volume.
    """
    of_api = {v.name for v in volumes if v.config_map or v.secret or v.projected or v.downward_api}
    fixed = of_api | {
        v.name
        for v in volumes
        if v.image or (v.persistent_volume_claim is not None and v.persistent_volume_claim.read_only)
    }
    mounts = []
    for mount in container.volume_mounts:
        place = places.get(mount.name)
        if place is None:
            raise VolumeUnready(f'volume "{mount.name}" is of a kind that simulated nodes do not have')
        sub = _sub_path(mount, env)
        if sub:
            inside = inside_root(place, sub)
            if not inside.exists():
                inside.mkdir(parents=True, exist_ok=True)
            # Without mounts a container finds the file by its path, and the folder of a state does not stay.
            place = place / sub if by_path and mount.name in of_api else inside
        mounts.append(BindMount(str(place), mount.mount_path, mount.read_only or mount.name in fixed))
    return mounts


def _sub_path(mount: VolumeMount, env: Mapping[str, str]) -> str:
    if not mount.sub_path_expr:
        return mount.sub_path
    if missing := unknown_names(mount.sub_path_expr, env):
        raise ConfigInvalid(f'missing value for "{missing[0]}"', where=f"volumeMount {mount.name}")
    path = expand(mount.sub_path_expr, env)
    if path.startswith("/"):
        raise ConfigInvalid(f"error SubPath `{path}` must not be an absolute path", where=f"volumeMount {mount.name}")
    if ".." in path.split("/"):
        raise ConfigInvalid(
            f"unable to provision SubPath `{path}`: must not contain '..'", where=f"volumeMount {mount.name}"
        )
    return path
