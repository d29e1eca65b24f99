"""The specification of an embedded cluster, stored in the cluster's directory as `cluster.json`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from kubekit.errors import InvalidInput
from tinykube.kubelet.settings import KubeletSettings

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
MAX_PORT: Final = 65535


class MachineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated machine with a kubelet of its own; `machine` is a profile's name."""

    name: str
    machine: str
    kubelet: KubeletSettings = KubeletSettings()


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An embedded cluster. `port` 0 takes a free one at the first start and keeps it.

    `persist` keeps objects on disk, so that a killed API server loses nothing. `scheduler_config` is the absolute path
    of a KubeSchedulerConfiguration or Policy (extenders), empty for that of the distribution. `components` are further
    processes of the distribution, by component, with settings that only the component reads. `kubernetes` is the
    release whose own programs are the control plane, such as `1.36`; empty for the embedded one. `containerd`: nodes
    are machines with containerd and that release's kubelet, as root.
    """

    name: str = "tinykube"
    nodes: tuple[MachineSpec, ...] = ()
    light_nodes: int = 0
    light_machine: str = ""
    port: int = 0
    persist: bool = False
    scheduler_config: str = ""
    images: dict[str, str] = {}
    components: dict[str, dict[str, Any]] = {}
    kubernetes: str = ""
    containerd: bool = False

    @property
    def renew_seconds(self) -> float:
        """Return how often a light node renews its lease: thousands on one machine must leave it time for something
        else.
        """
        return max(15.0, self.light_nodes / 40)

    @property
    def grace_seconds(self) -> float:
        """Return how long a node may be silent; Kubernetes' 40 s, or what fits `renew_seconds`."""
        return max(40.0, 2.7 * self.renew_seconds)

    def check(self, check_machine: Callable[[str], object]) -> None:
        """Raises InvalidInput with everything that is wrong; `check_machine` raises it for an unknown machine."""
        findings = []
        if not _NAME.fullmatch(self.name):
            findings.append(f"name {self.name!r}: use lower case letters, digits and '-', at most 63")
        seen: set[str] = set()
        for node in self.nodes:
            if not _NAME.fullmatch(node.name):
                findings.append(f"node name {node.name!r}: use lower case letters, digits and '-', at most 63")
            if node.name in seen:
                findings.append(f"two nodes have the name {node.name!r}")
            seen.add(node.name)
            findings += _problems(check_machine, node.machine)
        if self.light_machine:
            findings += _problems(check_machine, self.light_machine)
        if self.scheduler_config:
            findings += _problems(_load_scheduler_config, self.scheduler_config)
        findings += [
            f"image {name}: {place} has no bin"
            for name, place in self.images.items()
            if not (Path(place) / "bin").is_dir()
        ]
        if self.light_nodes < 0:
            findings.append(f"light nodes: {self.light_nodes} is negative")
        if not 0 <= self.port <= MAX_PORT:
            findings.append(f"port {self.port}: use 0 to {MAX_PORT}")
        if findings:
            raise InvalidInput("; ".join(findings), where=f"cluster {self.name}", findings=tuple(findings))


def _problems(check: Callable[[str], object], value: str) -> list[str]:
    try:
        check(value)
    except InvalidInput as error:
        return [str(error)]
    return []


def _load_scheduler_config(path: str) -> None:
    # Imported here, because every process of a cluster reads its spec, and few need the scheduler.
    from tinykube.scheduler import load

    load(Path(path))
