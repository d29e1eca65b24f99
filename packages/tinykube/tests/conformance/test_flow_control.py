"""FlowSchemas and PriorityLevelConfigurations as objects: their defaults, and what is refused."""

from __future__ import annotations

GROUP = "/apis/flowcontrol.apiserver.k8s.io/v1"


def schema(**spec):
    user = {"kind": "User", "user": {"name": "nobody"}}
    rule = {"subjects": [user], "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}
    return {"priorityLevelConfiguration": {"name": "global-default"}, "rules": [rule], **spec}


def test_flow_schemas(here):
    path = f"{GROUP}/flowschemas"

    def see(step, spec):
        here.see(step, here.create(path, {"metadata": {"name": here.name("f")}, "spec": spec}, dryRun="All"))

    see("defaults", schema())
    see("no level", schema(priorityLevelConfiguration={"name": ""}))
    see("a precedence too high", schema(matchingPrecedence=10001))
    see("a negative precedence", schema(matchingPrecedence=-1))
    see("an unknown distinguisher", schema(distinguisherMethod={"type": "ByMood"}))
    see("a rule for nobody", schema(rules=[{"nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]))
    see("an unknown subject", schema(rules=[{**schema()["rules"][0], "subjects": [{"kind": "Robot"}]}]))
    see("a rule about nothing", schema(rules=[{"subjects": schema()["rules"][0]["subjects"]}]))


def test_priority_levels(here):
    path = f"{GROUP}/prioritylevelconfigurations"

    def see(step, spec):
        here.see(step, here.create(path, {"metadata": {"name": here.name("p")}, "spec": spec}, dryRun="All"))

    see("rejects", {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}})
    see("queues", {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}})
    see("no limits", {"type": "Limited"})
    see("an unknown type", {"type": "Sometimes"})
    see("an unknown response", {"type": "Limited", "limited": {"limitResponse": {"type": "Shrug"}}})
    see(
        "negative shares",
        {"type": "Limited", "limited": {"nominalConcurrencyShares": -1, "limitResponse": {"type": "Reject"}}},
    )
    see("a queue of nothing", {"type": "Limited", "limited": {"limitResponse": {"type": "Queue"}}})
    hand = {"queues": 2, "handSize": 4, "queueLengthLimit": 1}
    see("a hand too large", {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": hand}}})
