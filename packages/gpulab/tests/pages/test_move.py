"""Move from NVIDIA's GPU operator: the page's commands, with a policy as NVIDIA's chart renders it.

NVIDIA's operator itself is not here: what it leaves to the commands is its custom resource, and removing it is the end
of that. The page's helm commands are the only ones that are not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import pages
from tests.support.pages import PageShell

pytestmark = [
    pytest.mark.deadline(300),
    pytest.mark.skipif(not pages.ASKED_FOR, reason=pages.HOW_TO_ASK),
]
SAVE, INSTALL, COMPARE, BACK = pages.commands("tasks/move.md")
CRDS = Path(__file__).parents[4] / "deploy/chart/gpuplane/crds"
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
    shell = PageShell(tmp_path)
    yield shell
    shell.down("move")


def test_a_cluster_moves_with_its_policy_and_back_as_the_page_says(shell: PageShell) -> None:
    shell.run("gpuplane up --detach --name move --node gpu-1=t4-ubuntu18")
    (shell.home / "nvidias.yaml").write_text(POLICY)
    shell.run(f"export KUBECONFIG=~/.gpuplane/move.kubeconfig; kubectl apply --server-side -f {CRDS}")
    shell.run("kubectl wait --for=condition=Established crd --all && kubectl apply -f nvidias.yaml")
    shell.run(SAVE)
    shell.run("kubectl delete clusterpolicy cluster-policy")
    assert "condition met" in shell.run(INSTALL)
    compared = shell.run(COMPARE)
    for expected in ("gpu-1", "Tesla-T4", "nvidia-device-plugin-daemonset", "nvidia-dcgm-exporter"):
        assert expected in compared
    installed = shell.run(
        "kubectl get clusterpolicy cluster-policy -o jsonpath='{.spec.toolkit.installDir} {.spec.mig.strategy}'"
    )
    assert installed == "/usr/local/nvidia single", "the policy is the saved one"
    shell.run(BACK)
    labels = shell.run("kubectl get node gpu-1 -o jsonpath='{.metadata.labels}'")
    assert "kubernetes.io/hostname" in labels and "nvidia.com" not in labels
