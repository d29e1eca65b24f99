"""The annotation says what was decided, and is believed only as far as the pod's own request goes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.sharing import Assignment, Part, empty, of_pod, request_of, to_annotations
from gpuplane.sharing.placement import Placement, place
from gpuplane.sharing.placement.tightest import TightestPolicy
from kubekit.api.core import Pod
from kubekit.errors import InvalidInput
from tests.support.sharing_examples import container, gpus, init, pod, sidecar

SHARE = Part("GPU-n-0", 0, 30, 5120)


def written(*containers: dict[str, Any], first: tuple[dict[str, Any], ...] = ()) -> tuple[Pod, Assignment]:
    """A pod as it is after its Binding, and what was assigned."""
    asking = pod(*containers, first=first)
    placed = place(empty("n", gpus(4)), request_of(asking), TightestPolicy())
    assert isinstance(placed, Placement)
    said = to_annotations(placed.assignment, request_of(asking), "n", 17)
    return pod(*containers, first=first, node="n", **said), placed.assignment


def test_it_is_read_as_it_was_written() -> None:
    bound, assigned = written(
        container("a", core=30, units=20), container("b", gpu=2), first=(init("i", core=50), sidecar("s", core=10))
    )
    assert of_pod(bound) == assigned
    assert assigned.init == ("i",)


def test_readers_of_gpu_admission_find_what_they_know() -> None:
    bound, _ = written(container("none"), container("a", core=30, units=20), container("b", gpu=2))
    said = bound.metadata.annotations
    assert said[names.PREDICATE_NODE_ANNOTATION] == "n"
    assert said[names.PREDICATE_TIME_ANNOTATION] == "17"
    assert said[names.GPU_ASSIGNED_ANNOTATION] == "true"
    assert {key: value for key, value in said.items() if key.startswith(names.PREDICATE_INDEX_PREFIX)} == {
        names.PREDICATE_INDEX_PREFIX + "1": "0",
        names.PREDICATE_INDEX_PREFIX + "2": "1,2",
    }


def test_pods_of_gpu_admission_are_understood() -> None:
    said = {
        names.PREDICATE_NODE_ANNOTATION: "n",
        names.PREDICATE_INDEX_PREFIX + "0": "1",
        names.PREDICATE_INDEX_PREFIX + "1": "2,3",
    }
    bound = pod(container("a", core=30, units=20), container("b", core=200), node="n", **said)
    assigned = of_pod(bound)
    assert assigned is not None
    assert assigned.containers == {
        "a": (Part("", 1, 30, 5120),),
        "b": (Part("", 2, 100, 0), Part("", 3, 100, 0)),
    }


def test_a_pod_without_annotations_has_none() -> None:
    assert of_pod(pod(container("a", core=30), node="n")) is None


def forged(assignment: Any, node: str = "n") -> Pod:
    text = assignment if isinstance(assignment, str) else msgspec.json.encode(assignment).decode()
    return pod(container("a", core=30, units=20), node=node, **{names.ASSIGNMENT_ANNOTATION: text})


@pytest.mark.parametrize(
    "assignment",
    [
        "{",
        "[]",
        '{"containers":{"a":[{"uuid":"GPU-n-0"}]}}',
        pytest.param('{"other":' + "[" * 100_000, id="deep"),
        Assignment({}, node="n"),
        Assignment({"a": (SHARE,)}, node="another"),
        Assignment({"a": (SHARE,)}),
        Assignment({"a": (SHARE,), "b": (SHARE,)}, node="n"),
        Assignment({"a": (SHARE,)}, ("a",), "n"),
        Assignment({"a": (msgspec.structs.replace(SHARE, core=90),)}, node="n"),
        Assignment({"a": (msgspec.structs.replace(SHARE, memory_mib=16_384),)}, node="n"),
        Assignment({"a": (msgspec.structs.replace(SHARE, uuid=""),)}, node="n"),
        Assignment({"a": (SHARE, msgspec.structs.replace(SHARE, uuid="GPU-n-1", index=1))}, node="n"),
    ],
)
def test_an_annotation_that_says_more_than_was_asked_is_refused(assignment: Any) -> None:
    with pytest.raises(InvalidInput) as raised:
        of_pod(forged(assignment))
    assert raised.value.where == "ml/pod"


def test_what_was_asked_is_believed() -> None:
    assert of_pod(forged(Assignment({"a": (SHARE,)}, node="n"))) is not None


@pytest.mark.parametrize("index", ["", "x", "1,2", "1,", "-1", "1" * 5000, "²"])
def test_a_broken_list_of_gpu_admission_is_refused(index: str) -> None:
    said = {names.PREDICATE_NODE_ANNOTATION: "n", names.PREDICATE_INDEX_PREFIX + "0": index}
    with pytest.raises(InvalidInput):
        of_pod(pod(container("a", core=30), node="n", **said))


@given(st.text(max_size=60) | st.binary(max_size=30).map(lambda b: b.decode("latin-1")))
def test_any_text_is_answered_by_an_error_of_ours(text: str) -> None:
    with pytest.raises(InvalidInput):
        of_pod(forged(text))


def test_a_gpu_is_held_by_the_most_that_runs_at_once() -> None:
    def of(core: int, memory: int) -> tuple[Part, ...]:
        return (Part("GPU-0", 0, core, memory),)

    assigned = Assignment(
        {"first": of(80, 100), "side": of(20, 50), "late": of(70, 10), "main": of(30, 60)}, ("first", "late")
    )
    assert assigned.held() == {("GPU-0", 0): (90, 110)}
