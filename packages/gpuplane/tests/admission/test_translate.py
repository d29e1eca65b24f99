"""Pods of Kubernetes 1.3 to 1.9: what they are today, and that nothing else is touched."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.admission.translate import difference, translate
from kubekit.api.labels import strict_label_value
from kubekit.errors import InvalidInput
from tinykube.apiserver.patch import json_patch

MANIFESTS = Path(__file__).parent / "kubernetes-alpha"
KEY = names.ALPHA_GPU_NAME_LABEL


def old_pod(count: Any = "2", **spec: Any) -> dict[str, Any]:
    resources = {"limits": {names.ALPHA_GPU: count, "cpu": "1"}, "requests": {names.ALPHA_GPU: count}}
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "resources": resources}], **spec}}


def today(pod: dict[str, Any], old: dict[str, Any] | None = None) -> dict[str, Any]:
    """The pod after translation; the patch is applied as an API server applies it."""
    before = copy.deepcopy(pod)
    patched: dict[str, Any] = json_patch(pod, list(translate(pod, old).patch))
    assert pod == before
    return patched


def test_the_resource_is_renamed_wherever_it_stands():
    first = {"name": "first", "resources": {"limits": {names.ALPHA_GPU: 1}}}
    done = today(old_pod("2", initContainers=[first, {"name": "none"}]))
    spec = done["spec"]
    assert spec["containers"][0]["resources"] == {
        "limits": {"cpu": "1", names.GPU_RESOURCE: "2"},
        "requests": {names.GPU_RESOURCE: "2"},
    }
    assert spec["initContainers"][0]["resources"]["limits"] == {names.GPU_RESOURCE: 1}
    kept = json.loads(done["metadata"]["annotations"][names.TRANSLATED_ANNOTATION])
    assert kept == {"limits": {"a": "2", "first": 1}}


def test_pods_that_do_not_ask_for_it_are_left_alone():
    said = {names.ALPHA_AFFINITY_ANNOTATION: "nonsense"}
    for limits in ({}, {names.GPU_RESOURCE: "1"}, {names.VCUDA_CORE: "10"}):
        pod = {
            "metadata": {"annotations": said},
            "spec": {"containers": [{"name": "a", "resources": {"limits": limits}}]},
        }
        assert translate(pod).patch == ()


def test_both_names_in_one_container_are_left_to_validation():
    pod = old_pod()
    pod["spec"]["containers"][0]["resources"]["limits"][names.GPU_RESOURCE] = "2"
    assert translate(pod).patch == ()


@pytest.mark.parametrize(
    ("path", "emptied"),
    [
        ("/usr/lib/nvidia-375", True),
        ("/usr/lib/nvidia-375/", True),
        ("/usr/lib/nvidia-375/bin", True),
        ("/usr/lib32/nvidia-384", True),
        ("/var/lib/nvidia-docker/volumes/nvidia_driver/375.26", True),
        ("/var/lib/nvidia-docker/volumes/nvidia_driver/375.26/lib64", True),
        ("/usr/lib/nvidia-375-data", False),
        ("/usr/lib/nvidia", False),
        ("/home/kubernetes/bin/nvidia", False),
        ("/data/usr/lib/nvidia-375", False),
        ("/", False),
        ("", False),
    ],
)
def test_volumes_of_a_drivers_directory_are_emptied_and_no_others(path, emptied):
    done = today(old_pod(volumes=[{"name": "v", "hostPath": {"path": path}}, {"name": "w", "emptyDir": {}}]))
    (volume, other) = done["spec"]["volumes"]
    assert volume == ({"name": "v", "emptyDir": {}} if emptied else {"name": "v", "hostPath": {"path": path}})
    assert other == {"name": "w", "emptyDir": {}}
    kept = json.loads(done["metadata"]["annotations"][names.TRANSLATED_ANNOTATION])
    assert kept.get("volumes") == ({"v": path} if emptied else None)


def affine(text: str, **spec: Any) -> dict[str, Any]:
    pod = old_pod(**spec)
    pod["metadata"]["annotations"] = {names.ALPHA_AFFINITY_ANNOTATION: text}
    return pod


def test_the_affinity_annotation_becomes_the_specs():
    wanted = {"key": KEY, "operator": "In", "values": ["Tesla K80", "Tesla P100"]}
    other = {"key": "disk", "operator": "In", "values": ["very fast"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted, other]}]}
    preferred = [{"weight": 1, "preference": {"matchExpressions": [{"key": KEY, "operator": "Exists"}]}}]
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": terms,
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        },
        "podAntiAffinity": {},
    }
    done = today(affine(json.dumps(affinity)))["spec"]["affinity"]
    wanted["values"] = ["Tesla-K80", "Tesla-P100"]
    assert done == affinity


def test_a_spec_that_says_its_affinity_wins_and_its_author_is_told():
    own = {"podAffinity": {}}
    pod = affine('{"nodeAffinity": {}}', affinity=own)
    assert today(pod)["spec"]["affinity"] == own
    assert any("is ignored" in warning for warning in translate(pod).warnings)


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"nodeafinity": {}}', '"\ud800"'])
def test_an_annotation_that_cannot_be_read_is_refused(text):
    with pytest.raises(InvalidInput, match="affinity cannot be read"):
        translate(affine(text))


def test_an_annotation_that_is_nested_too_deep_is_refused():
    with pytest.raises(InvalidInput, match="affinity cannot be read"):
        translate(affine('{"nodeAffinity":' + "[" * 100_000))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "requiredDuringSchedulingIgnoredDuringExecution",
                        "preferredDuringSchedulingIgnoredDuringExecution",
                        "nodeSelectorTerms",
                        "matchExpressions",
                        "preference",
                        "key",
                        "values",
                    ]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=12,
    )
)
def test_an_affinity_of_any_shape_is_passed_on_for_validation_to_judge(node):
    done = today(affine(json.dumps({"nodeAffinity": node})))
    assert set(done["spec"]["affinity"]) == {"nodeAffinity"}


def test_a_node_selector_by_model_is_spelled_as_the_label():
    assert today(old_pod(nodeSelector={KEY: "Tesla K80", "a": "b"}))["spec"]["nodeSelector"] == {
        KEY: "Tesla-K80",
        "a": "b",
    }


def test_twice_is_as_once_and_the_unchanged_manifest_on_it_is_no_change():
    """`kubectl apply` merges what the manifest says into what is stored, and the API server defaults requests."""
    manifest = affine('{"podAffinity": {}}', volumes=[{"name": "v", "hostPath": {"path": "/usr/lib/nvidia-375"}}])
    stored = today(manifest)
    assert translate(stored).patch == ()
    merged = copy.deepcopy(stored)
    for field in ("limits", "requests"):
        merged["spec"]["containers"][0]["resources"][field][names.ALPHA_GPU] = "2"
    merged["spec"]["volumes"] = copy.deepcopy(manifest["spec"]["volumes"])
    assert today(merged, stored) == stored and translate(merged, stored).warnings == ()


def test_a_pod_stored_while_the_webhook_was_away_is_never_changed():
    """Its spec may not change, so a translation would make every later write fail, its deletion's as well."""
    stored = old_pod()
    labelled = copy.deepcopy(stored)
    labelled["metadata"]["labels"] = {"a": "b"}
    assert translate(labelled, stored).patch == ()


