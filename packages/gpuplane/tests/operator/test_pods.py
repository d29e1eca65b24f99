"""Pods of gpuplane that belong to a policy, and end with it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.operator.installation import installation
from gpuplane.operator.pods import is_operand
from kubekit.api.core import Pod
from kubekit.api.meta import ObjectMeta

DEPLOYMENTS = [manifest for manifest in installation() if manifest["kind"] == "Deployment"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda manifest: manifest["metadata"]["name"])
def test_the_pods_of_the_installation_do_not_hold_up_the_end_of_a_policy(deployment: dict[str, Any]) -> None:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert not is_operand(Pod(metadata=ObjectMeta(name="p", namespace=names.OPERATOR_NAMESPACE, labels=labels)))


def test_the_pods_of_operands_hold_it_up() -> None:
    labels = {"app.kubernetes.io/part-of": "gpuplane", "app.kubernetes.io/component": "nvidia-driver"}
    assert is_operand(Pod(metadata=ObjectMeta(name="p", namespace=names.OPERATOR_NAMESPACE, labels=labels)))
