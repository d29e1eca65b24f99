"""A tenant cannot say which GPUs a pod holds, before the bind, with it or after it; the extender can, once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuplane import names
from kubekit.kube import ApiError, Client

FORGED = {names.ASSIGNMENT_ANNOTATION: "{}"}
OF_OLD = {f"{names.PREDICATE_INDEX_PREFIX}0": "3"}
PODS = "/api/v1/namespaces/default/pods"


async def patched(client: Client, annotations: dict[str, Any], subresource: str = "") -> None:
    path = f"{PODS}/p{subresource and '/'}{subresource}"
    await client.request(
        "PATCH", path, None, {"metadata": {"annotations": annotations}}, "application/merge-patch+json"
    )


async def bound(client: Client, annotations: dict[str, str], *, old_path: bool = False) -> None:
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "annotations": annotations},
        "target": {"kind": "Node", "name": "n"},
    }
    path = "/api/v1/namespaces/default/bindings" if old_path else f"{PODS}/p/binding"
    await client.request("POST", path, None, binding)


async def denied(attempt: Any) -> str:
    with pytest.raises(ApiError) as error:
        await attempt
    assert error.value.status == 403 and "gpuplane-own-assignment" in str(error.value)
    return str(error.value)


async def annotations(client: Client) -> dict[str, str]:
    found: dict[str, str] = json.loads(await client.request("GET", f"{PODS}/p"))["metadata"].get("annotations", {})
    return found


@pytest.fixture
async def policed(world: Any) -> Any:
    """The installation without the webhook: the policy needs none."""
    await world.install("open")
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        await world.server.registry.delete(plural, None, names.ADMISSION_NAME)
    return world


@pytest.mark.parametrize("forged", [FORGED, OF_OLD, {names.PREDICATE_NODE_ANNOTATION: "n"}])
async def test_nobody_creates_a_pod_that_holds_gpus_already(policed, make_pod, forged):
    assert "jane" in await denied(policed.create(make_pod(annotations=forged)))
    async with policed.client("scheduler") as extender:
        await denied(policed.create(make_pod(annotations=forged), extender))
    await policed.create(make_pod(annotations={"tencent.com/other": "1", "gpuplane.dev/gpu-policy": "spread"}))


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_a_tenant_cannot_write_it_before_the_bind(policed, make_pod, subresource):
    await policed.create(make_pod())
    await denied(patched(policed.tenant, FORGED, subresource))
    await denied(patched(policed.tenant, OF_OLD, subresource))
    await patched(policed.tenant, {"mine": "1"})


@pytest.mark.parametrize("old_path", [False, True])
async def test_a_tenant_cannot_bind_with_it_and_the_extender_can(policed, make_pod, old_path):
    await policed.create(make_pod())
    await denied(bound(policed.tenant, FORGED, old_path=old_path))
    async with policed.client("scheduler") as extender:
        await bound(extender, FORGED | OF_OLD, old_path=old_path)
    assert await annotations(policed.admin) == FORGED | OF_OLD


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_after_the_bind_nobody_changes_or_removes_it(policed, make_pod, subresource):
    await policed.create(make_pod())
    async with policed.client("scheduler") as extender:
        await bound(extender, FORGED)
        for client in (policed.tenant, extender, policed.admin):
            for change in ({names.ASSIGNMENT_ANNOTATION: "{1}"}, {names.ASSIGNMENT_ANNOTATION: None}, OF_OLD):
                await denied(patched(client, change, subresource))
            await patched(client, {"other": "1"}, subresource)
    assert (await annotations(policed.admin))[names.ASSIGNMENT_ANNOTATION] == "{}"


async def test_without_binding_the_extender_writes_it_before_the_bind(policed, make_pod):
    """Its mode for schedulers that cannot let an extender bind."""
    await policed.create(make_pod())
    async with policed.client("scheduler") as extender:
        await patched(extender, OF_OLD)
        await patched(extender, {f"{names.PREDICATE_INDEX_PREFIX}0": "1"})
    await denied(patched(policed.tenant, OF_OLD))
    await bound(policed.tenant, {})
    assert await annotations(policed.admin) == {f"{names.PREDICATE_INDEX_PREFIX}0": "1"}


async def test_a_tenant_may_bind_without_it(policed, make_pod):
    await policed.create(make_pod())
    await bound(policed.tenant, {"mine": "1"})
    assert await annotations(policed.admin) == {"mine": "1"}
