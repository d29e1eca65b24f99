"""The production operands inside a light node's pods: which coroutine runs a container, and the world that it gets."""

from __future__ import annotations

import asyncio
import importlib
import ssl
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gpulab.images import IMAGES
from gpulab.light import replaced
from gpulab.light.views import Hubs, ViewClient
from gpulab.light.world import LightHardware, LightHost, LightKubelet, LightRoot
from gpuplane.operand import OperandContext
from kubekit.api.core import ConfigMap
from kubekit.errors import InvalidInput
from kubekit.kube import Client, NotFound
from kubekit.kube.auth import Credential
from tinykube.kubelet.pod import KubeletPod, SpecContainer

# Module, function, and what the function is passed in place of its defaults: see `replaced`.
_OPERANDS: Final[Mapping[str, tuple[str, str, Mapping[str, Any]]]] = {
    "discovery": ("gpuplane.discovery", "run", {}),
    "gpu-feature-discovery": ("gpuplane.discovery", "run_gpu", {}),
    "driver": ("gpuplane.driver", "run", {}),
    "toolkit": ("gpuplane.toolkit", "run", {}),
    "validator": ("gpuplane.validator.operand", "run", {"prove_plugin": replaced.prove_plugin}),
    "device-plugin": ("gpuplane.device_plugin.operand", "run", {"hold": replaced.hold_no_shares}),
    "mps-control-daemon": ("gpuplane.mps", "run", {"make_daemons": replaced.NoDaemons}),
    "exporter": ("gpuplane.exporter.operand", "run", {"serve": replaced.serve_nobody}),
}
_FLAGS: Final = ("--host-root", "--kubelet-dir", "--port", "--config", "--cdi-specification")
_TOKEN_SECONDS: Final = 24 * 3600


class _Status(msgspec.Struct):
    token: str


class _TokenAnswer(msgspec.Struct):
    status: _Status


async def request_token(client: Client, pod: KubeletPod) -> str:
    """A token of a pod's service account, bound to the pod and good for a day. Raises ApiError."""
    meta, account = pod.metadata, pod.spec.service_account_name or "default"
    path = f"/api/v1/namespaces/{meta.namespace}/serviceaccounts/{account}/token"
    bound = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
    spec = {"audiences": [], "expirationSeconds": _TOKEN_SECONDS, "boundObjectRef": bound}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return msgspec.json.decode(await client.request("POST", path, None, body), type=_TokenAnswer).status.token


class PodAuth:
    """The token of one pod, asked for when it is first needed and again when the server refuses it."""

    def __init__(self, client: Client, pod: KubeletPod) -> None:
        self._client = client
        self._pod = pod
        self._credential: Credential | None = None
        self._asking = asyncio.Lock()

    async def credential(self, *, refused: bool = False) -> Credential:
        stale = self._credential
        async with self._asking:
            if self._credential is None or (refused and self._credential is stale):
                token = await request_token(self._client, self._pod)
                self._credential = Credential(header=f"Bearer {token}")
            return self._credential


class Accounts:
    """The clients of all light nodes' pods: one identity each, and the connections of one client for all."""

    def __init__(self, client: Client, hubs: Hubs, limit: asyncio.Semaphore, ca: bytes) -> None:
        """`ca`: of the API server, PEM; empty for plain HTTP."""
        self._client = client
        # NB: a client with a certificate is known by that, whatever token it sends.
        tls = ssl.create_default_context(cadata=ca.decode()) if ca else client.endpoint.tls
        endpoint = msgspec.structs.replace(client.endpoint, tls=tls)
        self._shared = ViewClient(endpoint, user_agent="gpuplane-light/operands")
        self._shared.hubs = hubs
        self._shared.limit = limit

    def client(self, pod: KubeletPod) -> ViewClient:
        return self._shared.as_other(PodAuth(self._client, pod))

    async def aclose(self) -> None:
        await self._shared.aclose()


def operand_name(container: SpecContainer) -> str:
    """Return the operand in a container of gpuplane's image, "" for none."""
    words = [*container.command, *container.args]
    if words[:1] == ["gpuplane"]:
        words = words[1:]
    return words[1] if len(words) > 1 and words[0] == "run" and words[1] in _OPERANDS else ""


def is_program(container: SpecContainer) -> bool:
    """Return whether a container of gpuplane's image runs something that is no node operand."""
    image = IMAGES.find(container.image)
    return image.entrypoint == ("gpuplane",) and not operand_name(container)


