"""Writes the file for support: objects, events, logs and metrics of gpuplane, without secrets, and bounded in size.

Invariants: the file appears whole or not at all, readable by its user alone; no Secret is read; what was left out or
cut is listed in `contents.json`, with the number of secrets that were removed.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gpuplane import names
from gpuplane.cli.doctor.redaction import Redactor
from gpuplane.cli.output_files import write_output
from gpuplane.cli.terminal import tilde
from gpuplane.sharing.dialects import ENABLE
from kubekit.api.core import Node, Pod
from kubekit.kube import ApiError, Client
from kubekit.kube.codec import decode_any

_NAMESPACE: Final = names.OPERATOR_NAMESPACE
LONGEST_FILE: Final = 4 << 20  # bytes of one file in it
LARGEST: Final = 64 << 20  # bytes of all files before compression
LOG_LINES: Final = 5000
# File -> path of its list.
OBJECTS: Final[Mapping[str, str]] = {
    "objects/clusterpolicies.json": "/apis/nvidia.com/v1/clusterpolicies",
    "objects/nvidiadrivers.json": "/apis/nvidia.com/v1alpha1/nvidiadrivers",
    "objects/gpunodes.json": "/apis/gpuplane.dev/v1alpha1/gpunodes",
    "objects/nodes.json": "/api/v1/nodes",
    "objects/pods.json": f"/api/v1/namespaces/{_NAMESPACE}/pods",
    "objects/deployments.json": f"/apis/apps/v1/namespaces/{_NAMESPACE}/deployments",
    "objects/daemonsets.json": f"/apis/apps/v1/namespaces/{_NAMESPACE}/daemonsets",
    "objects/leases.json": f"/apis/coordination.k8s.io/v1/namespaces/{_NAMESPACE}/leases",
    "objects/resourcequotas.json": f"/api/v1/namespaces/{_NAMESPACE}/resourcequotas",
    "events.json": f"/api/v1/namespaces/{_NAMESPACE}/events",
}
_PLUGIN: Final = "nvidia-device-plugin-daemonset"
# Component -> scheme and port of its metrics; the device plugin serves them on nodes with shares.
METRICS: Final[Mapping[str, tuple[str, int]]] = {
    "gpu-operator": ("", 8080),
    names.EXTENDER_NAME: ("https:", 3456),
    names.ADMISSION_NAME: ("https:", 8443),
    "nvidia-dcgm-exporter": ("", 9400),
    "nvidia-dcgm-exporter-privileged": ("", 9400),
    _PLUGIN: ("", 5678),
}


class BundleFiles:
    """The files of a bundle, with what was cut and left out."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: list[str] = []
        self.missing: dict[str, str] = {}
        self.redactor = Redactor()
        self._size = 0

    def add(self, name: str, content: bytes, *, keep_end: bool = False) -> None:
        """Add a file; one that is too long keeps its beginning, a log its end."""
        room = min(LONGEST_FILE, LARGEST - self._size)
        if room <= 0:
            self.missing[name] = f"the bundle has {LARGEST >> 20} MiB already"
            return
        if len(content) > room:
            self.cut.append(name)
            content = content[-room:] if keep_end else content[:room]
        self.files[name] = content
        self._size += len(content)

    def contents(self) -> bytes:
        """Return the description of what the bundle has."""
        return _json(
            {
                "files": {name: len(content) for name, content in sorted(self.files.items())},
                "cut": sorted(self.cut),
                "notRead": dict(sorted(self.missing.items())),
                "secretsRemoved": self.redactor.removed,
            }
        )


async def write_bundle(client: Client, place: Path, diagnosis: Mapping[str, Any], now: datetime) -> str:
    """Write the bundle and return a line about it. Raises InvalidInput for a place that cannot be written."""
    found = BundleFiles()
    found.add("doctor.json", _json(found.redactor.data(diagnosis)))
    for name, path in OBJECTS.items():
        with _missing(found, name):
            found.add(name, _json(found.redactor.data(decode_any(await client.request("GET", path)))))
    with _missing(found, "logs"):
        sharing = {node.metadata.name for node in await client.list(Node) if _offers_shares(node)}
        for pod in await client.list(Pod, _NAMESPACE):
            await _add_pod(client, pod, found, measured=_component(pod) != _PLUGIN or pod.spec.node_name in sharing)
    found.files["contents.json"] = found.contents()
    size = _write(place, found.files, now)
    left = f"; not read: {len(found.missing)}, see contents.json" if found.missing else ""
    return f"wrote {tilde(place)} {size / 1e3:,.0f} kB; secrets removed: {found.redactor.removed}{left}"


def _offers_shares(node: Node) -> bool:
    return node.metadata.labels.get(names.SHARE_LABEL) == ENABLE or names.VCUDA_CORE in node.status.capacity


def _component(pod: Pod) -> str:
    return pod.metadata.labels.get("app.kubernetes.io/name", "")


async def _add_pod(client: Client, pod: Pod, found: BundleFiles, *, measured: bool) -> None:
    name = pod.metadata.name
    path = Pod.RESOURCE.path(_NAMESPACE, name)
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        for previous in (False, True) if status.restart_count else (False,):
            file = f"logs/{name}/{status.name}{'.previous' if previous else ''}.log"
            options = {"container": status.name, "tailLines": str(LOG_LINES), "timestamps": "true"}
            options |= {"previous": "true"} if previous else {}
            with _missing(found, file):
                log = (await client.request("GET", f"{path}/log", options)).decode(errors="replace")
                found.add(file, found.redactor.text(log).encode(), keep_end=True)
    component = _component(pod)
    if measured and component in METRICS and pod.status.phase == "Running":
        scheme, port = METRICS[component]
        file = f"metrics/{name}.txt"
        with _missing(found, file):
            metrics = await client.request("GET", f"{path.removesuffix(name)}{scheme}{name}:{port}/proxy/metrics")
            found.add(file, found.redactor.text(metrics.decode(errors="replace")).encode())


@contextlib.contextmanager
def _missing(found: BundleFiles, name: str) -> Iterator[None]:
    """Note what the API server refuses, and go on."""
    try:
        yield
    except ApiError as error:
        found.missing[name] = found.redactor.text(error.what)


def _json(data: Any) -> bytes:
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _write(place: Path, files: Mapping[str, bytes], now: datetime) -> int:
    """Write the archive in one step and return its size in bytes."""
    moment = int(now.timestamp())
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=moment) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"gpuplane-doctor/{name}")
            entry.size, entry.mtime, entry.mode = len(content), moment, 0o600
            archive.addfile(entry, io.BytesIO(content))
    content = packed.getvalue()
    cure = "--bundle FILE.tar.gz in a directory of yours"
    write_output(place, content, option="--bundle", cure=cure, private=True)
    return len(content)
