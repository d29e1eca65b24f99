"""The CustomResourceDefinitions of Karpenter's kinds, which `gpuplane install --autoscaler` applies.

They admit and refuse what Karpenter's own definitions do; where its webhook judged Provisioners, rules in CEL do. Two
differences: a NodeClaim needs no nodeClassRef, since a Provisioner may describe its machines itself, and gets no
default of expireAfter.

Source: the CRDs of Karpenter 1.14 (NodePool, NodeClaim) and 1.15 (NodeOverlay), and CRD and webhook of 0.27
(Provisioner).
"""

from __future__ import annotations

from typing import Any, Final

from gpuplane.api import karpenter, nodeoverlay
from gpuplane.api.karpenter import NodePool, Provisioner
from gpuplane.api.karpenter_aws_crds import AWS_DEFINITIONS, inline_provider, kubelet
from gpuplane.api.karpenter_labels import RESTRICTED, key_rule
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.nodeoverlay import NodeOverlay
from gpuplane.api.schema import PrinterColumn, ServedKind, definition
from gpuplane.api.schema_forms import (
    Schema,
    amounts,
    conditions,
    entries,
    flag,
    group,
    pairs,
    rule,
    text,
    whole,
)

LABEL_KEY: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"
)
LABEL_VALUE: Final = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
SECONDS: Final = r"^([0-9]+(s|m|h))+$"
SECONDS_OR_NEVER: Final = r"^(([0-9]+(s|m|h))+|Never)$"
HOURS_OR_MINUTES: Final = r"^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$"
NODES: Final = r"^((100|[0-9]{1,2})%|[0-9]+)$"
SCHEDULE: Final = r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))$|^\S+(\s+\S+){4}$"


def _labels(about: str) -> Schema:
    value = {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE}
    made = pairs(about, value, maxProperties=100)
    made["x-kubernetes-validations"] = [{"rule": f"self.all(k, {key_rule('k')})", "message": f"a label {RESTRICTED}"}]
    return made


