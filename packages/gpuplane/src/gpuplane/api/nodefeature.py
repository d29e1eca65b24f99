"""NodeFeature and NodeFeatureRule (`nfd.k8s-sigs.io/v1alpha1`): what a node has, and what follows from it.

The kinds of node feature discovery, so that existing rules apply unchanged. Decoding is lenient, as everywhere; what a
rule may say is judged by `gpuplane.api.nodefeature_checks`, for `gpuplane check` and for the master alike.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec

from gpuplane.api.marks import one_of, shaped
from kubekit.api.meta import ObjectMeta, Resource, Struct

GROUP: Final = "nfd.k8s-sigs.io"
NODE_NAME_LABEL: Final = "nfd.node.kubernetes.io/node-name"
"""On a NodeFeature: the node that it is about."""

VALUES: Final[dict[str, tuple[int, int | None]]] = {
    "In": (1, None),
    "NotIn": (1, None),
    "InRegexp": (1, None),
    "Exists": (0, 0),
    "DoesNotExist": (0, 0),
    "Gt": (1, 1),
    "Ge": (1, 1),
    "Lt": (1, 1),
    "Le": (1, 1),
    "GtLt": (2, 2),
    "GeLe": (2, 2),
    "IsTrue": (0, 0),
    "IsFalse": (0, 0),
}
"""Operator -> how many values it takes at least and at most; None: any number."""


def _arity() -> msgspec.Meta:
    """`VALUES` as a schema. Not as a CEL rule, whose cost has no bound in lists of lists of maps."""
    branches: dict[tuple[int, int | None], list[str]] = {}
    for operator, counts in VALUES.items():
        branches.setdefault(counts, []).append(operator)
    choices = []
    for (least, most), operators in branches.items():
        value: dict[str, Any] = {"minItems": least} if least else {}
        if most is not None:
            value["maxItems"] = most
        choices.append(
            {
                "properties": {"op": {"enum": operators}, "value": value},
                "required": ["op", "value"] if least else ["op"],
            }
        )
    return shaped(anyOf=choices)


class MatchExpression(Struct):
    """A test of one element.

    Fields:
    op: the operator
    value: what it compares with; how many depends on the operator
    type: version compares as versions instead of whole numbers
    """

    op: Annotated[str, one_of(*VALUES)]
    value: tuple[str, ...] = ()
    type: Annotated[str, one_of("", "version")] = ""


Expression = Annotated[MatchExpression, _arity()]


class FeatureMatch(Struct):
    """The conditions on one feature.

    Fields:
    feature: name of the feature, as pci.device
    match_expressions: tests by name of the element or, for instances, of the attribute; all must hold
    match_name: a test of the names themselves; one name must pass it
    """

    feature: str
    match_expressions: dict[str, Expression] | None = None
    match_name: Expression | None = None


class MatchAny(Struct):
    """One of several ways to match.

    Fields:
    match_features: all of these must match
    """

    match_features: tuple[FeatureMatch, ...] = ()


class RuleTaint(Struct):
    """A taint of the nodes that match.

    Fields:
    key: name of the taint, with a prefix
    effect: what it does to pods that do not tolerate it
    value: its value
    """

    key: str
    effect: Annotated[str, one_of("NoSchedule", "PreferNoSchedule", "NoExecute")]
    value: str = ""


class FeatureRule(Struct):
    """The labels, annotations, taints and resources for matching nodes.

    Fields:
    name: name of the rule
    labels: labels of the nodes that match; a value as @kernel.config.LSM is taken from a feature
    labels_template: a template that makes more labels, one name=value on a line
    annotations: annotations of the nodes that match
    vars: values that later rules can test as rule.matched
    vars_template: a template that makes more of them, one name=value on a line
    taints: taints of the nodes that match
    extended_resources: resources of the nodes that match; a value as @kernel.config.NR_CPUS is taken from a feature
    match_features: all of these must match
    match_any: one of these must match
    """

    name: str
    labels: dict[str, str] = {}
    labels_template: str = ""
    annotations: dict[str, str] = {}
    vars: dict[str, str] = {}
    vars_template: str = ""
    taints: tuple[RuleTaint, ...] = ()
    extended_resources: dict[str, str] = {}
    match_features: tuple[FeatureMatch, ...] = ()
    match_any: tuple[MatchAny, ...] = ()


class NodeFeatureRuleSpec(Struct):
    """Rules, evaluated in their order.

    Fields:
    rules: the rules
    """

    rules: tuple[FeatureRule, ...]


class NodeFeatureRule(Struct):
    """Labels, annotations, taints and resources for the nodes that have certain features.

    Fields:
    spec: the rules
    """

    RESOURCE: ClassVar[Resource] = Resource(GROUP, "v1alpha1", "nodefeaturerules", "NodeFeatureRule", False)

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeFeatureRuleSpec = NodeFeatureRuleSpec(rules=())


class Nothing(Struct):
    """A flag has no value."""


class FlagSet(Struct):
    """Names without values.

    Fields:
    elements: the names
    """

    elements: dict[str, Nothing] = {}


class AttributeSet(Struct):
    """Names with values.

    Fields:
    elements: name and value
    """

    elements: dict[str, str] = {}


class Instance(Struct):
    """One of several of a kind, as one PCI device.

    Fields:
    attributes: what it is like
    """

    attributes: dict[str, str] = {}


class InstanceSet(Struct):
    """Several of a kind.

    Fields:
    elements: each of them
    """

    elements: tuple[Instance, ...] = ()


class RawFeatures(Struct):
    """Features by name, as kernel.version.

    Fields:
    flags: features that are names only
    attributes: features that are names with values
    instances: features that are several of a kind
    """

    flags: dict[str, FlagSet] = {}
    attributes: dict[str, AttributeSet] = {}
    instances: dict[str, InstanceSet] = {}


class NodeFeatureSpec(Struct):
    """The features of a node.

    Fields:
    features: what rules are evaluated on
    labels: labels that the node shall get in any case
    """

    features: RawFeatures = RawFeatures()
    labels: dict[str, str] = {}


class NodeFeature(Struct):
    """The features of one node, for rules to be evaluated on; its label nfd.node.kubernetes.io/node-name names the
    node.

    Fields:
    spec: what the node has
    """

    RESOURCE: ClassVar[Resource] = Resource(GROUP, "v1alpha1", "nodefeatures", "NodeFeature", True)

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeFeatureSpec = NodeFeatureSpec()
