"""Objects that a real helm renders from the chart: those of `gpuplane install`, and the effects of values."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import yaml

from deploy.chart import generate
from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.api.validation import check_object, errors
from gpuplane.operator.drivers import choices, owner_of
from gpuplane.operator.installation import installation
from packages.gpuplane.tests.kubernetes.chart_values import (
    THEIRS,
    is_hook,
    nvidia_drivers,
    operator,
    place,
    policy,
    rendered,
)
from tests.support.realkube.chart import CHART, helm

pytestmark = pytest.mark.usefixtures("with_helm")


def test_it_lints() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_it_renders_what_install_applies() -> None:
    made = {place(manifest): manifest for manifest in rendered() if not is_hook(manifest)}
    operator = made["Deployment", names.OPERATOR_NAMESPACE, "gpu-operator"]["spec"]["template"]["spec"]["containers"][0]
    assert operator["image"] == names.IMAGE
    assert made == {place(manifest): manifest for manifest in installation()}


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ("admission.failurePolicy=Fail", {"admission": "closed"}),
        ("admission.enabled=false", {"admission": ""}),
        ("scheduler.enabled=false", {"scheduler": False}),
        ("scheduler.enabled=false,admission.enabled=false", {"scheduler": False, "admission": ""}),
    ],
)
def test_it_renders_what_install_applies_with_what_is_asked_for(settings: str, asked: dict[str, Any]) -> None:
    made = {place(manifest): manifest for manifest in rendered("--set", settings) if not is_hook(manifest)}
    assert made == {place(manifest): manifest for manifest in installation(**asked)}


def test_in_its_own_namespace_it_does_not_make_it() -> None:
    kinds = {manifest["kind"] for manifest in rendered("-n", names.OPERATOR_NAMESPACE)}
    assert "Namespace" not in kinds and "Deployment" in kinds


def test_values_reach_the_policy_and_the_operator() -> None:
    settings = ["driver.enabled=false", "driver.version=570", "nfd.enabled=false", "mig.strategy=mixed"]
    settings += ["driver.nvidiaDriverCRD.enabled=true", "driver.upgradePolicy.gpuPodDeletion.force=true"]
    settings += ["operator.notReadyTaint=true", "operator.replicas=2", "operator.logging.level=debug"]
    settings += ["operator.repository=registry.example.com/own", "operator.version=1.2", "operator.nodeSelector.a=b"]
    settings += ["operator.imagePullSecrets[0]=pull", "operator.tolerations[0].operator=Exists"]
    settings += ["operator.resources.limits.memory=1Gi", "operator.imagePullPolicy=Always"]
    made = rendered("--set", ",".join(settings))
    assert policy(made) == {
        "driver": {
            "enabled": False,
            "version": "570",
            "useNvidiaDriverCRD": True,
            "upgradePolicy": {"podDeletion": {"force": True}},
        },
        "mig": {"strategy": "mixed"},
        "nfd": {"enabled": False},
        "operator": {"notReadyTaint": True},
    }
    found = operator(made)
    pod = found["template"]["spec"]
    (container,) = pod["containers"]
    assert found["replicas"] == 2
    assert container["args"] == ["run", "operator", "--verbose"]
    assert container["image"] == "registry.example.com/own/gpuplane:1.2"
    assert container["imagePullPolicy"] == "Always"
    assert container["resources"] == {"limits": {"memory": "1Gi"}}
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["nodeSelector"] == {"a": "b"}
    assert pod["tolerations"][-1] == {"operator": "Exists"} and len(pod["tolerations"]) == 4


def test_values_set_the_resources_of_each_server_and_of_the_jobs() -> None:
    wanted = {"limits": {"memory": "9Gi"}, "requests": {"cpu": "1m"}}
    groups = {"operator": "gpu-operator", **{n: f"gpuplane-{n}" for n in ("scheduler", "admission", "autoscaler")}}
    each = [f"{group}.resources.limits.memory=9Gi,{group}.resources.requests.cpu=1m" for group in groups]
    settings = ["autoscaler.enabled=true,autoscaler.clusterName=x,operator.cleanupCRD=true", *each]
    made = rendered("--set", ",".join(settings))
    found = {m["metadata"]["name"]: m["spec"]["template"]["spec"] for m in made if m["kind"] in ("Deployment", "Job")}
    assert set(groups.values()) < found.keys() and len(found) == 8
    assert all(container["resources"] == wanted for pod in found.values() for container in pod["containers"])


def test_every_pod_is_confined_by_default_and_runs_the_image_of_a_digest() -> None:
    digest = "sha256:" + "a" * 64
    settings = "autoscaler.enabled=true,autoscaler.clusterName=x,operator.cleanupCRD=true"
    image = f"operator.repository=registry.example.com/own,operator.version={digest}"
    made = rendered("--set", f"{settings},{image}")
    pods = [m["spec"]["template"]["spec"] for m in made if m["kind"] in ("Deployment", "Job")]
    assert len(pods) == 8
    for pod in pods:
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["image"] == f"registry.example.com/own/gpuplane@{digest}"
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert container["resources"]["limits"]["memory"]
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and context["runAsNonRoot"]
            assert context["capabilities"] == {"drop": ["ALL"]} and not context["allowPrivilegeEscalation"]


def test_the_notes_name_the_image_that_runs_instead_of_theirs() -> None:
    settings = "operator.repository=nvcr.io/nvidia,operator.image=gpu-operator,operator.version=v26.3.0"
    notes = helm("install", "gpuplane", str(CHART), "--dry-run=client", "--set", settings).partition("NOTES:")[2]
    assert f"gpuplane runs from {names.IMAGE}" in " ".join(notes.split())


def test_without_deploy_cr_there_is_no_policy() -> None:
    kinds = [m["kind"] for m in rendered("--set", "clusterPolicy.deployCR=false")]
    assert "ClusterPolicy" not in kinds and "Deployment" in kinds


def test_environment_reaches_the_operator_and_the_jobs_around_the_release() -> None:
    setting = "operator.env[0].name=HTTPS_PROXY,operator.env[0].value=http://proxy:3128,operator.cleanupCRD=true"
    made = rendered("--set", setting)
    jobs = [m["spec"]["template"]["spec"] for m in made if m["kind"] == "Job"]
    assert len(jobs) == 3
    for pod in (operator(made)["template"]["spec"], *jobs):
        assert pod["containers"][0]["env"][-1] == {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    variables = [one["name"] for one in operator(made)["template"]["spec"]["containers"][0]["env"]]
    assert variables == ["POD_NAME", "POD_NAMESPACE", "POD_IP", "HTTPS_PROXY"]


def test_a_driver_by_nvidiadriver_is_created_with_the_values_of_driver() -> None:
    values = """
    driver:
      nvidiaDriverCRD: {enabled: true, nodeSelector: {tier: train}, driverType: vgpu}
      repository: example.com
      image: driver
      version: 570
      usePrecompiled: true
      env: [{name: A, value: b}]
      repoConfig: {configMapName: repositories}
      certConfig: {name: certificates}
      virtualTopology: {config: topology}
      licensingConfig: {configMapName: licences, nlsEnabled: false}
      upgradePolicy: {autoUpgrade: false}
    """
    made = rendered(values=values)
    (found,) = nvidia_drivers(made)
    assert found["metadata"]["name"] == "default"
    assert found["spec"] == {
        "driverType": "vgpu",
        "nodeSelector": {"tier": "train"},
        "repository": "example.com",
        "image": "driver",
        "version": "570",
        "usePrecompiled": True,
        "env": [{"name": "A", "value": "b"}],
        "repoConfig": {"name": "repositories"},
        "certConfig": {"name": "certificates"},
        "virtualTopologyConfig": {"name": "topology"},
        "licensingConfig": {"name": "licences", "nlsEnabled": False},
    }
    assert not errors(check_object(found, NVIDIADriver))
    assert policy(made)["driver"]["useNvidiaDriverCRD"] is True
    assert policy(made)["driver"]["upgradePolicy"] == {"autoUpgrade": False}


def test_every_field_that_both_kinds_have_reaches_the_nvidiadriver() -> None:
    theirs = json.loads((THEIRS / "gpu-operator.json").read_text())
    theirs["driver"]["nvidiaDriverCRD"]["enabled"] = True
    made = rendered(values=json.dumps(theirs))
    (found,) = nvidia_drivers(made)
    same = set(generate.driver_fields()) & theirs["driver"].keys()
    assert len(same) > 10
    assert {name: found["spec"][name] for name in same} == {name: theirs["driver"][name] for name in same}
    assert found["spec"]["default"] is True
    assert not errors(check_object(found, NVIDIADriver))


def test_with_the_default_values_an_nvidiadriver_takes_every_node() -> None:
    """Without it a node would wait with NoDriverForNode."""
    made = rendered("--set", "driver.nvidiaDriverCRD.enabled=true")
    drivers = [msgspec.convert(one, NVIDIADriver) for one in nvidia_drivers(made)]
    found = choices(msgspec.convert(policy(made), ClusterPolicySpec), drivers)
    assert owner_of({}, found) == "default"
    own = "driver.nvidiaDriverCRD.enabled=true,driver.nvidiaDriverCRD.deployDefaultCR=false"
    assert nvidia_drivers(rendered("--set", own)) == nvidia_drivers(rendered()) == []


def test_every_toleration_of_the_operators_chart_is_kept_when_values_add_one() -> None:
    default = operator(rendered())["template"]["spec"]["tolerations"]
    added = operator(rendered("--set", "operator.tolerations[0].key=own"))["template"]["spec"]["tolerations"]
    assert added == [*default, {"key": "own"}]


def test_values_of_the_scheduler_are_its_flags() -> None:
    """Defragmentation is off with the pod scheduler alone."""

    def args(*settings: str) -> list[str]:
        text = helm("template", "gpuplane", str(CHART), "--set", ",".join(("podScheduler.enabled=true", *settings)))
        containers = [
            container
            for one in yaml.safe_load_all(text)
            if one and one["kind"] == "Deployment"
            for container in one["spec"]["template"]["spec"]["containers"]
        ]
        found: list[str] = next(one["args"] for one in containers if one["name"] == names.EXTENDER_NAME)
        return found

    always = ["run", "scheduler", "--scheduler-name=gpuplane"]
    assert args() == always
    assert args("scheduler.nodePolicy=power") == [
        "run",
        "scheduler",
        "--node-policy=power",
        "--scheduler-name=gpuplane",
    ]
    assert args("podScheduler.enabled=false", "scheduler.nodePolicy=spread") == [
        "run",
        "scheduler",
        "--node-policy=spread",
    ]
    place = "podScheduler.defragmentation"
    values = {"enabled": "true", "movesPerHour": "3", "movesAtOnce": "2", "after": "5m", "coolDown": "2h"}
    assert args(*(f"{place}.{name}={value}" for name, value in values.items())) == [
        *always, "--defragment", "--moves-per-hour=3", "--moves-at-once=2", "--move-after=5m", "--move-cool-down=2h",
    ]  # fmt: skip
    assert "minimum" in helm("template", "gpuplane", str(CHART), "--set", f"{place}.movesPerHour=0", code=1)
