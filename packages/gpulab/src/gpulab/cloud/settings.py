"""The settings that `gpuplane up --cloud` passes to the cloud of a cluster, and the address at which it answers.

clusters/<name>/cloud/endpoint.json      where it listens; kept, so that a restart keeps the port
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kubekit.errors import NoAnswer
from tinykube.cluster.directory import ClusterDirectory, write

COMPONENT: Final = "cloud"
ACCOUNT: Final = "123456789012"  # moto's
CLUSTER_NAME: Final = "demo"  # by which the autoscaler of this cluster tags its instances
DISCOVERY_TAG: Final = "karpenter.sh/discovery"


class CloudSettings(msgspec.Struct, frozen=True):
    """The settings of one cloud. `launch_templates` are documents in the form of CreateLaunchTemplate."""

    launch_templates: tuple[dict[str, Any], ...] = ()
    boot_seconds: float = 0.0


class CloudAddress(msgspec.Struct, frozen=True):
    """The address of the cloud: for the AWS provider, boto3 and the AWS CLI, and for `gpuplane cloud`."""

    url: str
    port: int
    region: str


def read_settings(directory: ClusterDirectory) -> CloudSettings | None:
    """Return the settings of a cluster's cloud; None for a cluster without one."""
    found = directory.spec().components.get(COMPONENT)
    return None if found is None else msgspec.convert(found, CloudSettings)


def read_address(directory: ClusterDirectory) -> CloudAddress | None:
    return directory.read(directory.path / COMPONENT / "endpoint.json", CloudAddress)


def write_address(directory: ClusterDirectory, address: CloudAddress) -> None:
    path = directory.path / COMPONENT / "endpoint.json"
    path.parent.mkdir(exist_ok=True)
    write(path, msgspec.json.encode(address))


def environment(address: CloudAddress) -> dict[str, str]:
    """Return the environment by which boto3, the AWS CLI and the autoscaler use the cloud."""
    return {
        "AWS_ENDPOINT_URL": address.url,
        "AWS_REGION": address.region,
        "AWS_ACCESS_KEY_ID": "simulated",
        "AWS_SECRET_ACCESS_KEY": "simulated",
    }


def require_address(directory: ClusterDirectory) -> CloudAddress:
    """Raises NoAnswer when the cluster has no cloud, or the cloud has not started yet."""
    address = read_address(directory)
    if address is None:
        cure = "gpuplane up --cloud starts a cluster with one"
        raise NoAnswer(f"cluster {directory.name} has no simulated cloud", where=str(directory.path), cure=cure)
    return address
