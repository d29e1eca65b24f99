"""The answer to any request is an object or a refusal with a reason, never an internal error."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tinykube.apiserver import Registry, User
from tinykube.apiserver.extensions import install
from tinykube.apiserver.rest import Rest

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "size": {"type": "integer", "default": 1},
                                    "rows": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["id"],
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "properties": {"id": {"type": "string"}, "v": {"type": "string"}},
                                        },
                                    },
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}
METADATA = {
    "name": "x",
    "labels": {"a": "b"},
    "annotations": {"c": "d"},
    "finalizers": ["e/f"],
    "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}],
}
CONTAINER = {
    "name": "c",
    "image": "i",
    "env": [{"name": "A", "value": "B"}, {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
    "ports": [{"containerPort": 80}],
    "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    "livenessProbe": {"httpGet": {"port": 80}},
}
SPEC = {
    "containers": [CONTAINER],
    "volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}],
    "tolerations": [{"operator": "Exists"}],
    "nodeSelector": {"a": "b"},
}
SELECTED = {
    "replicas": 1,
    "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
    "template": {"metadata": {"labels": {"a": "b"}}, "spec": SPEC},
}
LIMITS = {
    "type": "Container",
    "min": {"cpu": "1m"},
    "max": {"cpu": "64"},
    "default": {"memory": "1Gi"},
    "defaultRequest": {"memory": "1Mi"},
    "maxLimitRequestRatio": {"cpu": "9"},
}
#: Fields with which every pod and claim is compared.
EVERYWHERE = [
    {**LIMITS, "default": {"memory": "1Gi", "cpu": "1"}},
    {"type": "Pod", "max": {"cpu": "99"}},
    {"type": "PersistentVolumeClaim", "max": {"storage": "9Gi"}},
]
BODIES = {
    "/api/v1/namespaces/default/pods": {"metadata": METADATA, "spec": SPEC},
    "/apis/apps/v1/namespaces/default/deployments": {"metadata": METADATA, "spec": SELECTED},
    "/apis/batch/v1/namespaces/default/jobs": {
        "metadata": METADATA,
        "spec": {"template": {"spec": {**SPEC, "restartPolicy": "Never"}}},
    },
    "/apis/batch/v1/namespaces/default/cronjobs": {
        "metadata": METADATA,
        "spec": {
            "schedule": "0 * * * *",
            "jobTemplate": {"spec": {"template": {"spec": {**SPEC, "restartPolicy": "Never"}}}},
        },
    },
    "/api/v1/namespaces/default/limitranges": {"metadata": METADATA, "spec": {"limits": [LIMITS]}},
    "/api/v1/namespaces/default/persistentvolumeclaims": {
        "metadata": METADATA,
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    },
    "/apis/policy/v1/namespaces/default/poddisruptionbudgets": {
        "metadata": METADATA,
        "spec": {"minAvailable": "50%", "selector": SELECTED["selector"]},
    },
    "/api/v1/namespaces/default/services": {
        "metadata": METADATA,
        "spec": {
            "clusterIP": "10.96.9.9",
            "clusterIPs": ["10.96.9.9"],
            "ports": [{"port": 80, "nodePort": 30099}],
            "selector": {"a": "b"},
            "type": "NodePort",
        },
    },
    "/api/v1/namespaces/default/secrets": {"metadata": METADATA, "stringData": {"a": "b"}, "data": {"c": "ZA=="}},
    "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings": {
        "metadata": METADATA,
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "u"}],
    },
    "/apis/example.com/v1/namespaces/default/things": {
        "metadata": METADATA,
        "spec": {"size": 2, "rows": [{"id": "a", "v": "1"}, {"id": "b"}]},
        "status": {"x": 1},
    },
}
junk = st.sampled_from(
    [None, True, 0, -1, 1.5, "", "x", [], {}, [None], [1], ["a", "a"], {"a": None}, {"a": {"b": []}}]
)


def places(value, path=()):
    """Every place of a body, by its path."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def replaced(body, path, value):
    if not path:
        return value
    body = copy.deepcopy(body)
    box = body
    for part in path[:-1]:
        box = box[part]
    box[path[-1]] = value
    return body


