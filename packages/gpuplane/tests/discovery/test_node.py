"""Labels that rules put on a Node are recorded, change with one write, and are removed without a trace."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.api.nodefeature_node import (
    LABELS_BOOK,
    WantedFeatures,
    labels_of_others,
    labels_of_rules,
    merged,
    other_discovery,
    owned,
    patches,
)
from kubekit.api.core import Node, NodeSpec, NodeStatus, Taint
from kubekit.api.meta import ObjectMeta

THEIRS = Taint(key="other/t", effect="NoSchedule", value="x")


def node(**meta: Any) -> Node:
    return Node(
        metadata=ObjectMeta(name="n", resource_version="7", **meta),
        spec=NodeSpec(taints=(THEIRS,)),
        status=NodeStatus(capacity={"cpu": "4"}, allocatable={"cpu": "3900m"}),
    )


def merge(old: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """JSON merge patch, as an API server does it."""
    new = dict(old)
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        elif isinstance(value, dict):
            new[name] = merge(new.get(name, {}), value)
        else:
            new[name] = value
    return new


def written(on: Node, wanted: WantedFeatures) -> tuple[Node, int]:
    """The Node after all writes, and how many there were."""
    writes = 0
    while True:
        change = patches(on, wanted)
        bodies = [body for body in (change.node, change.status) if body]
        if not bodies:
            return on, writes
        for body in bodies:
            on = msgspec.convert(merge(msgspec.json.decode(msgspec.json.encode(on)), body), Node)
        writes += len(bodies)
        assert writes < 10


def test_what_rules_want_is_written_once_and_taken_back_whole() -> None:
    wanted = WantedFeatures(
        labels={"feature.node.kubernetes.io/a": "1", "vendor.io/b": "2"},
        annotations={"vendor.io/n": "note"},
        taints=(Taint(key="vendor.io/t", effect="NoExecute"),),
        resources={"vendor.io/r": "5"},
    )
    before = node(labels={"mine": "x"}, annotations={"mine": "y"})
    after, writes = written(before, wanted)
    assert writes == 2  # the Node, and its status
    assert after.metadata.labels == {"mine": "x", **wanted.labels}
    assert after.metadata.annotations[LABELS_BOOK] == "a,vendor.io/b"
    assert after.spec.taints == (THEIRS, *wanted.taints)
    assert after.status.capacity["vendor.io/r"] == after.status.allocatable["vendor.io/r"] == "5"
    assert written(after, wanted) == (after, 0)
    assert written(after, WantedFeatures())[0] == before


def test_a_label_that_somebody_changed_or_took_comes_back() -> None:
    wanted = WantedFeatures(labels={"vendor.io/b": "2"})
    after, _ = written(node(), wanted)
    for labels in ({}, {"vendor.io/b": "other"}):
        changed = msgspec.structs.replace(after, metadata=msgspec.structs.replace(after.metadata, labels=labels))
        assert written(changed, wanted) == (after, 1)


def test_a_taints_new_value_replaces_the_old_and_leaves_others() -> None:
    first, _ = written(node(), WantedFeatures(taints=(Taint(key="t/t", effect="NoSchedule", value="a"),)))
    second, writes = written(first, WantedFeatures(taints=(Taint(key="t/t", effect="NoSchedule", value="b"),)))
    assert writes == 1
    assert second.spec.taints == (THEIRS, Taint(key="t/t", effect="NoSchedule", value="b"))
    body = patches(first, WantedFeatures()).node
    assert body["metadata"]["resourceVersion"] == "7"  # the list holds others' taints too


def test_the_same_amount_written_otherwise_is_no_change() -> None:
    after, _ = written(node(), WantedFeatures(resources={"vendor.io/r": "2000"}))
    assert written(after, WantedFeatures(resources={"vendor.io/r": "2k"}))[1] == 0


@pytest.mark.parametrize(
    ("annotations", "found"),
    [
        ({}, False),
        ({"nfd.node.kubernetes.io/feature-labels": "cpu-cpuid.AVX"}, True),
        ({"nfd.node.kubernetes.io/master.version": "v0.14"}, True),
        ({"blue.nfd.node.kubernetes.io/taints": "a:NoSchedule"}, True),
        ({"gpuplane.nfd.node.kubernetes.io/feature-labels": "a"}, False),
        ({"nfd.node.kubernetes.io/node-name": "n", "x/feature-labels": "a"}, False),
    ],
)
def test_another_installation_is_known_by_its_books(annotations: dict[str, str], found: bool) -> None:
    assert other_discovery(annotations) is found


def test_whose_labels_are_whose() -> None:
    books = {
        "nfd.node.kubernetes.io/feature-labels": "cpu-cpuid.AVX,vendor.io/x",
        "gpuplane.nfd.node.kubernetes.io/feature-labels": "mine",
    }
    assert labels_of_others(books) == {"feature.node.kubernetes.io/cpu-cpuid.AVX", "vendor.io/x"}
    assert labels_of_rules(books) == {"feature.node.kubernetes.io/mine"}


NAMES = st.sampled_from(["feature.node.kubernetes.io/a", "vendor.io/b", "vendor.io/c"])
WANTED = st.builds(
    WantedFeatures,
    labels=st.dictionaries(NAMES, st.sampled_from(["1", "2"])),
    annotations=st.dictionaries(NAMES, st.sampled_from(["1", "2"])),
    taints=st.lists(
        st.builds(
            Taint,
            key=NAMES,
            effect=st.sampled_from(["NoSchedule", "NoExecute"]),
            value=st.sampled_from(["", "v"]),
        ),
        unique_by=lambda taint: (taint.key, taint.effect),
        max_size=3,
    ).map(tuple),
    resources=st.dictionaries(NAMES, st.sampled_from(["1", "5k"])),
)


@given(st.lists(WANTED, min_size=1, max_size=4))
def test_any_way_through_what_is_wanted_ends_at_what_was_there_before(steps: list[WantedFeatures]) -> None:
    before = on = node(labels={"mine": "x"})
    for wanted in steps:
        on, writes = written(on, wanted)
        assert writes <= 3  # the Node, its status, and the book of a resource that is gone
        assert owned(on).labels == wanted.labels
        assert set(owned(on).taints) == set(wanted.taints)
        assert owned(on).resources.keys() == wanted.resources.keys()
        assert written(on, wanted)[1] == 0
    assert written(on, WantedFeatures())[0] == before


@given(WANTED, WANTED)
def test_nothing_goes_from_what_is_merged(old: WantedFeatures, new: WantedFeatures) -> None:
    both = merged(old, new)
    assert both.labels == {**old.labels, **new.labels}
    assert set(new.taints) <= set(both.taints)
    assert {(taint.key, taint.effect) for taint in old.taints} <= {(taint.key, taint.effect) for taint in both.taints}


def test_an_annotation_of_another_program_is_left_to_it() -> None:
    """Network plugins keep addresses there. A name under the prefix of features belongs to discovery in any case."""
    feature = "feature.node.kubernetes.io/note"
    on = node(annotations={"network.example.com/address": "10.0.0.1", feature: "old"})
    wanted = WantedFeatures(
        annotations={"network.example.com/address": "10.9.9.9", "example.com/new": "1", feature: "2"}
    )
    after, writes = written(on, wanted)
    assert writes == 1
    assert after.metadata.annotations["network.example.com/address"] == "10.0.0.1"
    assert owned(after).annotations == {"example.com/new": "1", feature: "2"}
    changed, _ = written(after, WantedFeatures(annotations={"example.com/new": "3"}))
    assert changed.metadata.annotations["example.com/new"] == "3"
    assert written(changed, WantedFeatures())[0].metadata.annotations == {"network.example.com/address": "10.0.0.1"}
