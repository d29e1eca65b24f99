"""The chart with a real helm: it renders what `gpuplane install` applies, and comes and goes without a trace.

Hooks are Jobs, which need a kubelet: test_machine has them. Here their commands run under their accounts, as processes.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from deploy.chart import generate, plugin_values
from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, ClusterPolicySpec
from gpuplane.api.crds import crds
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.api.validation import check_object, errors
from gpuplane.operator.drivers import choices, owner_of
from gpuplane.operator.installation import installation, resource_of
from gpuplane.operator.operands import manifests
from kubekit.kube import Client, Forbidden, NotFound
from tests.support.realkube import binaries
from tests.support.realkube.binaries import Unavailable
from tests.support.realkube.chart import CHART, helm
from tests.support.realkube.control_plane import ControlPlane
from tests.support.realkube.inventory import Objects, difference
from tests.support.realkube.life import account_config, asked_of, gpuplane, settled, until_as

PLUGIN_VALUES = """
config:
  name: ""
  map:
    default: |-
      version: v1
      flags: {migStrategy: "none"}
    shared_gpu: |-
      version: v1
      sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}
nodeSelector:
  example.com/gpu-type: nvidia
"""


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    try:
        binaries.build("helm")
    except Unavailable as problem:
        pytest.skip(f"no helm: {problem}")


def rendered(*arguments: str, values: str = "") -> list[dict[str, Any]]:
    text = helm("template", "gpuplane", str(CHART), "--include-crds", *arguments, values=values)
    return [document for document in yaml.safe_load_all(text) if document]


def place(manifest: dict[str, Any]) -> tuple[str, str, str]:
    meta = manifest["metadata"]
    return manifest["kind"], meta.get("namespace", ""), meta["name"]


def is_hook(manifest: dict[str, Any]) -> bool:
    return "helm.sh/hook" in manifest["metadata"].get("annotations", {})


def policy(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (manifest["spec"] for manifest in manifests if manifest["kind"] == "ClusterPolicy")
    return found


def operator(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (m["spec"] for m in manifests if (m["kind"], m["metadata"]["name"]) == ("Deployment", "gpu-operator"))
    return found


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


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("driver.enbled=false", "enbled"),
        ("devicplugin.enabled=false", "devicplugin"),
        ("driver.kernelModuleType=closed", "kernelModuleType"),
        ("daemonsets.updateStrategy=Sometimes", "updateStrategy"),
        ("platform.openshift=true", "openshift"),
        ("devicePlugin.config.default=x", "there is no ConfigMap"),
        ("gdsEnabled=true", "gdsEnabled: GPUDirect Storage is not given to containers by this release; use: leave it"),
        ("gdrcopyEnabled=true,mofedEnabled=true", "mofedEnabled: MOFED is not given"),
        ("gdrcopyEnabled=true,mofedEnabled=true", "gdrcopyEnabled: GDRCopy is not given"),
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


def test_a_values_file_of_the_device_plugins_chart_works() -> None:
    made = rendered(values=PLUGIN_VALUES)
    (found,) = (manifest for manifest in made if manifest["kind"] == "ConfigMap")
    assert list(found["data"]) == ["default", "shared_gpu"]
    assert policy(made) == {
        "daemonsets": {"nodeSelector": {"example.com/gpu-type": "nvidia"}},
        "devicePlugin": {"config": {"name": found["metadata"]["name"], "default": "default"}},
    }


THEIRS = Path(__file__).parents[4] / "tests/chart/charts"


@pytest.mark.parametrize("chart", ["gpu-operator", "device-plugin"])
def test_the_whole_values_file_of_the_other_charts_renders_a_policy_without_error(chart: str) -> None:
    made = rendered(values=(THEIRS / f"{chart}.json").read_text())
    found = next(manifest for manifest in made if manifest["kind"] == "ClusterPolicy")
    assert errors(check_object(found)) == []
    # The image of NVIDIA's operator, which both the file and its users leave as it is, is not ours.
    (container,) = operator(made)["template"]["spec"]["containers"]
    assert container["image"] == names.IMAGE


def test_the_notes_name_the_image_that_runs_instead_of_theirs() -> None:
    settings = "operator.repository=nvcr.io/nvidia,operator.image=gpu-operator,operator.version=v26.3.0"
    notes = helm("install", "gpuplane", str(CHART), "--dry-run=client", "--set", settings).partition("NOTES:")[2]
    assert f"gpuplane runs from {names.IMAGE}" in " ".join(notes.split())


def plugin_env(**variables: str) -> dict[str, Any]:
    return {"devicePlugin": {"env": [{"name": name, "value": value} for name, value in variables.items()]}}


@pytest.mark.parametrize(
    ("setting", "spec"),
    [
        ("compatWithCPUManager=true", plugin_env(PASS_DEVICE_SPECS="true")),
        ("failOnInitError=false", plugin_env(FAIL_ON_INIT_ERROR="false")),
        ("deviceListStrategy=volume-mounts", plugin_env(DEVICE_LIST_STRATEGY="volume-mounts")),
        ("deviceListStrategy={envvar,cdi-cri}", plugin_env(DEVICE_LIST_STRATEGY="envvar,cdi-cri")),
        ("deviceIDStrategy=index", plugin_env(DEVICE_ID_STRATEGY="index")),
        ("nvidiaDriverRoot=/run/nvidia/driver", plugin_env(NVIDIA_DRIVER_ROOT="/run/nvidia/driver")),
        ("nvidiaDevRoot=/dev-root", plugin_env(NVIDIA_DEV_ROOT="/dev-root")),
        ("migStrategy=mixed", {"mig": {"strategy": "mixed"}}),
        ("gdsEnabled=false,gdrcopyEnabled=false,mofedEnabled=false,deviceDiscoveryStrategy=nvml", None),
        ("nameOverride=a,fullnameOverride=b,namespaceOverride=c,selectorLabelsOverride.a=b", None),
        ("allowDefaultNamespace=true,securityContext.a=b,runtimeClassName=nvidia,image.tag=v0.20.0", None),
        ("imagePullSecrets[0].name=pull", {"devicePlugin": {"imagePullSecrets": ["pull"]}}),
        ("imagePullSecrets[0]=pull", {"devicePlugin": {"imagePullSecrets": ["pull"]}}),
        ("image.pullPolicy=Always", {"devicePlugin": {"imagePullPolicy": "Always"}}),
        ("resources.limits.memory=1Gi", {"devicePlugin": {"resources": {"limits": {"memory": "1Gi"}}}}),
        ("mps.root=/data/mps", {"devicePlugin": {"mps": {"root": "/data/mps"}}}),
        ("devicePlugin.enableHostNetwork=true", {"devicePlugin": {"hostNetwork": True}}),
        ("gfd.enableHostNetwork=true", {"gfd": {"hostNetwork": True}}),
        ("gfd.noTimestamp=true", {"gfd": {"env": [{"name": "GFD_NO_TIMESTAMP", "value": "true"}]}}),
        ("gfd.sleepInterval=90s", {"gfd": {"env": [{"name": "GFD_SLEEP_INTERVAL", "value": "90s"}]}}),
        ("updateStrategy.type=OnDelete", {"daemonsets": {"updateStrategy": "OnDelete"}}),
        ("updateStrategy.rollingUpdate.maxUnavailable=2", {"daemonsets": {"rollingUpdate": {"maxUnavailable": 2}}}),
        ("podAnnotations.a=b", {"daemonsets": {"annotations": {"a": "b"}}}),
        ("podSecurityContext.fsGroup=1", {"daemonsets": {"podSecurityContext": {"fsGroup": 1}}}),
        ("nodeSelector.a=b", {"daemonsets": {"nodeSelector": {"a": "b"}}}),
        ("priorityClassName=high", {"daemonsets": {"priorityClassName": "high"}}),
        ("tolerations[0].operator=Exists", {"daemonsets": {"tolerations": [{"operator": "Exists"}]}}),
        (
            "tolerations[0].operator=Exists,daemonsets.tolerations[0].key=a",
            {"daemonsets": {"tolerations": [{"key": "a"}, {"operator": "Exists"}]}},
        ),
        ("priorityClassName=high,daemonsets.priorityClassName=own", {"daemonsets": {"priorityClassName": "own"}}),
        (
            "failOnInitError=false,devicePlugin.env[0].name=A,devicePlugin.env[0].value=b",
            plugin_env(FAIL_ON_INIT_ERROR="false", A="b"),
        ),
        ("cdi.nvidiaHookPath=/usr/bin/nvidia-ctk,nfd.master.a=b,nfd.worker.a=b,draDriver.image=i", None),
    ],
)
def test_each_value_of_the_device_plugins_chart_acts_or_changes_nothing(
    setting: str, spec: dict[str, Any] | None
) -> None:
    assert policy(rendered("--set", setting)) == (spec or {})


def test_fallbacks_of_the_device_plugins_chart_reach_both_that_choose_a_configuration() -> None:
    made = policy(rendered("--set", "config.name=own,config.fallbackStrategies={named,empty}"))
    entry = [{"name": "FALLBACK_STRATEGIES", "value": "named,empty"}]
    assert made == {"devicePlugin": {"config": {"name": "own"}, "env": entry}, "gfd": {"env": entry}}
    spec = msgspec.convert(made, ClusterPolicySpec)
    for manifest in manifests(spec, {}, image="i", owner={"name": "p"}):
        if manifest["metadata"]["name"] in ("nvidia-device-plugin-daemonset", "gpu-feature-discovery"):
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            assert [one for one in container["env"] if one["name"] == "FALLBACK_STRATEGIES"] == entry


@pytest.mark.parametrize("key", ["data", "map"])
def test_configurations_of_the_device_plugin_make_their_configmap(key: str) -> None:
    settings = f"devicePlugin.config.create=true,devicePlugin.config.name=own,devicePlugin.config.{key}.a=version: v1"
    made = rendered("--set", settings)
    (found,) = (manifest for manifest in made if manifest["kind"] == "ConfigMap")
    assert (found["metadata"]["name"], found["data"]) == ("own", {"a": "version: v1"})
    assert policy(made)["devicePlugin"]["config"] == {"name": "own", "default": "a"}


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
        assert helm(*template, "--set", setting) != helm(*template)


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


def nvidia_drivers(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] == "NVIDIADriver"]


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


# -- on a cluster ------------------------------------------------------------------------------------------------------


async def test_install_upgrade_and_uninstall_leave_the_crds_alone(control_plane: ControlPlane) -> None:
    where = ("-n", names.OPERATOR_NAMESPACE, "--kubeconfig", str(control_plane.kubeconfig))
    crds = [name for kind, _, name in map(place, installation()) if kind == "CustomResourceDefinition"]
    async with Client.connect(control_plane.kubeconfig) as client:
        before = await settled(client)
        helm("install", "gpuplane", str(CHART), "--no-hooks", "--create-namespace", *where)
        assert (await client.get(ClusterPolicy, "cluster-policy")).spec.driver.enabled
        helm("upgrade", "gpuplane", str(CHART), "--no-hooks", "--set", "driver.enabled=false", *where)
        assert not (await client.get(ClusterPolicy, "cluster-policy")).spec.driver.enabled
        by_object = "driver.nvidiaDriverCRD.enabled=true,driver.version=570.133.20"
        helm("upgrade", "gpuplane", str(CHART), "--no-hooks", "--set", by_object, *where)
        driver = (await client.get(NVIDIADriver, "default")).spec
        assert (driver.default, driver.version) == (True, "570.133.20")
        helm("uninstall", "gpuplane", "--no-hooks", "--wait", *where)
        after = without_namespace(await until_left(client, before, crds))
        assert sorted(set(after) - set(without_namespace(before))) == [
            f"apiextensions.k8s.io/CustomResourceDefinition {name}" for name in sorted(crds)
        ]
        gpuplane(control_plane, "uninstall", "-q")
        # The namespace is helm's, and stays.
        await client.request("DELETE", f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}")
        assert not (left := difference(before, await until_as(client, before))), left


async def test_install_after_upgrade_and_uninstall_meets_no_conflict_on_the_crds(
    own_control_plane: ControlPlane,
) -> None:
    """helm 4 applies CRDs by server-side apply without force: the upgrade's Job must not make their fields its own."""
    where = ("-n", names.OPERATOR_NAMESPACE, "--kubeconfig", str(own_control_plane.kubeconfig))
    install = ("install", "gpuplane", str(CHART), "--no-hooks", "--create-namespace", *where)
    helm(*install)
    async with Client.connect(own_control_plane.kubeconfig) as client:
        await older_definitions(client)
    (job,) = (m for m in rendered() if m["kind"] == "Job" and is_hook_of(m, "pre-upgrade"))
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    gpuplane(own_control_plane, *arguments, "-q")
    helm("upgrade", "gpuplane", str(CHART), "--no-hooks", *where)
    helm("uninstall", "gpuplane", "--no-hooks", "--wait", *where)
    helm(*install)
    async with Client.connect(own_control_plane.kubeconfig) as client:
        assert (await client.get(ClusterPolicy, "cluster-policy")).spec.driver.enabled


