"""Any definition, webhook, policy or role is stored or refused, and the server goes on."""

from __future__ import annotations

import asyncio
import copy
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinykube.apiserver import ApiFailure, Registry, User
from tinykube.apiserver.extensions import Extensions, install
from tinykube.apiserver.hooks import Attributes
from tinykube.apiserver.tables import to_table
from tinykube.apiserver.writes import WriteOptions

RULES = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"]}]
SELECTOR = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}
SPEC = {
    "type": "object",
    "required": ["a"],
    "x-kubernetes-validations": [{"rule": "self.a != ''", "message": "m"}],
    "properties": {
        "a": {"type": "string", "default": "x", "enum": ["x", "y"], "pattern": "^[xy]", "maxLength": 3},
        "n": {"type": "integer", "minimum": 1},
        "l": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}},
        },
    },
}
HOOK = {
    "name": "a.example.com",
    "clientConfig": {"service": {"name": "s", "namespace": "n", "port": 1}, "caBundle": "YQ=="},
    "rules": RULES,
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
    "matchConditions": [{"name": "n", "expression": "true"}],
    "namespaceSelector": SELECTOR,
    "timeoutSeconds": 1,
}
RBAC = "rbac.authorization.k8s.io"
GOOD: dict[str, dict[str, Any]] = {
    "customresourcedefinitions": {
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"], "categories": ["all"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.r", "statusReplicasPath": ".status.r"},
                    },
                    "additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": ".spec.a"}],
                    "selectableFields": [{"jsonPath": ".spec.a"}],
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC}}},
                }
            ],
        },
    },
    "validatingwebhookconfigurations": {"metadata": {"name": "w"}, "webhooks": [HOOK]},
    "mutatingwebhookconfigurations": {"metadata": {"name": "m"}, "webhooks": [HOOK]},
    "validatingadmissionpolicies": {
        "metadata": {"name": "p"},
        "spec": {
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {"resourceRules": RULES, "namespaceSelector": SELECTOR},
            "variables": [{"name": "v", "expression": "1"}],
            "validations": [{"expression": "variables.v == 1", "messageExpression": "'x'", "reason": "Invalid"}],
        },
    },
    "validatingadmissionpolicybindings": {
        "metadata": {"name": "b"},
        "spec": {
            "policyName": "p",
            "validationActions": ["Deny"],
            "paramRef": {"selector": SELECTOR, "parameterNotFoundAction": "Deny"},
            "matchResources": {"objectSelector": SELECTOR},
        },
    },
    "clusterroles": {
        "metadata": {"name": "r"},
        "aggregationRule": {"clusterRoleSelectors": [SELECTOR]},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": ["x"]}],
    },
    "clusterrolebindings": {
        "metadata": {"name": "rb"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "r"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "jane"}],
    },
    "priorityclasses": {"metadata": {"name": "pc"}, "value": 1, "globalDefault": True},
    "runtimeclasses": {
        "metadata": {"name": "rc"},
        "handler": "x",
        "scheduling": {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "x"}]},
    },
}
JUNK: tuple[Any, ...] = (None, 1, -1, "x", "", True, [], {}, [1], ["x"], {"a": 1}, [{}], 1.5, [None], "é\u0000")


def places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        found += [(value, key), *places(child)]
    return found


def spoiled(obj: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """`obj` with one to three places left out or filled with something else."""
    made = copy.deepcopy(obj)
    for _ in range(chance.randint(1, 3)):
        container, key = chance.choice(places(made) or [(made, "x")])
        if isinstance(container, dict) and chance.random() < 0.3:
            container.pop(key, None)
        else:
            container[key] = copy.deepcopy(chance.choice(JUNK))
    return made


async def send(registry: Registry, plural: str, obj: dict[str, Any]) -> bool:
    """As a client sends it; whether it was taken."""
    kind = registry.kinds.find(plural)
    namespace = "default" if kind.info.namespaced else ""
    try:
        await registry.writer.create(kind, namespace, obj, WriteOptions(manager="test", validation="Warn"))
    except ApiFailure as refused:
        # A webhook that cannot be reached is the one 500 that is right.
        assert refused.status < 500 or "failed calling webhook" in str(refused), refused
        return False
    return True


async def still_works(extensions: Extensions) -> None:
    registry = extensions.registry
    await send(registry, "secrets", {"metadata": {"generateName": "s-", "labels": {"a": "b"}}})
    pod = {"runtimeClassName": "rc", "containers": [{"name": "c", "image": "i"}]}
    await send(registry, "pods", {"metadata": {"generateName": "p-"}, "spec": pod})
    extensions.rbac.authorize(User("jane"), Attributes("get", resource="pods", name="x"))
    if registry.kinds.served("example.com", "v1", "things"):
        for spec in ({"a": "x"}, {"a": 1, "n": "x", "l": [{"k": 1}, {"k": "x"}, 3]}, []):
            await send(registry, "things.example.com", {"metadata": {"generateName": "t-"}, "spec": spec})
    for kind in registry.kinds:
        to_table(kind.printer, registry.list(kind.info) if "list" in kind.info.verbs else [], now=datetime.now(UTC))


@pytest.mark.parametrize("plural", GOOD)
async def test_what_is_spoiled_here_is_good_before(cluster, plural):
    assert await send(cluster.registry, plural, copy.deepcopy(GOOD[plural]))
    await still_works(cluster.extensions)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(sorted(GOOD)), min_size=1, max_size=4), st.integers(0, 2**32))
def test_spoiled_objects_are_refused_or_harmless(plurals, seed):
    async def run() -> None:
        chance = random.Random(seed)
        extensions = install(Registry())
        for plural in plurals:
            await send(extensions.registry, plural, spoiled(GOOD[plural], chance))
        await still_works(extensions)
        extensions.close()

    asyncio.run(run())
