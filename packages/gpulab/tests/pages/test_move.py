"""Move from NVIDIA's GPU operator: the page's commands by a real helm, with a policy as NVIDIA's chart renders it.

NVIDIA's chart is in no registry: the release `gpu-operator` that the page removes has its CRDs and its custom resource,
and the values file with which gpuplane's chart is installed is NVIDIA's own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulab.kubernetes import binaries
from gpulab.kubernetes.unavailable import Unavailable
from tests.support import pages
from tests.support.pages import PageShell

pytestmark = [
    pytest.mark.deadline(900),
    pytest.mark.skipif(not pages.ASKED_FOR, reason=pages.HOW_TO_ASK),
]
SAVE, INSTALL, COMPARE, BACK = pages.commands("tasks/move.md")
SAVE_DRIVERS, REMOVE, HELM_INSTALL = (block.text for block in pages.blocks("tasks/move.md") if block.language == "sh")
ROOT = Path(__file__).parents[4]
CRDS = ROOT / "deploy/chart/gpuplane/crds"
VALUES = ROOT / "tests/chart/charts/gpu-operator.json"
POLICY = """
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata:
  name: cluster-policy
  labels: {app.kubernetes.io/component: gpu-operator}
spec:
  operator: {defaultRuntime: docker, runtimeClass: nvidia, use_ocp_driver_toolkit: false}
  daemonsets:
    tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
    priorityClassName: system-node-critical
    updateStrategy: RollingUpdate
    rollingUpdate: {maxUnavailable: "1"}
  validator: {plugin: {env: [{name: WITH_WORKLOAD, value: "false"}]}}
  mig: {strategy: single}
  driver: {enabled: false}
  toolkit: {enabled: true, installDir: /usr/local/nvidia}
  devicePlugin: {enabled: true}
  dcgm: {enabled: false}
  dcgmExporter: {enabled: true, serviceMonitor: {enabled: false}}
  gfd: {enabled: true}
  migManager: {enabled: true, config: {default: all-disabled}}
  nodeStatusExporter: {enabled: false}
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PageShell]:
    """A reader who has helm, a checkout of gpuplane, and a cluster with NVIDIA's release on it."""
    try:
        programs = binaries.build("helm")
    except Unavailable as problem:
        pytest.skip(f"no helm: {problem}")
    shell = PageShell(tmp_path)
    shell.environment["PATH"] = f"{programs}:{shell.environment['PATH']}"
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    chart = tmp_path / "nvidias"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: gpu-operator\nversion: v26.7.0\n")
    (chart / "templates/clusterpolicy.yaml").write_text(POLICY)
    shutil.copytree(CRDS, chart / "crds")
    yield shell
    shell.down("move")


def test_a_cluster_moves_with_its_policy_and_back_as_the_page_says(shell: PageShell) -> None:
    shell.run("gpuplane up --detach --name move --node gpu-1=t4-ubuntu18")
    shell.run("export KUBECONFIG=~/.gpuplane/move.kubeconfig")
    shell.run("helm install gpu-operator ./nvidias -n gpu-operator --create-namespace")
    shell.run(SAVE)
    shell.run(SAVE_DRIVERS)
    assert 'release "gpu-operator" uninstalled' in shell.run(REMOVE)
    assert shell.run("kubectl get clusterpolicies -o name") == ""
    assert "condition met" in shell.run(INSTALL)
    compared = shell.run(COMPARE)
    for expected in ("gpu-1", "Tesla-T4", "nvidia-device-plugin-daemonset", "nvidia-dcgm-exporter"):
        assert expected in compared
    installed = shell.run(
        "kubectl get clusterpolicy cluster-policy -o jsonpath='{.spec.toolkit.installDir} {.spec.mig.strategy}'"
    )
    assert installed == "/usr/local/nvidia single", "the policy is the saved one"
    shell.run(BACK)
    assert_clean(shell)
    # The other way of the page, with NVIDIA's own values for nodes whose driver is there.
    values = json.loads(VALUES.read_text())
    values["driver"]["enabled"] = False
    (shell.home / "values.yaml").write_text(json.dumps(values))
    assert "STATUS: deployed" in shell.run(HELM_INSTALL)
    assert "condition met" in shell.run(INSTALL.strip().splitlines()[-1])
    assert "gpu-1" in shell.run(COMPARE)
    shell.run("helm uninstall gpuplane -n gpu-operator --wait")
    assert_clean(shell)


def assert_clean(shell: PageShell) -> None:
    labels = shell.run("kubectl get node gpu-1 -o jsonpath='{.metadata.labels}'")
    assert "kubernetes.io/hostname" in labels and "nvidia.com" not in labels
