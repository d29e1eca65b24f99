"""The table of gates: each rule decides in its own case, and no case is left without a rule."""

from __future__ import annotations

import itertools

import pytest

from gpuplane.operator.gates import OPEN, PAUSED, PRE_INSTALLED, REMOVING, RULES, GateFacts, Keep, rule_of

CASES = [
    GateFacts(wanted, value, *flags)
    for wanted in (False, True)
    for value in (None, OPEN, PRE_INSTALLED, PAUSED, REMOVING, "written by hand")
    for flags in itertools.product((False, True), repeat=6)
]


def test_each_rule_decides_in_some_case_and_says_why_in_its_own_words() -> None:
    assert {rule_of(case).reason for case in CASES} == {rule.reason for rule in RULES}
    assert len({rule.reason for rule in RULES}) == len(RULES)


def next_value(gate: GateFacts) -> str | None:
    value = rule_of(gate).value
    return gate.value if isinstance(value, Keep) else value


def test_no_gate_that_a_later_operand_uses_closes_before_it() -> None:
    for gate in CASES:
        if gate.used and gate.is_open:
            assert next_value(gate) is not None
            assert next_value(gate) not in (PAUSED, REMOVING)


def test_an_open_gate_stays_open_although_a_needed_stage_is_gone_for_a_moment() -> None:
    for gate in CASES:
        if gate.wanted and gate.is_open and not (gate.failed or gate.aside):
            assert next_value(gate) in (OPEN, PRE_INSTALLED)


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (GateFacts(wanted=True), None),
        (GateFacts(wanted=True, needs_hold=True), OPEN),
        (GateFacts(wanted=True, needs_hold=True, present=True), PRE_INSTALLED),
        (GateFacts(wanted=True, value=OPEN, failed=True), None),
        (GateFacts(wanted=True, value=OPEN, aside=True), PAUSED),
        (GateFacts(wanted=True, value=PAUSED, aside=True, needs_hold=True), PAUSED),
        (GateFacts(wanted=True, value=PAUSED, needs_hold=True), OPEN),
        (GateFacts(wanted=True, value=PAUSED), None),
        (GateFacts(wanted=False, value=OPEN, undoes=True), REMOVING),
        (GateFacts(wanted=False, value=REMOVING), None),
        (GateFacts(wanted=False, undoes=True), None),
    ],
)
def test_the_next_value(gate: GateFacts, expected: str | None) -> None:
    assert next_value(gate) == expected
