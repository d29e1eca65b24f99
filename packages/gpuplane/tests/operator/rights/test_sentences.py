"""Each right of a component has a sentence that says what a stolen token can do with it at most."""

from __future__ import annotations

import re
from pathlib import Path

from gpuplane.operator.rights import granted, sentences

HOOKS = Path(__file__).parents[5] / "deploy/chart/gpuplane/templates/hooks.yaml"


def test_each_rule_has_a_sentence() -> None:
    missing = [
        f"{rule.account}: {rule}"
        for rule in granted()
        if rule.account not in sentences() or str(rule) not in sentences()[rule.account].rules
    ]
    assert missing == [], "granted, and not in operator/rights.yaml"


def test_no_sentence_is_left_without_its_rule() -> None:
    rules = {(rule.account, str(rule)) for rule in granted()}
    left = [
        (account, rule) for account, said in sentences().items() for rule in said.rules if (account, rule) not in rules
    ]
    assert left == [], "in operator/rights.yaml, and not granted"


def test_a_rule_that_grows_needs_another_sentence() -> None:
    rules = [
        {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["tls"], "verbs": ["get"]},
    ]
    role = {"kind": "Role", "metadata": {"name": "r", "namespace": "n"}, "rules": rules}
    binding = {
        "kind": "RoleBinding",
        "metadata": {"name": "r", "namespace": "n"},
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": "n"}],
    }
    assert [str(rule) for rule in granted([role, binding])] == [
        "get, list daemonsets of apps in n",
        "get secrets named tls in n",
    ]


def test_sentences_are_sentences() -> None:
    for account, said in sentences().items():
        for sentence in (said.most, *said.rules.values()):
            assert re.fullmatch(r"[A-Z].*[.]", sentence), (account, sentence)


def test_the_jobs_of_the_chart_are_on_the_page() -> None:
    names = set(re.findall(r'"name" "(gpuplane-[a-z-]+)"', HOOKS.read_text()))
    page = (HOOKS.parents[4] / "docs/reference/rights.md").read_text()
    assert names and [name for name in sorted(names) if f"`{name}`" not in page] == []