def node_path(pod: KubeletPod, container: SpecContainer, root: Path, path: str) -> Path:
    """Return the path in the node's root of a container's path, through its hostPath volumes."""
    sources = {v.name: v.host_path.path for v in pod.spec.volumes if v.host_path is not None}
    mounts = [(m.mount_path.rstrip("/"), sources[m.name]) for m in container.volume_mounts if m.name in sources]
    for target, source in sorted(mounts, key=lambda pair: -len(pair[0])):
        if path == target or path.startswith(f"{target}/"):
            return root / source.strip("/") / path[len(target) :].strip("/")
    raise InvalidInput(f"{path} is on no hostPath volume", where=f"container {container.name}")


def files_path(pod: KubeletPod, container: SpecContainer, root: Path, path: str) -> Path:
    """Return the path on the node of a container's path on a ConfigMap. Raises InvalidInput for any other path."""
    volumes = {volume.name for volume in pod.spec.volumes if volume.config_map is not None}
    for mount in container.volume_mounts:
        target = mount.mount_path.rstrip("/")
        if mount.name in volumes and (path == target or path.startswith(f"{target}/")):
            return volume_dir(pod, root, mount.name) / path[len(target) :].strip("/")
    raise InvalidInput(f"{path} is on no ConfigMap", where=f"container {container.name}")


def _pod_path(pod: KubeletPod, container: SpecContainer, root: Path, path: str) -> Path:
    try:
        return files_path(pod, container, root, path)
    except InvalidInput:
        return root / "nothing-is-mounted-here"


def volume_dir(pod: KubeletPod, root: Path, volume: str) -> Path:
    return root / "var/lib/kubelet/pods" / pod.metadata.uid / "volumes" / volume


async def write_config_maps(client: Client, pod: KubeletPod, container: SpecContainer, root: Path) -> bool:
    """The ConfigMaps of a container as files, as they are now; False while one does not exist."""
    mounted = {mount.name for mount in container.volume_mounts}
    for volume in pod.spec.volumes:
        if volume.config_map is None or volume.name not in mounted:
            continue
        try:
            data = (await client.get(ConfigMap, volume.config_map.name, pod.metadata.namespace)).data
        except NotFound:
            if not volume.config_map.optional:
                return False
            data = {}
        wanted = {item.key: item.path for item in volume.config_map.items} or dict.fromkeys(data, "")
        directory = volume_dir(pod, root, volume.name)
        directory.mkdir(parents=True, exist_ok=True)
        for key, path in wanted.items():
            if key in data:
                (directory / (path or key)).write_text(data[key])
    return True


def operand(
    pod: KubeletPod,
    container: SpecContainer,
    *,
    root: Path,
    client: Client,
    host: LightHost,
    hardware: LightHardware,
    kubelet: LightKubelet,
    now: Callable[[], str],
) -> Coroutine[Any, Any, None]:
    """The coroutine that a container of gpuplane's image is. Raises InvalidInput for arguments it cannot have here."""
    name = operand_name(container)
    words = [word for word in (*container.command, *container.args) if word != "gpuplane"][2:]
    options = _options(words)
    module, function, given = _OPERANDS[name]
    if "--uninstall" in options:
        module, function, given = module.removesuffix(".operand"), "uninstall", {}
    specification = options.get("--cdi-specification", "")
    env: Mapping[str, str] = {variable.name: variable.value for variable in container.env}
    context = OperandContext(
        node_name=pod.spec.node_name,
        namespace=pod.metadata.namespace,
        client=client,
        now=now,
        host_root=node_path(pod, container, root, options["--host-root"]) if "--host-root" in options else root,
        kubelet_dir=root / "var/lib/kubelet",
        cdi_specification=node_path(pod, container, root, specification) if specification else None,
        config=files_path(pod, container, root, options["--config"]) if "--config" in options else None,
        port=int(options["--port"]) if "--port" in options else None,
        pod_name=pod.metadata.name,
        image=env.get("GPUPLANE_IMAGE", container.image),
        open_gpus=hardware.open,
        kubelet=kubelet,
        vector_add=hardware.vector_add,
        open_host=lambda place: LightRoot(place, host),
        pod_path=lambda path: _pod_path(pod, container, root, path),
        sleep=asyncio.sleep,
        environment=env,
    )
    run: Coroutine[Any, Any, None] = getattr(importlib.import_module(module), function)(context, **given)
    return run


def _options(words: list[str]) -> dict[str, str]:
    """`--flag=value` and `--flag value`. Raises InvalidInput for a flag that a light node does not know.

    NB: not argparse, whose parser takes 4 ms to make, for each of thousands of containers.
    """
    options = {}
    rest = list(words)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag in ("-v", "--verbose"):
            continue
        if flag == "--uninstall":
            options[flag] = ""
            continue
        if flag not in _FLAGS or (not equals and not rest):
            raise InvalidInput(f"unknown or incomplete argument {flag}", where="container arguments")
        options[flag] = value if equals else rest.pop(0)
    return options