JSON = st.recursive(
    st.none() | st.integers(0, 3) | st.text("a/~0", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a/~1", max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text("ab/~", max_size=2), JSON, max_size=3),
    st.dictionaries(st.text("ab/~", max_size=2), JSON, max_size=3),
)
def test_the_patch_leads_from_one_to_the_other(before, after):
    assert json_patch(before, list(difference(before, after))) == after


@given(st.text(max_size=100))
def test_label_values_are_valid_and_stay_as_they_are(text):
    value = strict_label_value(text)
    assert len(value) <= 63 and (not value or (value[0].isalnum() and value[-1].isalnum()))
    assert strict_label_value(value) == value


# -- the manifests of those days, on an API server ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpu-pod", "gpu-pod-affinity", "gpu-pod-libraries"])
async def test_the_old_manifests_are_stored_in_todays_words(world, name):
    await world.install("closed")
    await world.start()
    stored = await world.create(yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text()))
    for container in stored["spec"]["containers"]:
        for field in ("limits", "requests"):
            assert set(container["resources"][field]) == {names.GPU_RESOURCE}
    assert all("hostPath" not in volume for volume in stored["spec"].get("volumes", ()))
    if name == "gpu-pod-affinity":
        required = stored["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = required["nodeSelectorTerms"]
        assert term["matchExpressions"][0]["values"] == ["Tesla-K80", "Tesla-P100"]


async def test_a_broken_affinity_annotation_is_refused_with_its_code(world):
    await world.install("closed")
    await world.start()
    pod = {"apiVersion": "v1", "kind": "Pod", **affine("{")}
    pod["spec"]["containers"][0]["image"] = "i"
    assert "denied the request: GP208" in await world.refused(pod)
