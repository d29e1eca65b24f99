"""The dashboard in the chart, by a real helm: what `gpuplane install --dashboard` applies."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.operator.installation import DASHBOARD, installation, manifests
from packages.gpuplane.tests.kubernetes.chart_values import is_hook, place, rendered

pytestmark = pytest.mark.usefixtures("with_helm")


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ("dashboard.enabled=true", {"dashboard": ()}),
        ("dashboard.enabled=true,podScheduler.enabled=true", {"dashboard": (), "pod_scheduler": True}),
        ("dashboard.enabled=true,dashboard.hosts={a.example.com,b}", {"dashboard": ("a.example.com", "b")}),
        (
            "dashboard.enabled=true,scheduler.enabled=false,admission.enabled=false",
            {"dashboard": (), "scheduler": False, "admission": ""},
        ),
    ],
)
def test_it_renders_what_install_applies(settings: str, asked: dict[str, Any]) -> None:
    made = {place(one): one for one in rendered("--set", settings) if not is_hook(one)}
    assert made == {place(one): one for one in installation(**asked)}


def test_unless_it_is_asked_for_there_is_nothing_of_it() -> None:
    parts = {place(one) for one in manifests(DASHBOARD)}
    assert len(parts) == 12
    assert not parts & {place(one) for one in rendered()}


def test_its_container_takes_other_resources() -> None:
    found = rendered("--set", "dashboard.enabled=true,dashboard.resources.limits.memory=3Gi")
    [deployment] = [
        one for one in found if one["kind"] == "Deployment" and one["metadata"]["name"] == names.DASHBOARD_NAME
    ]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"memory": "3Gi"}}
