"""`gpuplane run discovery-master`: evaluates NodeFeatureRules on what nodes publish, and keeps Nodes as they want.

Invariants:

- One write of a Node (and one of its status, where extended resources change) for a real change, none otherwise; the
  books on the Node say what is ours, so a master that was away takes back what it made before.
- A node is decided when its NodeFeature answers what the rules ask now. A worker that is slow, or dead, leaves the node
  as it is; labels never go for a moment because a pod restarts.
- A NodeFeatureRule that cannot be evaluated changes nothing and keeps its earlier results. It is reported once, as an
  Event on the rule and a line in the log.
- NodeFeatures of deleted Nodes are deleted, whichever installation made them.
- Where node feature discovery of another installation keeps books on a Node, the Node is left to it.
"""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api.nodefeature import NODE_NAME_LABEL, NodeFeature, NodeFeatureRule
from gpuplane.api.nodefeature_checks import full_name, label_problems
from gpuplane.api.nodefeature_node import WantedFeatures, merged, other_discovery, owned, patches
from gpuplane.api.validation import check_object, errors
from gpuplane.discovery.features import Features, covers, from_api, needs, union
from gpuplane.discovery.match import evaluate_objects
from gpuplane.discovery.publish import asked_for
from kubekit.api.core import Node
from kubekit.kube import Client, Conflict, Controller, EventRecorder, Informer, NotFound, Source

log = logging.getLogger("gpuplane.discovery")

MANAGER: Final = names.FIELD_MANAGER_PREFIX + "discovery-master"


class RuleDecision(msgspec.Struct, frozen=True):
    """The wanted results of rules for a Node; None: unknown yet. `failed` by name of the rule object."""

    wanted: WantedFeatures | None
    failed: dict[str, str] = {}


def evaluate(
    published: Sequence[NodeFeature], rules: Sequence[NodeFeatureRule], bad: Mapping[str, str], namespace: str
) -> RuleDecision:
    """Return the results of rules for a node with these NodeFeatures. Pure, and costly: independent of the Node.

    Args:
        published: the node's NodeFeatures; ours are in `namespace`.
        bad: by name, why a NodeFeatureRule cannot be taken at all.
    """
    answers = [asked for one in published if (asked := asked_for(one.metadata.annotations)) is not None]
    asked = needs(rule for one in rules for rule in one.spec.rules)
    if rules and not any(covers(answer, asked) for answer in answers):
        return RuleDecision(None, dict(bad))
    order = sorted(
        published, key=lambda one: (one.metadata.namespace != namespace, one.metadata.name, one.metadata.namespace)
    )
    features = union(*(from_api(one.spec.features) for one in order), Features())
    outcome = evaluate_objects([rule for rule in rules if rule.metadata.name not in bad], features)
    labels = {
        full_name(name): value
        for one in order
        for name, value in one.spec.labels.items()
        if next(label_problems(name, value, ""), None) is None
    }
    wanted = msgspec.structs.replace(outcome.wanted, labels={**labels, **outcome.wanted.labels})
    return RuleDecision(wanted, {**bad, **outcome.failed})


def decide(node: Node, evaluated: RuleDecision) -> RuleDecision:
    """Return the wanted results for this Node, given those for a node with its features. Pure."""
    if other_discovery(node.metadata.annotations):
        return RuleDecision(WantedFeatures())
    if evaluated.wanted is None or not evaluated.failed:
        return evaluated
    return RuleDecision(merged(owned(node), evaluated.wanted), evaluated.failed)


def refused(rule: NodeFeatureRule) -> str:
    """Why a NodeFeatureRule cannot be taken at all, "" when it can."""
    spec = msgspec.json.decode(msgspec.json.encode(rule.spec))
    found = errors(check_object({"metadata": {"name": rule.metadata.name}, "spec": spec}, NodeFeatureRule))
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{found[0]}{more}" if found else ""


async def run(options: Namespace) -> None:
    """Run until cancelled."""
    namespace = os.environ.get("POD_NAMESPACE", names.OPERATOR_NAMESPACE)
    async with Client.connect(options.kubeconfig, options.context, user_agent=MANAGER) as client:
        recorder = EventRecorder(client, MANAGER, instance=os.environ.get("POD_NAME", ""))
        try:
            await Master(client, recorder, namespace).controller.run()
        finally:
            await recorder.aclose()


