"""No value of the chart is ignored: each acts, is refused by name, or is listed in the notes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from deploy.chart import generate, plugin_values
from packages.gpuplane.tests.kubernetes.chart_values import THEIRS
from tests.support.realkube.chart import CHART, helm

pytestmark = pytest.mark.usefixtures("with_helm")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("driver.enbled=false", "enbled"),
        ("devicplugin.enabled=false", "devicplugin"),
        ("driver.kernelModuleType=closed", "kernelModuleType"),
        ("daemonsets.updateStrategy=Sometimes", "updateStrategy"),
        ("platform.openshift=true", "openshift"),
        (
            "operator.setSchedulerName=true",
            "operator.setSchedulerName needs podScheduler.enabled and admission.enabled",
        ),
        (
            "operator.setSchedulerName=true,podScheduler.enabled=true,admission.enabled=false",
            "operator.setSchedulerName needs podScheduler.enabled and admission.enabled",
        ),
        ("scheduler.nodePolicy=best", "nodePolicy"),
        ("devicePlugin.config.default=x", "there is no ConfigMap"),
        ("gdsEnabled=true", "gdsEnabled: this release does not pass GPUDirect Storage to containers; use: leave it"),
        ("gdrcopyEnabled=true,mofedEnabled=true", "mofedEnabled: this release does not pass MOFED"),
        ("gdrcopyEnabled=true,mofedEnabled=true", "gdrcopyEnabled: this release does not pass GDRCopy"),
        ("deviceDiscoveryStrategy=tegra", "GPUs are found by NVML only"),
        ("affinity.podAffinity.a=b", "use: daemonsets.nodeSelector"),
        ("nfd.nodefeaturerules=true", "use: extraObjects with the NodeFeatureRules"),
        ("gds.enabled=true", "gds.enabled: GPUDirect Storage is not installed by this release; use: leave it out"),
        ("gdrcopy.enabled=true", "gdrcopy.enabled: GDRCopy is not installed"),
        ("migManager.config.name=own", "migManager.config.name: MIG layouts are not managed by this release; use: "),
        ("migManager.config.create=true,migManager.config.data.a=b", "migManager.config.create: MIG layouts"),
        ("sandboxWorkloads.enabled=true,vgpuManager.enabled=true", "sandboxWorkloads.enabled: nodes are prepared for"),
        ("sandboxWorkloads.enabled=true,vgpuManager.enabled=true", "vgpuManager.enabled: nodes are prepared for"),
        ("kataManager.enabled=true", "kataManager.enabled: nodes are prepared for containers only"),
        ("draDriver.enabled=true", "draDriver.enabled: there is no driver for dynamic resource allocation yet; use: "),
        ("draDriver.gpus.enabled=true", "draDriver.gpus.enabled: there is no driver for dynamic"),
        ("draDriver.featureGates.A=true", "draDriver.featureGates: there is no driver for dynamic"),
        ("driver.nvidiaDriverCRD.driverType=cpu", "driverType"),
    ],
)
def test_what_is_wrong_is_refused_by_name(setting: str, said: str) -> None:
    assert said in helm("template", "gpuplane", str(CHART), "--set", setting, code=1)


def test_it_says_what_has_no_effect() -> None:
    settings = "dcgm.enabled=true,psa.enabled=true,driver.enabled=false,toolkit.enabled=true"
    text = helm("install", "gpuplane", str(CHART), "--dry-run=client", "--set", settings)
    notes = text.partition("NOTES:")[2]
    assert "  the exporter reads the GPUs itself:\n    dcgm: enabled\n" in notes
    assert "    psa: enabled\n" in notes
    assert "  driver:" not in notes and "  toolkit:" not in notes


def test_what_has_no_effect_in_nvidias_own_values_fits_a_screen() -> None:
    values = (THEIRS / "gpu-operator.json").read_text()
    notes = helm("install", "gpuplane", str(CHART), "--dry-run=client", values=values).partition("NOTES:")[2]
    assert "    devicePlugin: repository, image, version\n" in notes
    assert len(notes.splitlines()) < 60


# Settings under which a value of the chart's own can be seen to act, where its defaults are not such.
UNDER = {
    "operator.version": "operator.image=own",
    "driver.nvidiaDriverCRD.deployDefaultCR": "driver.nvidiaDriverCRD.enabled=true",
    "driver.nvidiaDriverCRD.driverType": "driver.nvidiaDriverCRD.enabled=true",
    "driver.nvidiaDriverCRD.nodeSelector": "driver.nvidiaDriverCRD.enabled=true",
    "devicePlugin.config.create": "devicePlugin.config.data.a=b",
    "devicePlugin.config.data": "devicePlugin.config.create=true",
    "dcgmExporter.config.create": "dcgmExporter.config.name=own,dcgmExporter.config.data.a=b",
    "dcgmExporter.config.data": "dcgmExporter.config.name=own,dcgmExporter.config.create=true",
    "config.default": "config.name=own",
    "autoscaler.enabled": "autoscaler.clusterName=own",
    "monitoring.labels": "monitoring.enabled=true",
    **dict.fromkeys(("dashboard.hosts", "dashboard.claim", "dashboard.resources"), "dashboard.enabled=true"),
    **dict.fromkeys(
        (
            f"podScheduler.defragmentation.{name}"
            for name in ("enabled", "movesPerHour", "movesAtOnce", "after", "coolDown")
        ),
        "podScheduler.enabled=true",
    ),
    **dict.fromkeys(
        (f"autoscaler.{name}" for name in ("clusterName", "cloudEndpoint", "cloudRole", "env", "resources")),
        "autoscaler.enabled=true,autoscaler.clusterName=own",
    ),
}
ITEM = {"extraObjects": ".kind=ConfigMap", "fallbackStrategies": "=named"}


def own_values(values: dict[str, Any], group: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, schema) of each value that is the chart's own, without those that it says have no effect."""
    for name, schema in values.items():
        path = f"{group}.{name}".lstrip(".")
        if "properties" in schema:
            yield from own_values(schema["properties"], path)
        elif not schema["description"].startswith("no effect"):
            yield path, schema


