"""The webhook's token changes the authority in its configurations, and neither rules nor addresses."""

from __future__ import annotations

import pytest

from gpuplane import names
from gpuplane.operator.installation import installation
from tests.support.policy_world import PolicyWorld, token
from tests.support.stolen_tokens import REFUSED_WEBHOOKS, authority

ADMISSION = token(names.ADMISSION_NAME)
KINDS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}


@pytest.fixture
async def configured(world: PolicyWorld) -> PolicyWorld:
    """The world, with the webhook configurations of an installation."""
    for manifest in installation():
        if manifest["kind"] in KINDS:
            await world.registry.create(KINDS[manifest["kind"]], None, manifest)
    return world


@pytest.mark.parametrize("plural", KINDS.values())
async def test_the_authority_changes(configured: PolicyWorld, plural: str) -> None:
    said = await configured.refused_json_patch(ADMISSION, plural, names.ADMISSION_NAME, authority("Y2E="))
    assert said == ""


@pytest.mark.parametrize("what", sorted(REFUSED_WEBHOOKS))
@pytest.mark.parametrize("plural", KINDS.values())
async def test_what_it_is_asked_about_and_where_stays(configured: PolicyWorld, plural: str, what: str) -> None:
    patch = REFUSED_WEBHOOKS[what]
    said = await configured.refused_json_patch(ADMISSION, plural, names.ADMISSION_NAME, patch)
    assert "gpuplane-own-webhooks" in said
