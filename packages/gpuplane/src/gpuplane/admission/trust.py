"""Lets the API server trust the webhook: its authorities in `caBundle` of its webhook configurations."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from gpuplane import names
from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct
from kubekit.kube import Client, NotFound
from kubekit.kube.server_certificates import CertificatePlan, ServerCertificates, trusts


class _ClientConfig(Struct):
    ca_bundle: bytes = b""


class _Webhook(Struct):
    name: str
    client_config: _ClientConfig = _ClientConfig()


class MutatingConfiguration(Struct):
    RESOURCE: ClassVar[Resource] = built_in("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration")
    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[_Webhook, ...] = ()


class ValidatingConfiguration(Struct):
    RESOURCE: ClassVar[Resource] = built_in("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")
    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[_Webhook, ...] = ()


Configuration = type[MutatingConfiguration] | type[ValidatingConfiguration]
_CONFIGURATIONS: Final[tuple[tuple[Configuration, str], ...]] = (
    (MutatingConfiguration, names.ADMISSION_NAME),
    (ValidatingConfiguration, names.ADMISSION_NAME),
    (MutatingConfiguration, names.SCHEDULER_NAME_WEBHOOK),
)


async def announce(client: Client, kept: ServerCertificates, *, names_schedulers: bool = False) -> None:
    """Add the authorities to the configurations that do not have them. Raises ApiError.

    `names_schedulers`: also to the configuration that sets the scheduler name of pods.
    """
    for kind, name in _CONFIGURATIONS:
        if names_schedulers or name == names.ADMISSION_NAME:
            await _announce(client, kind, name, kept.authorities)


async def _announce(client: Client, kind: Configuration, name: str, bundle: bytes) -> None:
    """Let the API server trust the bundle; a configuration that is not there needs none."""
    try:
        found = await client.get(kind, name)
    except NotFound:
        return
    stale = [
        (index, webhook)
        for index, webhook in enumerate(found.webhooks)
        if not trusts(webhook.client_config.ca_bundle, bundle)
    ]
    if not stale:
        return
    patch: list[dict[str, Any]] = []
    for index, webhook in stale:
        patch += [
            {"op": "test", "path": f"/webhooks/{index}/name", "value": webhook.name},
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle},
        ]
    await client.patch(kind, name, patch, type="json", manager=names.ADMISSION_NAME)


def plan_of(namespace: str) -> CertificatePlan:
    """Return the plan with the names by which an API server calls the Service, and `localhost` for an API server that
    has a URL instead.
    """
    service = f"{names.ADMISSION_NAME}.{namespace}.svc"
    return CertificatePlan(names.ADMISSION_NAME, (service, f"{service}.cluster.local", "localhost"))