broken = st.sampled_from(sorted(BODIES)).flatmap(
    lambda path: st.tuples(st.just(path), st.sampled_from(list(places(BODIES[path]))), junk)
)


def server():
    registry = Registry()
    made = install(registry)
    made.identity.add("t", User("admin", ("system:masters",)))

    async def fill():
        await registry.create("serviceaccounts", "default", {"metadata": {"name": "default"}})
        await registry.create("customresourcedefinitions", None, CRD)
        await registry.create("limitranges", "default", {"metadata": {"name": "all"}, "spec": {"limits": EVERYWHERE}})

    asyncio.run(fill())
    return Rest(registry)


async def ask(app, method, path, body, media="application/json", query=b""):
    sent = []

    async def receive():
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message):
        sent.append(message)

    headers = [(b"authorization", b"Bearer t"), (b"content-type", media.encode()), (b"accept", b"*/*")]
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": headers}
    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]


@pytest.fixture(scope="module")
def app():
    logging.getLogger("tinykube.apiserver").setLevel(logging.CRITICAL)
    yield server()
    logging.getLogger("tinykube.apiserver").setLevel(logging.NOTSET)


relaxed = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@relaxed
@given(broken)
@example(("/api/v1/namespaces/default/pods", ("metadata", "labels"), ["a"]))
def test_bodies_that_are_not_what_they_should_be(app, case):
    path, place, value = case
    body = replaced(BODIES[path], place, value)

    async def run():
        status, answer = await ask(app, "POST", path, body)
        assert status < 500, (status, answer)
        if status == 201:
            name = json.loads(answer)["metadata"]["name"]
            await ask(app, "PATCH", f"{path}/{name}", {"metadata": {"finalizers": None}}, MERGE)
            await ask(app, "DELETE", f"{path}/{name}", {"gracePeriodSeconds": 0})

    asyncio.run(run())


MERGE = "application/merge-patch+json"
TYPES = (
    MERGE,
    "application/strategic-merge-patch+json",
    "application/json-patch+json",
    "application/apply-patch+yaml",
)


@relaxed
@given(broken, st.sampled_from(TYPES))
def test_patches_that_are_not_what_they_should_be(app, case, media):
    path, place, value = case
    whole = replaced(BODIES[path], place, value)
    if media == TYPES[2]:
        patch = [{"op": "add", "path": "/" + "/".join(str(part) for part in place), "value": value}]
    else:
        patch = whole

    async def run():
        await ask(app, "POST", path, BODIES[path])
        query = b"fieldManager=m&force=true"
        if isinstance(patch, dict) and media == TYPES[3]:
            kind = json.loads((await ask(app, "GET", f"{path}/x", None))[1])
            patch.update(apiVersion=kind["apiVersion"], kind=kind["kind"])
        status, answer = await ask(app, "PATCH", f"{path}/x", patch, media, query)
        # As a real server: an applied field that there is not is its mistake.
        assert status < 500 or b"failed to create typed patch object" in answer, (status, answer)
        await ask(app, "PATCH", f"{path}/x", {"metadata": {"finalizers": None}}, MERGE)
        await ask(app, "DELETE", f"{path}/x", {"gracePeriodSeconds": 0})

    asyncio.run(run())


@relaxed
@given(
    st.sampled_from(
        ["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "timeoutSeconds", "dryRun"]
    ),
    st.text("a=!,()in notx1-. %", max_size=12),
)
def test_queries_that_are_not_what_they_should_be(app, name, value):

    path = "/api/v1/namespaces/default/pods"
    query = f"{name}={quote(value)}".encode()
    status, answer = asyncio.run(ask(app, "GET", path, None, query=query))
    assert status in (200, 400, 410, 422, 504), answer


@pytest.mark.parametrize("resources", [{"requests": {"cpu": "-1"}}, {"limits": {"memory": "-1Gi"}}])
async def test_negative_amounts_are_refused(api, resources):
    container = {"name": "main", "image": "app", "resources": resources}
    answer = await api(
        "POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "a"}, "spec": {"containers": [container]}}
    )
    assert answer.status == 422 and "must be greater than or equal to 0" in answer.message