OWN_VALUES = dict(
    [value for group, values in generate.OWN.items() for value in own_values(values, group)]
    + list(own_values({name: schema for name, schema in generate.TOP.items() if name not in plugin_values.TOP}))
)


def other_value(path: str, schema: dict[str, Any]) -> str:
    """Return a setting of another value than the default."""
    default, name = schema["default"], path.rpartition(".")[2]
    if "const" in schema:
        return f"{path}={str(not default).lower()}"
    if "enum" in schema:
        return f"{path}={next(one for one in schema['enum'] if one != default)}"
    match generate.first_type(schema):
        case "boolean":
            return f"{path}={str(not default).lower()}"
        case "integer":
            return f"{path}={default + 1}"
        case "array":
            return f"{path}[0]" + ITEM.get(name, ".name=own")
        case "object":
            return f"{path}.a=b"
        case "string":
            return f"{path}=other"
    raise AssertionError(path)


@pytest.mark.parametrize("path", OWN_VALUES)
def test_no_value_of_the_charts_own_is_ignored(path: str) -> None:
    """Each changes what is rendered, or is refused; those without effect say so in their description."""
    under = ("--set", UNDER[path]) if path in UNDER else ()
    template = ("template", "gpuplane", str(CHART), *under)
    setting = other_value(path, OWN_VALUES[path])
    if "const" in OWN_VALUES[path] or path in plugin_values.refused():
        assert path.rpartition(".")[2] in helm(*template, "--set", setting, code=1)
    else:
        assert helm(*template, "--set", setting) != rendered_before(*template)


@cache
def rendered_before(*template: str) -> str:
    """Return the rendered text without the setting: the same for most."""
    return helm(*template)
