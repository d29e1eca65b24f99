"""Sets the defaults of webhooks, admission policies and flow control."""

from __future__ import annotations

from tinykube.apiserver.defaults.filling import Object, fill, spec_of


def webhooks(obj: Object) -> None:
    for webhook in obj.get("webhooks") or ():
        fill(
            webhook,
            failurePolicy="Fail",
            matchPolicy="Equivalent",
            timeoutSeconds=10,
            namespaceSelector={},
            objectSelector={},
        )
        if obj.get("kind") == "MutatingWebhookConfiguration":
            fill(webhook, reinvocationPolicy="Never")
        for rule in webhook.get("rules") or ():
            fill(rule, scope="*")
        service = (webhook.get("clientConfig") or {}).get("service")
        if service:
            fill(service, port=443)


def flow_schema(obj: Object) -> None:
    fill(spec_of(obj), matchingPrecedence=1000)
    fill(obj, status={})


def priority_level(obj: Object) -> None:
    spec = spec_of(obj)
    if spec.get("type") == "Exempt":
        fill(spec, exempt={})
        fill(spec["exempt"], nominalConcurrencyShares=0, lendablePercent=0)
    elif isinstance(limited := spec.get("limited"), dict):
        fill(limited, nominalConcurrencyShares=30, lendablePercent=0)
        queuing = (limited.get("limitResponse") or {}).get("queuing")
        if isinstance(queuing, dict):
            fill(queuing, queues=64, handSize=8, queueLengthLimit=50)
    fill(obj, status={})


def admission_policy(obj: Object) -> None:
    fill(spec_of(obj), failurePolicy="Fail")
    _match_resources(obj["spec"].get("matchConstraints"))


def admission_binding(obj: Object) -> None:
    _match_resources(spec_of(obj).get("matchResources"))


def _match_resources(match: Object | None) -> None:
    if match is not None:
        fill(match, matchPolicy="Equivalent", namespaceSelector={}, objectSelector={})
        for rule in (*(match.get("resourceRules") or ()), *(match.get("excludeResourceRules") or ())):
            fill(rule, scope="*")