async def older_definitions(client: Client) -> None:
    """Definitions as an earlier release of the chart has left them, applied by helm: with one text that differs."""
    for manifest in crds():
        older = copy.deepcopy(manifest)
        older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "earlier"
        await client.apply(older, "helm", resource=resource_of(older))


def is_hook_of(manifest: dict[str, Any], when: str) -> bool:
    return manifest["metadata"].get("annotations", {}).get("helm.sh/hook") == when


async def test_the_hooks_do_their_work_with_the_rights_they_have(control_plane: ControlPlane) -> None:
    """The commands of the Jobs, under the Jobs' accounts, in the order of an upgrade and an uninstall."""
    hooks = [m for m in rendered("-n", "default", "--set", "operator.cleanupCRD=true") if is_hook(m)]
    jobs = {m["metadata"]["annotations"]["helm.sh/hook"]: m for m in hooks if m["kind"] == "Job"}
    assert sorted(jobs) == ["post-delete", "pre-delete", "pre-upgrade"]
    async with Client.connect(control_plane.kubeconfig) as client:
        before = await settled(client)
        gpuplane(control_plane, "install", "-q")
        try:
            for manifest in hooks:
                if manifest["kind"] != "Job":
                    await create(client, manifest)
            for when in ("pre-upgrade", "pre-delete", "post-delete"):
                spec = jobs[when]["spec"]["template"]["spec"]
                config = await account_config(control_plane, client, "default", spec["serviceAccountName"])
                asked_of(config, *spec["containers"][0]["args"])
                async with Client.connect(config) as hook:
                    with pytest.raises(Forbidden):
                        await hook.request("GET", "/api/v1/secrets")
                    with pytest.raises(Forbidden):
                        await hook.request(
                            "DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/others.example.com"
                        )
        finally:
            for manifest in hooks:
                if manifest["kind"] != "Job":
                    await delete(client, manifest)
            gpuplane(control_plane, "uninstall", "-q")
        assert not (left := difference(before, await until_as(client, before))), left


