"""Variables, references and the downward API."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.kubelet.env import ConfigInvalid, Sources, arguments, environment, expand, field_value
from tinykube.kubelet.pod import FieldRef, KubeletPod, SpecContainer


def make(env: list[dict[str, Any]], **more: Any) -> tuple[KubeletPod, SpecContainer]:
    container = {"name": "c", "env": env, "resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}}, **more}
    meta = {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}, "annotations": {"x/y": 'q"'}}
    pod = msgspec.convert({"metadata": meta, "spec": {"nodeName": "node", "containers": [container]}}, KubeletPod)
    return pod, pod.spec.containers[0]


def value(env: list[dict[str, Any]], sources: Sources | None = None, **more: Any) -> dict[str, str]:
    pod, container = make(env, **more)
    return environment(pod, container, sources or Sources(), {"KUBERNETES_SERVICE_HOST": "h"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(C)", "$(C)"),
        ("$$(A)", "$(A)"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$$", "$"),
    ],
)
def test_references(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


@given(st.text())
def test_text_without_references_stays(text: str) -> None:
    plain = text.replace("$", "")
    assert expand(plain, {"A": "1"}) == plain


def test_a_variable_sees_those_before_it() -> None:
    env = value([{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(C)"}, {"name": "C", "value": "3"}])
    assert env["B"] == "1$(C)"
    assert env["KUBERNETES_SERVICE_HOST"] == "h"
    assert env["HOSTNAME"] == "p"


def test_explicit_variables_win_over_whole_config_maps() -> None:
    sources = Sources(config_maps={"m": {"A": "map", "B": "map"}}, secrets={"s": {"B": b"secret"}})
    whole = [
        {"configMapRef": {"name": "m"}},
        {"secretRef": {"name": "s"}},
        {"configMapRef": {"name": "no", "optional": True}},
    ]
    env = value([{"name": "A", "value": "own"}], sources, envFrom=whole)
    assert (env["A"], env["B"]) == ("own", "secret")


@pytest.mark.parametrize(
    "source",
    [
        {"configMapKeyRef": {"name": "none", "key": "k"}},
        {"configMapKeyRef": {"name": "m", "key": "none"}},
        {"secretKeyRef": {"name": "s", "key": "none"}},
        {"fieldRef": {"fieldPath": "spec.nonsense"}},
        {"resourceFieldRef": {"resource": "limits.cpu", "containerName": "other"}},
    ],
)
def test_what_is_missing_is_said(source: dict[str, Any]) -> None:
    sources = Sources(config_maps={"m": {}}, secrets={"s": {}})
    with pytest.raises(ConfigInvalid):
        value([{"name": "A", "valueFrom": source}], sources)


def test_what_is_optional_is_left_out() -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}
    assert "A" not in value([{"name": "A", "valueFrom": source}])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("spec.nodeName", "node"),
        ("metadata.labels['a']", "b"),
        ("metadata.annotations['x/y']", 'q"'),
        ("metadata.annotations", 'x/y="q\\""'),
        ("metadata.labels['none']", ""),
    ],
)
def test_fields(path: str, expected: str) -> None:
    assert field_value(make([])[0], FieldRef(field_path=path), Sources()) == expected


@pytest.mark.parametrize(
    ("resource", "divisor", "expected"),
    [
        ("limits.cpu", "1", "2"),
        ("limits.cpu", "1m", "1500"),
        ("limits.memory", "1Mi", "1024"),
        ("requests.cpu", "1", "2"),
    ],
)
def test_resources(resource: str, divisor: str, expected: str) -> None:
    source = {"resourceFieldRef": {"resource": resource, "divisor": divisor}}
    assert value([{"name": "A", "valueFrom": source}])["A"] == expected


def test_arguments_are_expanded_too() -> None:
    _, container = make([], command=["run", "$(A)"], args=["$(B)"])
    assert arguments(container, {"A": "1"}) == (("run", "1"), ("$(B)",))
