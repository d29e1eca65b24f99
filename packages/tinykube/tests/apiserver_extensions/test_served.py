"""Descriptions of the server: discovery, OpenAPI, CRDs that are created and deleted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tinykube.apiserver import ApiFailure, discovery
from tinykube.apiserver.asgi import HttpRequest
from tinykube.apiserver.builtin import RESOURCES

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList,application/json"
PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"


def crd(version: str = "v1", **spec: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "kind": "Thing", "shortNames": ["th"]}
    body = {"group": "example.com", "scope": "Cluster", "names": names, "versions": [served], **spec}
    return {"metadata": {"name": "things.example.com"}, "spec": body}


async def page(cluster: Any, path: str, accept: str = "application/json", **headers: str) -> Any:
    raw = [(b"accept", accept.encode()), (b"host", b"localhost:1")]
    raw += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "headers": raw, "query_string": b""}
    return await cluster.extensions.page(HttpRequest(scope, None, None))  # type: ignore[arg-type]  # neither is used


def served(path: str, accept: str = "application/json") -> Any:
    answer = discovery.respond(path, accept, RESOURCES, address="localhost:1")
    return None if answer is None else json.loads(answer.body)


async def test_answers_of_discovery_are_not_remembered_for_every_text_of_a_client(cluster: Any) -> None:
    for number in range(400):
        assert (await page(cluster, "/apis", f"application/json;q=0.{number}")).status == 200
        assert await page(cluster, f"/apis/none-{number}") is None
    assert len(cluster.extensions._pages) <= 256


def test_discovery_in_both_forms_says_the_same():
    plain = {
        (group["name"], version["version"], resource["name"], resource["kind"])
        for group in served("/apis")["groups"]
        for version in group["versions"]
        for resource in served(f"/apis/{version['groupVersion']}")["resources"]
        if "/" not in resource["name"]
    }
    for wanted in ("v2", "v2beta1"):
        whole = served("/apis", AGGREGATED.format(wanted))
        assert whole["apiVersion"] == f"apidiscovery.k8s.io/{wanted}"
        assert plain == {
            (group["metadata"]["name"], version["version"], resource["resource"], resource["responseKind"]["kind"])
            for group in whole["items"]
            for version in group["versions"]
            for resource in version["resources"]
        }


def test_subresources_say_their_own_kinds():
    pods = {r["name"]: r for r in served("/api/v1")["resources"]}
    assert pods["pods/eviction"]["kind"] == "Eviction" and pods["pods/eviction"]["group"] == "policy"
    assert pods["pods"]["shortNames"] == ["po"] and pods["pods"]["categories"] == ["all"]
    deployments = {r["name"]: r for r in served("/apis/apps/v1")["resources"]}
    assert deployments["deployments/scale"]["kind"] == "Scale"
    assert served("/apis/nosuch.io") is None and served("/apis/apps/v9") is None


@pytest.mark.parametrize(
    ("versions", "preferred"),
    [(["v1beta1", "v1"], "v1"), (["v2alpha1", "v1beta2", "v1beta1"], "v1beta2"), (["v1", "v2"], "v2")],
)
def test_versions_are_in_kubernetes_order(versions: list[str], preferred: str):
    assert sorted(versions, key=discovery.version_priority)[0] == preferred


async def test_a_crd_is_served_at_once_and_gone_at_once(cluster):
    made = await cluster.create("customresourcedefinitions", crd())
    assert {c["type"]: c["status"] for c in made["status"]["conditions"]}["Established"] == "True"
    listed = json.loads((await page(cluster, "/apis/example.com/v1")).body)
    assert listed["resources"][0]["shortNames"] == ["th"]
    await cluster.create("things.example.com", {"metadata": {"name": "t"}, "spec": {"a": "x"}})
    document = json.loads((await page(cluster, "/openapi/v3/apis/example.com/v1")).body)
    assert "a" in document["components"]["schemas"]["com.example.v1.Thing"]["properties"]["spec"]["properties"]
    gone: list[str] = []
    cluster.registry.subscribe("things.example.com", lambda event, obj, old: gone.append(event))
    await cluster.registry.delete("customresourcedefinitions", None, "things.example.com")
    assert gone == ["DELETED"]
    assert await page(cluster, "/apis/example.com/v1") is None
    await cluster.create("customresourcedefinitions", crd())
    assert cluster.registry.list("things.example.com") == []


async def test_a_crd_changes_its_schema_and_versions_without_losing_objects(cluster):
    await cluster.create("customresourcedefinitions", crd())
    await cluster.create("things.example.com", {"metadata": {"name": "t"}, "spec": {"a": "x"}})
    versions = crd()["spec"]["versions"]
    second = {**versions[0], "name": "v2", "storage": False}
    change = {"spec": {"versions": [*versions, second]}}
    await cluster.registry.patch("customresourcedefinitions", None, "things.example.com", change, "merge")
    info = cluster.registry.kinds.served("example.com", "v2", "things").info
    assert cluster.registry.get(info, None, "t")["apiVersion"] == "example.com/v2"
    await cluster.registry.patch(info, None, "t", {"spec": {"a": "y"}}, "merge")
    stored = cluster.registry.get("things.example.com", None, "t")
    assert (stored["apiVersion"], stored["spec"]["a"]) == ("example.com/v1", "y")


async def test_names_that_are_taken_are_not_served(cluster):
    await cluster.create("customresourcedefinitions", crd())
    other = crd(names={"plural": "others", "kind": "Other", "shortNames": ["th"]})
    other["metadata"]["name"] = "others.example.com"
    made = await cluster.create("customresourcedefinitions", other)
    assert {c["type"]: c["status"] for c in made["status"]["conditions"]}["NamesAccepted"] == "False"
    assert cluster.registry.kinds.served("example.com", "v1", "others") is None


async def test_a_wrong_crd_is_refused(cluster):
    with pytest.raises(ApiFailure, match=r"spec\.scope: Required value"):
        await cluster.create("customresourcedefinitions", crd(scope=""))


async def test_openapi_has_every_kind_and_changes_its_hash_with_crds(cluster):
    index = json.loads((await page(cluster, "/openapi/v3")).body)["paths"]
    for name in ("api/v1", "apis/apps/v1"):
        document = json.loads((await page(cluster, f"/openapi/v3/{name}")).body)
        schemas = document["components"]["schemas"]
        for path in document["paths"].values():
            for operation in path.values():
                target = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
                assert target.rpartition("/")[2] in schemas
        references = set(json.dumps(schemas).split('"#/components/schemas/')[1:])
        assert {text.partition('"')[0] for text in references} <= schemas.keys()
    pod = json.loads((await page(cluster, "/openapi/v3/api/v1")).body)["components"]["schemas"][
        "io.k8s.api.core.v1.Pod"
    ]
    assert pod["x-kubernetes-group-version-kind"] == [{"group": "", "kind": "Pod", "version": "v1"}]
    await cluster.create("customresourcedefinitions", crd())
    after = json.loads((await page(cluster, "/openapi/v3")).body)["paths"]
    assert after.keys() - index.keys() == {"apis/example.com/v1"}
    assert after["api/v1"] == index["api/v1"]


async def test_openapi_v2_in_json_and_protobuf(cluster):
    await cluster.create("customresourcedefinitions", crd())
    document = json.loads((await page(cluster, "/openapi/v2")).body)
    containers = document["definitions"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    assert "com.example.v1.Thing" in document["definitions"]
    binary = await page(cluster, "/openapi/v2", PROTOBUF)
    assert binary.content_type.endswith("+protobuf") and "@" not in binary.content_type
    assert binary.body.startswith(b"\x0a\x032.0") and b"com.example.v1.Thing" in binary.body


async def test_pages_know_their_etag(cluster):
    first = await page(cluster, "/apis", AGGREGATED.format("v2"))
    etag = dict(first.headers)[b"etag"].decode()
    assert (await page(cluster, "/apis", AGGREGATED.format("v2"), if_none_match=etag)).status == 304
    assert (await page(cluster, "/healthz")).body == b"ok"


async def test_an_object_applied_as_empty_gives_up_what_it_had(cluster):
    await cluster.create("customresourcedefinitions", crd())

    async def apply(manager: str, spec: dict[str, Any], force: bool = False) -> Any:
        obj = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": spec}
        made = await cluster.registry.patch("things.example.com", None, "t", obj, "apply", manager=manager, force=force)
        return made.get("spec")

    await apply("one", {"a": "x"})
    assert await apply("one", {}) == {}
    await apply("one", {"a": "x"})
    await apply("two", {"a": "x"})
    assert await apply("one", {}) == {"a": "x"}


async def test_openapi_has_the_fields_that_are_served(cluster):
    document = json.loads((await page(cluster, "/openapi/v3/apis/apiextensions.k8s.io/v1")).body)
    place = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
    names = document["components"]["schemas"][place]["properties"]
    assert {"x-kubernetes-validations", "x-kubernetes-preserve-unknown-fields", "$ref", "not"} <= names.keys()
    document = json.loads((await page(cluster, "/openapi/v3/api/v1")).body)
    pod_spec = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]
    assert "evictionResponders" not in pod_spec