def path_of(manifest: dict[str, Any]) -> str:
    namespace = manifest["metadata"].get("namespace")
    base = f"/api/v1/namespaces/{namespace}" if namespace else "/apis/rbac.authorization.k8s.io/v1"
    return f"{base}/{manifest['kind'].lower()}s"


async def create(client: Client, manifest: dict[str, Any]) -> None:
    await client.request("POST", path_of(manifest), None, manifest)


async def delete(client: Client, manifest: dict[str, Any]) -> None:
    with contextlib.suppress(NotFound):
        await client.request("DELETE", f"{path_of(manifest)}/{manifest['metadata']['name']}")


async def until_left(client: Client, before: Objects, crds: list[str]) -> Objects:
    """The inventory once nothing but the CRDs and the namespace that helm made is left."""
    wanted = without_namespace(before).keys() | {
        f"apiextensions.k8s.io/CustomResourceDefinition {name}" for name in crds
    }

    found: Objects = {}
    for _ in range(60):
        found = await until_as(client, before, patience=1.0)
        if without_namespace(found).keys() == wanted:
            break
    assert sorted(without_namespace(found).keys() ^ wanted) == []
    return found


def without_namespace(objects: Objects) -> Objects:
    """What is left without the namespace that helm made, and the APIServices that come and go with CRDs."""
    own, with_crds = f" {names.OPERATOR_NAMESPACE}", "apiregistration.k8s.io/APIService "
    return {
        name: obj
        for name, obj in objects.items()
        if not (name.endswith(own) or f"{own}/" in name or name.startswith(with_crds))
    }
