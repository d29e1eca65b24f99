"""Differences between the embedded cluster and a real one: by decision (listed in the documentation), and not mended.

A line that is no longer true fails its scenario, so both tables are true.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import yaml

# Scenario, steps, why.
DECIDED: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    (
        "objects/bodies_that_are_wrong",
        ("a list", "a wrong type", "a wrong type of metadata", "an unacceptable answer", "empty", "no JSON"),
        "The words of Go's JSON decoder, and its types; status and reason are the same.",
    ),
    (
        "discovery/groups",
        ("groups", "its number", "version"),
        "The groups that are not served; the version says 1.34, the oldest of which all that is served is true.",
    ),
    (
        "objects/defaults",
        ("a rich pod",),
        "Quantities keep their spelling (`1000m` does not become `1`); they are compared by value everywhere.",
    ),
    (
        "admission/webhooks_that_refuse-*",
        ("asked",),
        "A real server adds the fingerprint of the client's certificate to `userInfo.extra`; tokens have none.",
    ),
    (
        "custom/objects",
        ("create",),
        "As for `objects/the_life_of_an_object`: `managedFields` name leaves only.",
    ),
    (
        "custom/objects",
        ("table",),
        "Columns have no descriptions where a definition has none: they are sentences of Kubernetes' documentation.",
    ),
    ("lists/tables", ("a list", "one"), "Columns have no descriptions, as for custom resources."),
    (
        "patches/apply_to_lists-containers",
        ("one leaves", "order"),
        "Writes of the embedded controllers have no entry in `managedFields`.",
    ),
    ("admission/wrong_policies", ("no parse",), "The words of Google's CEL parser."),
    ("custom/wrong_definitions", ("a rule that does not parse",), "The words of Google's CEL parser."),
    (
        "objects/what_is_invalid",
        ("a pod's spec is fixed",),
        "The difference of two objects as Go prints their types; the changed fields are named.",
    ),
    ("scheduling/bindings", ("nodeName is not patched",), "The difference of two objects as Go prints their types."),
    (
        "objects/the_life_of_an_object",
        ("create", "replace"),
        "`managedFields` name the leaves of a map, not the map itself (`.`), which only tells who made it empty.",
    ),
    (
        "wrong_objects/wrong-endpoints",
        ("an address of the machine itself",),
        "Endpoints may be of the loopback range, since pods of an embedded cluster have addresses there.",
    ),
    ("wrong_objects/wrong-endpointslices", ("an address of the other family",), "As for Endpoints."),
    (
        "wrong_objects/wrong-resourceclaims",
        ("a selector that is no CEL", "update: another class"),
        "The words of Google's CEL parser, and an object as Go prints its type; status, reason and field are the same.",
    ),
    ("wrong_objects/wrong-deviceclasses", ("a selector that is no CEL",), "The words of Google's CEL parser."),
    ("wrong_objects/wrong-validatingwebhookconfigurations", ("a condition",), "The words of Google's CEL parser."),
    ("wrong_objects/wrong-jobs", ("update: another image",), "An object as Go prints its type."),
    (
        "volumes/the_growth_of_a_claim-*",
        ("before it is bound", "other modes"),
        "The difference of two objects as Go prints their types.",
    ),
)
# Scenario, steps, why a real cluster does not show the same each time; there these are not compared.
RESTLESS: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("custom/refused_objects", ("several",), "several findings come in the order of a map in Go"),
    ("objects/names", ("*",), "what a controller has written by then depends on its speed"),
    ("patches/apply_to_lists*", ("*",), "the same"),
    ("scheduling/evictions", ("*",), "the same"),
)
# Scenario -> steps; no decision, only not done.
UNMENDED: Final = Path(__file__).parent / "unmended.yaml"


def unmended() -> dict[str, list[str]]:
    found: dict[str, list[str]] = yaml.safe_load(UNMENDED.read_text()) or {}
    return found


def keep(scenario: str, steps: Iterable[str]) -> None:
    """Notes what of a scenario still differs (`--record` with the embedded cluster)."""
    left = {step for step in steps if not any(fnmatchcase(step, pattern) for pattern in decided(scenario))}
    rest = {name: found for name, found in unmended().items() if name != scenario}
    whole = {**rest, **({scenario: sorted(left)} if left else {})}
    UNMENDED.write_text(yaml.safe_dump(whole, width=110))


def told(scenario: str) -> set[str]:
    """The steps of a scenario that are known to differ; patterns."""
    return decided(scenario) | set(unmended().get(scenario, ()))


def restless(scenario: str) -> set[str]:
    """The steps of a scenario that a real cluster does not always show alike; patterns."""
    return {step for place, steps, _ in RESTLESS if fnmatchcase(scenario, place) for step in steps}


def decided(scenario: str) -> set[str]:
    return {step for place, steps, _ in DECIDED if fnmatchcase(scenario, place) for step in steps}
