"""Reports of objects that the API server refuses: pure functions of its answers, as kube-apiserver 1.36 wrote
them.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.api.nvidiadriver import NVIDIADriver, NVIDIADriverSpec
from gpuplane.operator.drivers import DriverGroup, choices
from gpuplane.operator.operands import manifests
from gpuplane.operator.refusals import is_refusal, refusal_of, summary
from kubekit.api.meta import ObjectMeta
from kubekit.errors import KubekitError
from kubekit.kube import Conflict, Forbidden, Invalid, ServerError

TYPED = (
    "failed to create typed patch object (gpu-operator/nvidia-container-toolkit-daemonset; apps/v1, Kind=DaemonSet): "
    ".spec.template.spec.securityContext.fsGroup: expected numeric (int or float), got string"
)
CONVERTED = (
    "failed to convert new object (gpu-operator/nvidia-container-toolkit-daemonset; apps/v1, Kind=DaemonSet) to proper "
    "version: unable to convert unstructured object to apps/v1, Kind=DaemonSet: quantities must match the regular "
    "expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


def daemonset(name: str = "nvidia-container-toolkit-daemonset", gate: str = "container-toolkit") -> dict[str, Any]:
    return {"kind": "DaemonSet", "metadata": {"name": name, "labels": {"app.kubernetes.io/component": gate}}}


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (Invalid("x", causes=("spec.updateStrategy.rollingUpdate.maxUnavailable: bad",)), "daemonsets.rollingUpdate"),
        (Invalid("x", causes=("spec.template.labels: bad",)), "daemonsets.labels"),
        (Invalid("x", causes=("spec.template.spec.tolerations[2].effect: bad",)), "daemonsets.tolerations"),
        (Invalid("x", causes=("spec.template.spec.containers[0].resources.requests: bad",)), "toolkit.resources"),
        (Invalid("x", causes=("spec.template.spec.containers[0].env[3].name: Required value",)), "toolkit.env"),
        (Invalid("x", causes=("spec.template.spec.volumes[0].hostPath.path: bad",)), "hostPaths"),
        (Invalid("x", causes=("spec.somethingElse: bad",)), ""),
        (ServerError(TYPED), "daemonsets.podSecurityContext"),
        (ServerError(CONVERTED), ""),
        (Forbidden("no right"), ""),
    ],
)
def test_a_refusal_names_the_field_of_the_policy(error: KubekitError, field: str) -> None:
    assert is_refusal(error)
    assert refusal_of(daemonset(), error).field == field


@pytest.mark.parametrize("error", [ServerError("etcdserver: request timed out"), Conflict("somebody was first")])
def test_an_answer_that_a_second_try_may_change_is_no_refusal(error: KubekitError) -> None:
    assert not is_refusal(error)


def test_a_type_that_the_server_does_not_convert_is_said_without_its_wrapping() -> None:
    assert refusal_of(daemonset(), ServerError(TYPED)).why == (
        "spec.template.spec.securityContext.fsGroup: expected numeric (int or float), got string"
    )


def test_objects_that_are_refused_for_one_reason_are_named_together() -> None:
    error = Invalid("x", causes=("spec.template.labels: not a label",))
    refused = [refusal_of(daemonset(f"d{number}"), error) for number in range(5)]
    assert summary(refused) == (
        "DaemonSet/d0, DaemonSet/d1, DaemonSet/d2 and 2 more: spec.template.labels: not a label; "
        "correct spec.daemonsets.labels of the ClusterPolicy"
    )
    assert summary([]) == ""


def test_what_an_nvidiadriver_sets_is_not_blamed_on_the_policy() -> None:
    """The DaemonSet's tolerations are gpuplane's own, then the NVIDIADriver's, then the policy's."""
    spec = msgspec.convert(
        {"driver": {"useNvidiaDriverCRD": True}, "daemonsets": {"tolerations": [{"key": "policy"}]}}, ClusterPolicySpec
    )
    pinned = msgspec.convert({"tolerations": [{"key": "driver"}], "labels": {"a b": "c"}}, NVIDIADriverSpec)
    found = choices(spec, [NVIDIADriver(metadata=ObjectMeta(name="pinned"), spec=pinned)])
    groups = {DriverGroup("ubuntu", "22.04", "k", "pinned"): found[0]}
    made = manifests(spec, groups, image="i", owner={"name": "p"})
    (daemonset,) = (one for one in made if one["metadata"]["name"].startswith("nvidia-driver-"))
    keys = [one.get("key") for one in daemonset["spec"]["template"]["spec"]["tolerations"]]
    for key, expected in (
        ("driver", ("pinned", "tolerations")),
        ("policy", ("", "daemonsets.tolerations")),
    ):
        cause = f"spec.template.spec.tolerations[{keys.index(key)}].effect: bad"
        refusal = refusal_of(daemonset, Invalid("x", causes=(cause,)), found)
        assert (refusal.driver, refusal.field) == expected
    refusal = refusal_of(daemonset, Invalid("x", causes=('spec.template.labels: Invalid value: "a b": bad',)), found)
    assert summary([refusal]).endswith("; correct spec.labels of the NVIDIADriver pinned")


@pytest.mark.parametrize(("given", "made"), [("1", 1), (1, 1), ("10%", "10%"), ("", "10%"), (None, "10%")])
def test_max_unavailable_is_a_number_or_a_percentage_as_kubernetes_reads_it(given: Any, made: Any) -> None:
    spec = msgspec.convert({"daemonsets": {"rollingUpdate": {"maxUnavailable": given}}}, ClusterPolicySpec)
    owner = {"name": "p"}
    for manifest in manifests(spec, {}, image="i", owner=owner):
        if manifest["kind"] == "DaemonSet":
            found = manifest["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"]
            assert (found, type(found)) == (made, type(made))
