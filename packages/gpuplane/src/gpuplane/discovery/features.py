"""The features of a node, by their names in rules: flags, attributes, and instances of a kind.

The labels of a machine and its NodeFeature object both follow from this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gpuplane.api.nodefeature import (
    AttributeSet,
    FeatureRule,
    FlagSet,
    Instance,
    InstanceSet,
    Nothing,
    RawFeatures,
)

Attributes = Mapping[str, str]
RULE_MATCHED = "rule.matched"
EVERYTHING = "*"


class Features(msgspec.Struct, frozen=True):
    """By feature name (`pci.device`, all lower case). A feature may be of several types, as `cpu.cpuid` is."""

    flags: Mapping[str, frozenset[str]] = {}
    attributes: Mapping[str, Attributes] = {}
    instances: Mapping[str, tuple[Attributes, ...]] = {}

    def has(self, name: str) -> bool:
        return name in self.flags or name in self.attributes or name in self.instances


def union(*parts: Features) -> Features:
    """All of them; where two have the same element, the later one has the last word, and instances add up."""
    flags: dict[str, frozenset[str]] = {}
    attributes: dict[str, Attributes] = {}
    instances: dict[str, tuple[Attributes, ...]] = {}
    for part in parts:
        for name, elements in part.flags.items():
            flags[name] = flags.get(name, frozenset()) | elements
        for name, values in part.attributes.items():
            attributes[name] = {**attributes[name], **values} if name in attributes else values
        for name, found in part.instances.items():
            instances[name] = instances.get(name, ()) + found
    return Features(flags, attributes, instances)


def from_api(raw: RawFeatures) -> Features:
    return Features(
        {name.lower(): frozenset(flags.elements) for name, flags in raw.flags.items()},
        {name.lower(): found.elements for name, found in raw.attributes.items()},
        {name.lower(): tuple(one.attributes for one in found.elements) for name, found in raw.instances.items()},
    )


def to_api(features: Features) -> RawFeatures:
    return RawFeatures(
        flags={
            name: FlagSet(elements=dict.fromkeys(sorted(found), Nothing())) for name, found in features.flags.items()
        },
        attributes={name: AttributeSet(elements=dict(found)) for name, found in features.attributes.items()},
        instances={
            name: InstanceSet(elements=tuple(Instance(attributes=dict(one)) for one in found))
            for name, found in features.instances.items()
        },
    )


def needs(rules: Iterable[FeatureRule]) -> frozenset[str]:
    """Return the features that rules read, as `kernel.config/X86`, or `pci.device/*` for every element.

    A node publishes this much and no more: a kernel's whole configuration is 100 kB that hardly any rule reads.
    """
    found = set()
    for rule in rules:
        terms = [*rule.match_features, *(term for way in rule.match_any for term in way.match_features)]
        for term in terms:
            name = term.feature.lower()
            if name == RULE_MATCHED:
                continue
            found.add(f"{name}/{EVERYTHING}" if term.match_name is not None else f"{name}/")
            found |= {f"{name}/{element}" for element in term.match_expressions or {}}
        for value in (*rule.labels.values(), *rule.extended_resources.values()):
            domain, _, rest = value.removeprefix("@").partition(".")
            feature, _, element = rest.partition(".")
            if value.startswith("@") and element:
                found.add(f"{domain}.{feature}".lower() + f"/{element}")
    return frozenset(found)


def covers(published: frozenset[str], wanted: frozenset[str]) -> bool:
    """Return whether what was published for `published` answers everything in `wanted`."""
    return all(need in published or need.partition("/")[0] + f"/{EVERYTHING}" in published for need in wanted)


def narrowed(features: Features, wanted: frozenset[str]) -> Features:
    """The part of the features that `wanted` names; instances stay whole."""
    elements: dict[str, set[str]] = {}
    for need in wanted:
        name, _, element = need.partition("/")
        elements.setdefault(name, set()).add(element)
    flags, attributes, instances = {}, {}, {}
    for name, which in elements.items():
        every = EVERYTHING in which
        if name in features.flags:
            flags[name] = frozenset(flag for flag in features.flags[name] if every or flag in which)
        if name in features.attributes:
            found = features.attributes[name]
            attributes[name] = {key: value for key, value in found.items() if every or key in which}
        if name in features.instances:
            instances[name] = features.instances[name]
    return Features(flags, attributes, instances)