def _requirements(operators: tuple[str, ...], *, least: bool) -> Schema:
    fields = {
        "key": text(
            "label of the nodes",
            maxLength=316,
            pattern=LABEL_KEY,
            **{"x-kubernetes-validations": [{"rule": key_rule("self"), "message": f"the label {RESTRICTED}"}]},
        ),
        "operator": text("how the values are compared", enum=list(operators)),
        "values": entries(
            "values of the label; one whole number for Gt, Lt, Gte and Lte",
            {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
        ),
    }
    if least:
        fields["minValues"] = whole("least number of different values that the choice of types must leave", 1, 50)
    rules = [
        rule("self.operator != 'In' || (has(self.values) && self.values.size() > 0)", "In needs values"),
        rule(
            "!(self.operator in ['Gt', 'Lt', 'Gte', 'Lte']) || (has(self.values) && self.values.size() == 1 "
            "&& self.values[0].matches('^[0-9]+$'))",
            "Gt, Lt, Gte and Lte need one whole number from 0 on",
        ),
    ]
    if least:
        counted = "(has(self.values) && self.values.size() >= self.minValues)"
        rules.append(
            rule(f"self.operator != 'In' || !has(self.minValues) || {counted}", "minValues is more than the values")
        )
    item = group("a condition on a label", fields, ("key", "operator"), rules)
    return entries("conditions on the labels of nodes", item, maxItems=100)


def _taints(about: str) -> Schema:
    fields = {
        "key": text("key of the taint", minLength=1, pattern=LABEL_KEY),
        "value": text("value of the taint", pattern=LABEL_VALUE),
        "effect": text("what happens to pods without the toleration", enum=list(karpenter.EFFECTS)),
        "timeAdded": text("when it was added", format="date-time"),
    }
    return entries(about, group("a taint", fields, ("key", "effect")))


_STARTUP: Final = "taints of new nodes that another program removes; the purchase asks pods for no toleration"


def _provisioner() -> Schema:
    reference = group(
        "the AWSNodeTemplate that describes the machines",
        {"apiVersion": text("its version"), "kind": text("its kind"), "name": text("its name")},
        ("name",),
    )
    fields = {
        "annotations": pairs("annotations of nodes"),
        "labels": _labels("labels of nodes"),
        "taints": _taints("taints of nodes"),
        "startupTaints": _taints(_STARTUP),
        "requirements": _requirements(karpenter.OLD_OPERATORS, least=False),
        "kubeletConfiguration": kubelet("settings of the kubelet", old=True),
        "provider": inline_provider(),
        "providerRef": reference,
        "ttlSecondsAfterEmpty": whole("seconds until an empty node is removed; never if absent", 0, format="int64"),
        "ttlSecondsUntilExpired": whole("seconds until a node is replaced; never if absent", 0, format="int64"),
        "limits": group("bounds of the purchase", {"resources": amounts("most of each resource, over all nodes")}),
        "weight": whole("pools of higher weight come first; 0 if absent", 1, 100, format="int32"),
        "consolidation": group(
            "whether nodes are replaced by fewer or cheaper ones", {"enabled": flag("true to consolidate")}
        ),
    }
    rules = [
        rule("has(self.provider) != has(self.providerRef)", "exactly one of provider and providerRef is set"),
        rule(
            "!has(self.ttlSecondsAfterEmpty) || !has(self.consolidation) || !has(self.consolidation.enabled) "
            "|| !self.consolidation.enabled",
            "ttlSecondsAfterEmpty is not set together with consolidation.enabled: true",
        ),
    ]
    status = {
        "resources": amounts("capacity of the pool's nodes"),
        "lastScaleTime": text("when the number of nodes changed last", format="date-time"),
        "conditions": conditions(),
    }
    return _object(
        "Nodes of one kind, as Karpenter up to 0.32 declares them.", group("the pool", fields, rules=rules), status
    )


def _class_reference(*, fixed: bool) -> Schema:
    fields = {
        "group": text("group of the class", pattern="^[^/]*$", minLength=1),
        "kind": text("kind of the class", minLength=1),
        "name": text("name of the class", minLength=1),
    }
    same = [
        rule(f"self.{name} == oldSelf.{name}", f"{name} of nodeClassRef never changes") for name in ("group", "kind")
    ]
    return group("the class that describes the machines", fields, ("group", "kind", "name"), same if fixed else ())


def _node_template() -> Schema:
    spec = {
        "taints": _taints("taints of nodes"),
        "startupTaints": _taints(_STARTUP),
        "requirements": _requirements(karpenter.OPERATORS, least=True),
        "nodeClassRef": _class_reference(fixed=True),
        "terminationGracePeriod": text("longest drain; for ever if absent", pattern=SECONDS),
        "expireAfter": text("age at which a node is removed, or Never", pattern=SECONDS_OR_NEVER, default="720h"),
    }
    meta = {"labels": _labels("labels of nodes"), "annotations": pairs("annotations of nodes")}
    return group(
        "what each node is made of",
        {
            "metadata": group("labels and annotations of nodes", meta),
            "spec": group("the nodes", spec, ("nodeClassRef", "requirements")),
        },
        ("spec",),
    )


def _budgets() -> Schema:
    fields = {
        "nodes": text("most nodes at a time, as a number or a percentage", pattern=NODES, default="10%"),
        "reasons": entries(
            "reasons that the budget limits; all if absent",
            {"type": "string", "enum": list(karpenter.REASONS)},
            maxItems=50,
        ),
        "schedule": text("when the budget begins to hold, as cron in UTC; always if absent", pattern=SCHEDULE),
        "duration": text("for how long it holds each time, in hours and minutes", pattern=HOURS_OR_MINUTES),
    }
    both = [rule("has(self.schedule) == has(self.duration)", "schedule is set together with duration")]
    item = group("a limit on nodes that are disrupted at the same time", fields, ("nodes",), both)
    return entries("limits; the least of those that hold counts", item, maxItems=50, default=[{"nodes": "10%"}])


def _node_pool() -> Schema:
    disruption = {
        "consolidateAfter": text(
            "time since a node's last pod came or went, or Never", pattern=SECONDS_OR_NEVER, default="0s"
        ),
        "consolidationPolicy": text(
            "which nodes are consolidated", enum=list(karpenter.POLICIES), default=karpenter.UNDERUTILIZED
        ),
        "budgets": _budgets(),
    }
    fields = {
        "template": _node_template(),
        "disruption": group("when nodes are removed", disruption, default={"consolidateAfter": "0s"}),
        "limits": amounts("most of each resource over all nodes; nodes counts them"),
        "weight": whole("pools of higher weight come first; 0 if absent", 1, 100, format="int32"),
        "replicas": whole("number of nodes of a static pool", 0, format="int64"),
    }
    rules = [
        rule("has(self.replicas) == has(oldSelf.replicas)", "a pool stays static, or stays dynamic"),
        rule(
            "!has(self.replicas) || !has(self.limits) || self.limits.all(k, k == 'nodes')",
            "a static pool has limits.nodes only",
        ),
        rule("!has(self.replicas) || !has(self.weight)", "a static pool has no weight"),
    ]
    status = {
        "resources": amounts("capacity of the pool's nodes"),
        "nodes": whole("number of nodes", 0, format="int64"),
        "nodeClassObservedGeneration": whole("generation of the class that was looked at", 0, format="int64"),
        "conditions": conditions(),
    }
    return _object("Nodes of one kind.", group("the pool", fields, ("template",), rules), status)


def _node_claim() -> Schema:
    fields = {
        "taints": _taints("taints of the node"),
        "startupTaints": _taints(_STARTUP),
        "requirements": _requirements(karpenter.OPERATORS, least=True),
        "resources": group("the pods", {"requests": amounts("what the pods request that the node is for")}),
        "nodeClassRef": _class_reference(fixed=False),
        "terminationGracePeriod": text("longest drain; for ever if absent", pattern=SECONDS),
        "expireAfter": text("age at which the node is removed; Never if absent", pattern=SECONDS_OR_NEVER),
    }
    status = {
        "nodeName": text("name of the node"),
        "providerID": text("the instance, as the node names it too"),
        "imageID": text("image of the instance"),
        "capacity": amounts("capacity of the node, predicted until it has joined"),
        "allocatable": amounts("allocatable of the node, predicted until it has joined"),
        "lastPodEventTime": text("when a pod came or went last", format="date-time"),
        "conditions": conditions(),
    }
    fixed = [rule("self == oldSelf", "spec never changes")]
    spec = group("the node", fields, ("requirements",), fixed)
    # The rules on keys were met when the pool was admitted; a claim also names labels that its pool sets.
    spec["properties"]["requirements"]["items"]["properties"]["key"].pop("x-kubernetes-validations")
    return _object("A node that is wanted, on its way, running or ending.", spec, status)


def _node_overlay() -> Schema:
    restricted = [
        {
            "rule": f"self in ['{karpenter.CAPACITY_TYPE_LABEL}', '{karpenter.POOL_LABEL}'] "
            f"|| !self.find('^([^/]+)').endsWith('{karpenter.GROUP}')",
            "message": f"the label {RESTRICTED}",
        },
        {"rule": f"self != '{nodeoverlay.HOSTNAME}'", "message": f"the label {RESTRICTED}"},
    ]
    item = group(
        "a condition on a label",
        {
            "key": text(
                "label of the nodes",
                maxLength=316,
                pattern=LABEL_KEY,
                **{"x-kubernetes-validations": restricted},
            ),
            "operator": text("how the values are compared", enum=list(karpenter.OPERATORS)),
            # Karpenter's definition has these bounds on the list, where they have no effect. No value of a label is
            # longer, and without a length the API server finds the rule below too expensive.
            "values": entries(
                "values of the label; one whole number for Gt, Lt, Gte and Lte",
                {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
            ),
        },
        ("key", "operator"),
        [
            rule(
                "!(self.operator in ['In', 'NotIn']) || (has(self.values) && self.values.size() > 0)",
                "In and NotIn need values",
            ),
            rule(
                "!(self.operator in ['Gt', 'Lt', 'Gte', 'Lte']) || (has(self.values) && self.values.size() == 1 "
                "&& self.values[0].matches('^[0-9]+$'))",
                "Gt, Lt, Gte and Lte need one whole number from 0 on",
            ),
        ],
    )
    capacity = amounts("further resources of the nodes; those of the type itself are not changed")
    own = ", ".join(f"'{name}'" for name in nodeoverlay.OWN_RESOURCES)
    capacity["x-kubernetes-validations"] = [
        {"rule": f"self.all(x, !(x in [{own}]))", "message": "is decided by the instance type"}
    ]
    fields = {
        "requirements": entries("conditions on labels of the instance type, its offering and the pool", item)
        | {"maxItems": nodeoverlay.MOST_REQUIREMENTS},
        "price": text("price in dollars an hour", pattern=nodeoverlay.PRICE),
        "priceAdjustment": text(
            "change of the price: an amount in dollars or a percentage, with its sign",
            pattern=nodeoverlay.PRICE_ADJUSTMENT,
        ),
        "capacity": capacity,
        "weight": whole("overlays of higher weight count first; 0 if absent", 1, 10_000, format="int32"),
    }
    both = [rule("!has(self.price) || !has(self.priceAdjustment)", "price and priceAdjustment exclude each other")]
    spec = group("the change", fields, ("requirements",), both)
    return _object("Other prices and further resources of matching instance types.", spec, {"conditions": conditions()})


def _object(about: str, spec: Schema, status: dict[str, Schema]) -> Schema:
    return group(about, {"spec": spec, "status": group("what is", status)}, ("spec",))


_READY: Final = '.status.conditions[?(@.type=="Ready")].status'
_AGE: Final = PrinterColumn("Age", ".metadata.creationTimestamp", type="date")
DEFINITIONS: Final = (
    ServedKind(
        kind=Provisioner,
        singular="provisioner",
        schema=_provisioner,
        categories=("karpenter",),
        status_subresource=True,
        columns=(
            PrinterColumn("Template", ".spec.providerRef.name"),
            _AGE,
            PrinterColumn("Weight", ".spec.weight", type="integer", wide=True),
        ),
    ),
    ServedKind(
        kind=NodePool,
        singular="nodepool",
        schema=_node_pool,
        categories=("karpenter",),
        status_subresource=True,
        scale=(".spec.replicas", ".status.nodes"),
        columns=(
            PrinterColumn("NodeClass", ".spec.template.spec.nodeClassRef.name"),
            PrinterColumn("Nodes", ".status.nodes"),
            PrinterColumn("Ready", _READY),
            _AGE,
            PrinterColumn("Weight", ".spec.weight", type="integer", wide=True),
            PrinterColumn("CPU", ".status.resources.cpu", wide=True),
            PrinterColumn("Memory", ".status.resources.memory", wide=True),
        ),
    ),
    ServedKind(
        kind=NodeClaim,
        singular="nodeclaim",
        schema=_node_claim,
        categories=("karpenter",),
        status_subresource=True,
        columns=(
            PrinterColumn("Type", r".metadata.labels.node\.kubernetes\.io/instance-type"),
            PrinterColumn("Capacity", r".metadata.labels.karpenter\.sh/capacity-type"),
            PrinterColumn("Zone", r".metadata.labels.topology\.kubernetes\.io/zone"),
            PrinterColumn("Node", ".status.nodeName"),
            PrinterColumn("Ready", _READY),
            _AGE,
            PrinterColumn("ImageID", ".status.imageID", wide=True),
            PrinterColumn("ID", ".status.providerID", wide=True),
            PrinterColumn("NodePool", r".metadata.labels.karpenter\.sh/nodepool", wide=True),
            PrinterColumn("NodeClass", ".spec.nodeClassRef.name", wide=True),
            PrinterColumn("Drifted", '.status.conditions[?(@.type=="Drifted")].status', wide=True),
        ),
    ),
    *AWS_DEFINITIONS,
    ServedKind(
        kind=NodeOverlay,
        singular="nodeoverlay",
        schema=_node_overlay,
        short_names=("overlays",),
        categories=("karpenter",),
        status_subresource=True,
        columns=(
            PrinterColumn("Ready", _READY),
            _AGE,
            PrinterColumn("Weight", ".spec.weight", type="integer", wide=True),
        ),
    ),
)


def karpenter_crds() -> list[dict[str, Any]]:
    """Return the definitions, ready to be applied; fresh dicts on every call."""
    return [definition(served) for served in DEFINITIONS]
