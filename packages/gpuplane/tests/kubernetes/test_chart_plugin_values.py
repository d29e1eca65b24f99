"""Values files of the device plugin's chart and NVIDIA's whole ones: they render a policy without error."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.api.validation import check_object, errors
from gpuplane.operator.operands import manifests
from packages.gpuplane.tests.kubernetes.chart_values import THEIRS, operator, policy, rendered

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


pytestmark = pytest.mark.usefixtures("with_helm")


def test_a_values_file_of_the_device_plugins_chart_works() -> None:
    made = rendered(values=PLUGIN_VALUES)
    (found,) = (manifest for manifest in made if manifest["kind"] == "ConfigMap")
    assert list(found["data"]) == ["default", "shared_gpu"]
    assert policy(made) == {
        "daemonsets": {"nodeSelector": {"example.com/gpu-type": "nvidia"}},
        "devicePlugin": {"config": {"name": found["metadata"]["name"], "default": "default"}},
    }


@pytest.mark.parametrize("chart", ["gpu-operator", "device-plugin"])
def test_the_whole_values_file_of_the_other_charts_renders_a_policy_without_error(chart: str) -> None:
    made = rendered(values=(THEIRS / f"{chart}.json").read_text())
    found = next(manifest for manifest in made if manifest["kind"] == "ClusterPolicy")
    assert errors(check_object(found)) == []
    # The image of NVIDIA's operator, which both the file and its users leave as it is, is not ours.
    (container,) = operator(made)["template"]["spec"]["containers"]
    assert container["image"] == names.IMAGE


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
