"""The autoscaler's part of an installation: definitions, account, Deployment and settings.

The settings are the environment of `gpuplane run autoscaler`, by Karpenter's names. Credentials go into a Secret.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.karpenter import EC2NodeClass, NodePool, Provisioner
from gpuplane.api.karpenter_crds import karpenter_crds
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.schema import OURS
from gpuplane.operator.manifest import Manifest
from kubekit.errors import InvalidInput

CLUSTER_NAME: Final = "CLUSTER_NAME"
ENDPOINT: Final = "AWS_ENDPOINT_URL"
ROLE_ANNOTATION: Final = "eks.amazonaws.com/role-arn"
CREDENTIALS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
SETTINGS: Final = {
    CLUSTER_NAME: "name of the cluster in the cloud's tags",
    "AWS_REGION": "region of the cloud, instead of the one that the instance is in",
    ENDPOINT: "address of a cloud with Amazon's interfaces, instead of Amazon's own",
    "INTERRUPTION_QUEUE": "queue of SQS with notices of interruptions; none without it",
    "BATCH_IDLE_DURATION": "pods that follow each other faster are decided together (1s)",
    "BATCH_MAX_DURATION": "longest wait for more pods (10s)",
    "CLUSTER_ENDPOINT": "address of the API server, for user data that the autoscaler writes",
    "CLUSTER_CA_BUNDLE": "certificate of the API server in base64, for the same",
    "SERVICE_CIDR": "network of Services, as 10.100.0.0/16; AL2023 needs it in its user data",
    "AWS_DEFAULT_INSTANCE_PROFILE": "instance profile of classes that name none",
    "ISOLATED_VPC": "`true`: the network has no way to the price list",
    "PREFERENCE_POLICY": "`Ignore`: what pods prefer buys no other nodes (`Respect`)",
    "MIN_VALUES_POLICY": "`BestEffort`: a pool that cannot leave its minValues leaves fewer (`Strict`)",
    "VM_MEMORY_OVERHEAD_PERCENT": "part of the memory that no kubelet sees, of types without a node so far (`0.075`)",
    "FEATURE_GATES": "`NodeRepair=true`: broken nodes are restarted, then replaced; `NodeOverlay=true`: NodeOverlays"
    " change prices and resources; `SpotToSpotConsolidation=true`: spot nodes are replaced by cheaper spot nodes",
}
"""Name -> meaning. Credentials and every other `AWS_` name that boto3 reads are settings too."""

_NODES: Final = tuple(
    f"{kind.RESOURCE.plural}.{kind.RESOURCE.group}" for kind in (Provisioner, NodePool, NodeClaim, EC2NodeClass)
)
CLASSES: Final = _NODES[-1]


class AutoscalerInstall(msgspec.Struct, frozen=True):
    """The settings of the autoscaler's installation. `role` is the cloud's role of its account, empty for none."""

    environment: Mapping[str, str] = {}
    role: str = ""


def read_environment(settings: Iterable[str]) -> dict[str, str]:
    """Read `NAME=VALUE` of each setting. Raises InvalidInput for an unknown name, or one without a value."""
    found: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals and value):
            raise InvalidInput(
                f"{setting!r} sets nothing", where="--cloud-env", cure="--cloud-env AWS_REGION=us-east-1"
            )
        if name not in SETTINGS and not name.startswith("AWS_"):
            near = difflib.get_close_matches(name, [*SETTINGS, *CREDENTIALS], 1)
            cure = f"did you mean {near[0]}?" if near else f"choose of {', '.join(SETTINGS)}, and boto3's own names"
            raise InvalidInput(f"the autoscaler reads no {name}", where="--cloud-env", cure=cure)
        found[name] = value
    return found


def autoscaler_manifests(files: Iterable[Manifest], asked: AutoscalerInstall) -> list[Manifest]:
    """Return the part's objects with its settings, in the order to apply. `files` are those of its folder.

    Raises InvalidInput where the cluster has no name: two clusters in one account would end each other's nodes.
    """
    if not asked.environment.get(CLUSTER_NAME):
        cure = "--cluster-name NAME: the name that subnets and security groups carry in their tags"
        raise InvalidInput(
            "the autoscaler needs the name of the cluster", where="gpuplane install --autoscaler", cure=cure
        )
    made = [*karpenter_crds(), *files]
    secret = {name: asked.environment[name] for name in CREDENTIALS if name in asked.environment}
    for manifest in made:
        if manifest["kind"] == "ServiceAccount" and asked.role:
            manifest["metadata"]["annotations"] = {ROLE_ANNOTATION: asked.role}
        if manifest["kind"] == "Deployment":
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            plain = {name: value for name, value in asked.environment.items() if name not in secret}
            container["env"] += [{"name": name, "value": plain[name]} for name in sorted(plain)]
    return [*made[:-1], *([_secret(secret)] if secret else []), made[-1]]


def _secret(values: Mapping[str, str]) -> Manifest:
    meta: dict[str, Any] = {"name": names.AUTOSCALER_NAME, "namespace": names.OPERATOR_NAMESPACE, "labels": dict(OURS)}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "stringData": dict(values)}


def autoscaler_everything(files: Iterable[Manifest]) -> list[Manifest]:
    """Return all that the part may have put on a cluster, in the order to apply.

    Taken away in reverse, pools and claims go first, while the autoscaler still runs: it ends the nodes. Then go the
    classes that it has to release.
    """
    made = karpenter_crds()
    by_name = {definition["metadata"]["name"]: definition for definition in made}
    nodes = [by_name[name] for name in _NODES]
    classes = [definition for definition in made if definition not in nodes]
    return [*classes, *files, _secret({}), *reversed(nodes)]


def is_of_nodes(manifest: Manifest) -> bool:
    """Return whether the autoscaler has work to do when the objects of a definition go: pools, claims and classes."""
    return manifest["kind"] == "CustomResourceDefinition" and manifest["metadata"]["name"] in _NODES


def is_of_classes(manifest: Manifest) -> bool:
    """Return whether a manifest is the definition of the classes that the autoscaler releases."""
    return is_of_nodes(manifest) and manifest["metadata"]["name"] == CLASSES
