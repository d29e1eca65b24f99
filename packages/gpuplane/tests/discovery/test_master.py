"""The master's decision for one Node: a pure function of the Node, what is published about it, and the rules."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane.api.nodefeature import NodeFeature, NodeFeatureRule
from gpuplane.api.nodefeature_node import LABELS_BOOK, patches
from gpuplane.discovery.features import Features
from gpuplane.discovery.master import Master, decide, evaluate, refused
from gpuplane.discovery.publish import wanted_object
from kubekit.api.core import Node
from kubekit.api.meta import ObjectMeta

NODE = Node(metadata=ObjectMeta(name="n", uid="u"))
FEATURES = Features(attributes={"kernel.version": {"major": "5", "full": "5.15.0"}, "kernel.config": {"X86": "y"}})
PREFIX = "feature.node.kubernetes.io/"


def rule(name: str, *, label: str = "made", **expressions: Any) -> NodeFeatureRule:
    """A rule that labels nodes whose kernel.version passes the expressions."""
    term = {"feature": "kernel.version", "matchExpressions": expressions}
    spec = {"rules": [{"name": name, "labels": {label: "true"}, "matchFeatures": [term]}]}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, NodeFeatureRule)


def published(*rules: NodeFeatureRule, features: Features = FEATURES) -> NodeFeature:
    body = wanted_object(NODE, features, rules)
    assert body is not None
    return msgspec.convert({**body, "metadata": {**body["metadata"], "namespace": "gpu-operator"}}, NodeFeature)


def others(labels: dict[str, str], name: str = "vendor", **attributes: str) -> NodeFeature:
    features = {"attributes": {"kernel.version": {"elements": attributes}}} if attributes else {}
    meta = {"name": name, "namespace": "vendor", "labels": {"nfd.node.kubernetes.io/node-name": "n"}}
    return msgspec.convert({"metadata": meta, "spec": {"labels": labels, "features": features}}, NodeFeature)


def decision(node: Node, objects: list[NodeFeature], rules: list[NodeFeatureRule]) -> Any:
    bad = {one.metadata.name: why for one in rules if (why := refused(one))}
    return decide(node, evaluate(objects, rules, bad, "gpu-operator"))


NEW = rule("new", major={"op": "Ge", "value": ["5"]})


def test_a_rule_that_holds_labels_and_one_that_does_not_does_not() -> None:
    old = rule("old", label="old", major={"op": "Lt", "value": ["5"]})
    found = decision(NODE, [published(NEW, old)], [NEW, old])
    assert found.wanted.labels == {f"{PREFIX}made": "true"}
    assert found.failed == {}


def test_nothing_is_decided_until_the_node_answers_what_the_rules_ask_now() -> None:
    other = rule("other", full={"op": "Exists"})
    answer = published(NEW)
    assert decision(NODE, [], [NEW]).wanted is None
    assert decision(NODE, [answer], [NEW, other]).wanted is None
    assert decision(NODE, [published(NEW, other)], [NEW, other]).wanted is not None
    assert decision(NODE, [published(NEW, other)], [NEW]).wanted is not None  # it answers more than is asked


def test_without_rules_nothing_is_wanted_whatever_is_published() -> None:
    assert decision(NODE, [published(NEW)], []).wanted.labels == {}
    assert decision(NODE, [], []).wanted.labels == {}


def test_labels_that_others_ask_for_are_given_if_they_may_be() -> None:
    asked = others({"vendor.io/a": "1", "plain": "2", "kubernetes.io/x": "3", "vendor.io/bad": "no value"})
    assert decision(NODE, [asked], []).wanted.labels == {"vendor.io/a": "1", f"{PREFIX}plain": "2"}


def test_features_of_others_have_the_last_word_over_ours() -> None:
    assert decision(NODE, [others({}, major="4"), published(NEW)], [NEW]).wanted.labels == {}
    first, second = others({"vendor.io/a": "1"}, "a"), others({"vendor.io/a": "2"}, "b")
    assert decision(NODE, [second, first], []).wanted.labels == {"vendor.io/a": "2"}


def test_a_rule_that_cannot_be_evaluated_changes_nothing() -> None:
    made = {f"{PREFIX}before": "x"}
    node = Node(metadata=ObjectMeta(name="n", uid="u", labels=made, annotations={LABELS_BOOK: "before"}))
    wrong = rule("wrong", full={"op": "Gt", "value": ["5"]})  # 5.15.0 is no whole number
    found = decision(node, [published(NEW, wrong)], [NEW, wrong])
    assert "wrong" in found.failed
    assert found.wanted.labels == {**made, f"{PREFIX}made": "true"}  # and the sound one works
    # Once it is gone, so is what it made.
    assert decision(node, [published(NEW)], [NEW]).wanted.labels == {f"{PREFIX}made": "true"}


def test_a_rule_that_no_server_should_have_taken_is_told_with_code_and_place() -> None:
    wrong = rule("wrong", major={"op": "Near", "value": ["5"]})
    why = refused(wrong)
    assert why.startswith("GP112 spec.rules[0].matchFeatures[0].matchExpressions.major.op")
    found = decision(NODE, [published(NEW, wrong)], [NEW, wrong])
    assert found.failed == {"wrong": why}
    assert found.wanted.labels == {f"{PREFIX}made": "true"}


def test_a_node_of_another_installation_is_left_to_it() -> None:
    books = {"nfd.node.kubernetes.io/feature-labels": "made", LABELS_BOOK: "ours"}
    node = Node(metadata=ObjectMeta(name="n", labels={f"{PREFIX}made": "x", f"{PREFIX}ours": "y"}, annotations=books))
    found = decision(node, [published(NEW)], [NEW])
    change = patches(node, found.wanted)
    assert change.node == {"metadata": {"labels": {f"{PREFIX}ours": None}, "annotations": {LABELS_BOOK: None}}}


def test_a_settled_node_costs_no_write() -> None:
    wanted = decision(NODE, [published(NEW)], [NEW]).wanted
    change = patches(NODE, wanted).node["metadata"]
    meta = msgspec.structs.replace(NODE.metadata, labels=change["labels"], annotations=change["annotations"])
    settled = Node(metadata=meta)
    again = patches(settled, decision(settled, [published(NEW)], [NEW]).wanted)
    assert (again.node, again.status) == ({}, {})


def test_a_node_publishes_only_what_is_asked_and_nothing_without_rules() -> None:
    assert wanted_object(NODE, FEATURES, []) is None
    body = wanted_object(NODE, FEATURES, [NEW])
    assert body is not None
    assert body["spec"] == {"features": {"attributes": {"kernel.version": {"elements": {"major": "5"}}}}}
    assert body["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]


class FakeClient:
    """An API server with these Nodes; what is deleted there stands in `deleted`."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = nodes
        self.deleted: list[str] = []

    async def list(self, kind: type, fields: str) -> list[Node]:
        assert kind is Node
        return [node for node in self.nodes if fields == f"metadata.name={node.metadata.name}"]

    async def delete(self, kind: type, name: str, namespace: str, uid: str) -> None:
        assert kind is NodeFeature
        self.deleted.append(name)


@pytest.mark.parametrize(("there", "deleted"), [((), ["vendor"]), ((NODE,), [])])
async def test_what_a_gone_node_leaves_is_collected_but_not_that_of_a_node_not_yet_seen(
    there: tuple[Node, ...], deleted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient(*there)
    master = Master(client, None, "gpu-operator")  # type: ignore[arg-type]  # the part of it that is used
    monkeypatch.setattr(master.published, "by_index", lambda index, name: [others({})])
    assert master.nodes.get("n") is None
    await master.reconcile("n")
    assert client.deleted == deleted