class Master:
    """Informers of Nodes, NodeFeatures and rules, and the controller that brings Nodes right."""

    def __init__(self, client: Client, recorder: EventRecorder, namespace: str) -> None:
        self._client = client
        self._recorder = recorder
        self._namespace = namespace
        self.nodes = Informer(client, Node)
        self.published = Informer(client, NodeFeature)
        self.rules = Informer(client, NodeFeatureRule)
        self.published.add_index("node", _node_of)
        self._written: dict[str, int] = {}
        self._judged: dict[str, tuple[str, str]] = {}  # name of a rule -> its version, why it cannot be taken
        self._evaluated: dict[str, tuple[tuple[str, ...], RuleDecision]] = {}
        self._said: dict[str, str] = {}
        self.writes = 0
        self.controller = Controller(
            "discovery-master",
            [
                self.nodes,
                Source(self.published, _node_of),
                Source(self.rules, lambda rule: [node.metadata.name for node in self.nodes.items()]),
            ],
            self.reconcile,
            workers=8,
        )

    async def reconcile(self, name: str) -> None:
        """Bring one Node right; one that is gone leaves nothing behind."""
        node = self.nodes.get(name)
        published = self.published.by_index("node", name)
        if node is None:
            self._evaluated.pop(name, None)
            # The watches are not in step: a node that is only new here would lose what it has just published.
            if published and not await self._client.list(Node, fields=f"metadata.name={name}"):
                await self._collect(published)
            return
        if int(node.metadata.resource_version or 0) < self._written.get(name, 0):
            return  # the watch will bring what was written
        rules = self.rules.items()
        decision = decide(node, self._evaluate(name, published, rules))
        self._tell(rules, decision.failed, name)
        if decision.wanted is not None:
            await self._write(node, decision.wanted)

    def _evaluate(self, name: str, published: Sequence[NodeFeature], rules: Sequence[NodeFeatureRule]) -> RuleDecision:
        """`evaluate`, once for each version of the rules and of what the node publishes: Nodes change all the time."""
        metas = (*(one.metadata for one in published), *(rule.metadata for rule in rules))
        versions = tuple(f"{meta.namespace}/{meta.name} {meta.resource_version}" for meta in metas)
        known = self._evaluated.get(name)
        if known is None or known[0] != versions:
            bad = {rule.metadata.name: why for rule in rules if (why := self._judge(rule))}
            known = self._evaluated[name] = (versions, evaluate(published, rules, bad, self._namespace))
        return known[1]

    def _judge(self, rule: NodeFeatureRule) -> str:
        """`refused`, once for each version of a rule."""
        name, version = rule.metadata.name, rule.metadata.resource_version
        if self._judged.get(name, ("", ""))[0] != version:
            self._judged[name] = (version, refused(rule))
        return self._judged[name][1]

    async def _write(self, node: Node, wanted: WantedFeatures) -> None:
        change = patches(node, wanted)
        name = node.metadata.name
        try:
            # The books first: what they do not name would stay for ever if this process died in between.
            for body, subresource in ((change.node, None), (change.status, "status")):
                if body:
                    self.writes += 1
                    after = await self._client.patch(Node, name, body, subresource=subresource, manager=MANAGER)
                    self._written[name] = int(after.metadata.resource_version or 0)
                    log.info("rules applied node=%s to=%s", name, "status" if subresource else "metadata")
        except (Conflict, NotFound) as error:
            log.debug("rules not applied node=%s: %s", name, error)  # the newer one is on its way by the watch

    async def _collect(self, left: Iterable[NodeFeature]) -> None:
        for one in left:
            try:
                await self._client.delete(NodeFeature, one.metadata.name, one.metadata.namespace, one.metadata.uid)
                log.info("NodeFeature of a deleted node removed name=%s/%s", one.metadata.namespace, one.metadata.name)
            except (Conflict, NotFound):
                log.debug("NodeFeature already deleted name=%s", one.metadata.name)

    def _tell(self, rules: Iterable[NodeFeatureRule], failed: dict[str, str], node: str) -> None:
        for rule in rules:
            name = rule.metadata.name
            what = failed.get(name, "")
            mark = f"{rule.metadata.generation} {what}"
            if what and self._said.get(name) != mark:
                self._said[name] = mark
                text = f"not applied, nodes stay as they are: {what}"
                log.warning("rule not applied rule=%s node=%s: %s", name, node, text)
                self._recorder.event(rule, "Warning", "RuleNotApplied", text[:1000])


def _node_of(published: NodeFeature) -> tuple[str, ...]:
    name = published.metadata.labels.get(NODE_NAME_LABEL, "")
    return (name,) if name else ()
