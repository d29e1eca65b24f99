"""Observes an installation: one pass of lists, each with the right that it needs.

A source that the user may not read is left out with its right; a kind that the cluster does not serve is empty. An API
server that does not answer ends the command.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from gpuplane import __version__, names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.crds import crds
from gpuplane.api.gpunode import GPUNode
from gpuplane.cli.doctor.facts import DoctorFacts, NamespaceResourceQuota, WebhookTrust
from gpuplane.cli.doctor.finding import UnreadSource
from gpuplane.cli.status_reading import BYPASSES
from kubekit.api.core import ConfigMap, CustomResourceDefinition, DaemonSet, Deployment, Event, LeaseObject, Node, Pod
from kubekit.api.kinds import built_in
from kubekit.kube import Client, Forbidden, NotFound
from kubekit.kube.codec import decode_any

ROLE: Final = "gpuplane:doctor"  # the ClusterRole of the installation that has all of these rights
NODE_LEASES: Final = "kube-node-lease"
_NAMESPACE: Final = names.OPERATOR_NAMESPACE
_WEBHOOK_KINDS: Final = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


class FactSource(msgspec.Struct, frozen=True):
    """A field of DoctorFacts: the right that it needs, in words, and how it is read; `empty` where it is not served."""

    right: str
    read: Callable[[Client], Awaitable[Any]]
    empty: Any = ()


async def _version(client: Client) -> str:
    return str(decode_any(await client.request("GET", "/version")).get("gitVersion", ""))


async def _crds(client: Client) -> dict[str, Any]:
    path = CustomResourceDefinition.RESOURCE.path()
    ours = {one["metadata"]["name"] for one in crds()}
    found = decode_any(await client.request("GET", path))["items"]
    return {one["metadata"]["name"]: one for one in found if one["metadata"]["name"] in ours}


async def _webhooks(client: Client) -> list[WebhookTrust]:
    found = []
    for kind in _WEBHOOK_KINDS:
        path = built_in("admissionregistration.k8s.io/v1", kind).path(None, names.ADMISSION_NAME)
        try:
            configuration = decode_any(await client.request("GET", path))
        except NotFound:
            continue
        for webhook in configuration.get("webhooks") or ():
            bundle = (webhook.get("clientConfig") or {}).get("caBundle") or ""
            found.append(WebhookTrust(kind, webhook.get("name", ""), base64.b64decode(bundle)))
    return found


async def _gpu_quotas(client: Client) -> str | None:
    found = await client.get(ConfigMap, names.QUOTA_CONFIGMAP, names.QUOTA_NAMESPACE)
    return found.data.get(names.QUOTA_KEY)


def _list(kind: Any, namespace: str | None = None, fields: str = "") -> Callable[[Client], Awaitable[Any]]:
    return lambda client: client.list(kind, namespace, fields=fields)


SOURCES: Final[Mapping[str, FactSource]] = {
    "version": FactSource("get /version", _version, ""),
    "clock": FactSource("get /version", lambda client: client.server_time()),
    "crds": FactSource("list customresourcedefinitions.apiextensions.k8s.io", _crds, {}),
    "leases": FactSource(f"list leases.coordination.k8s.io in {_NAMESPACE}", _list(LeaseObject, _NAMESPACE)),
    "node_leases": FactSource(f"list leases.coordination.k8s.io in {NODE_LEASES}", _list(LeaseObject, NODE_LEASES)),
    "deployments": FactSource(f"list deployments.apps in {_NAMESPACE}", _list(Deployment, _NAMESPACE)),
    "daemonsets": FactSource(f"list daemonsets.apps in {_NAMESPACE}", _list(DaemonSet, _NAMESPACE)),
    "pods": FactSource("list pods", _list(Pod)),
    "nodes": FactSource("list nodes", _list(Node)),
    "gpunodes": FactSource("list gpunodes.gpuplane.dev", _list(GPUNode)),
    "policies": FactSource("list clusterpolicies.nvidia.com", _list(ClusterPolicy)),
    "bypasses": FactSource("list events", _list(Event, fields=BYPASSES)),
    "webhooks": FactSource(
        f"get mutatingwebhookconfigurations and validatingwebhookconfigurations.admissionregistration.k8s.io named "
        f"{names.ADMISSION_NAME}",
        _webhooks,
    ),
    "resource_quotas": FactSource(f"list resourcequotas in {_NAMESPACE}", _list(NamespaceResourceQuota, _NAMESPACE)),
    "gpu_quotas": FactSource(
        f"get configmaps named {names.QUOTA_CONFIGMAP} in {names.QUOTA_NAMESPACE}", _gpu_quotas, None
    ),
}


async def observe(client: Client, wanted: Iterable[str]) -> tuple[DoctorFacts, dict[str, UnreadSource]]:
    """Return the facts of the sources `wanted`, and by name the sources that the user may not read.

    The clock is read after the leases: a lease that is renewed in between must not seem to be of the future.
    """
    wanted = [name for name in SOURCES if name in set(wanted)]
    values: dict[str, Any] = {}
    refused: dict[str, Forbidden] = {}

    async def read(name: str) -> None:
        try:
            values[name] = await SOURCES[name].read(client)
        except NotFound:
            values[name] = SOURCES[name].empty
        except Forbidden as error:
            refused[name] = error

    await asyncio.gather(*(read(name) for name in wanted if name != "clock"))
    if "clock" in wanted:
        await read("clock")
    cure = await _grant(client) if refused else ""
    unread = {name: UnreadSource(SOURCES[name].right, str(error.what), cure) for name, error in refused.items()}
    if "clock" in values and values["clock"] is None:
        del values["clock"]
        unread["clock"] = UnreadSource("see its clock", "it sends no Date", "let proxies pass the header Date on")
    return DoctorFacts(program=__version__, wanted_crds=crds(), **values), unread


async def _grant(client: Client) -> str:
    """Return the command by which an administrator gives the user the rights of the doctor."""
    try:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = built_in(review["apiVersion"], review["kind"]).path()
        user = decode_any(await client.request("POST", path, None, review))["status"]["userInfo"]["username"]
    except (Forbidden, NotFound, KeyError):
        user = "NAME"
    return f"kubectl create clusterrolebinding gpuplane-doctor --clusterrole={ROLE} --user={user}"
