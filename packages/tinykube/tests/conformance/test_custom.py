"""Custom resources: the promises of a definition, and fields that are stored, defaulted, refused and printed."""

from __future__ import annotations

import pytest

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
SPEC = {
    "type": "object",
    "required": ["mode"],
    "x-kubernetes-validations": [
        {"rule": "self.count <= 5", "message": "at most five"},
        {
            "rule": "!has(oldSelf.mode) || self.mode == oldSelf.mode",
            "message": "mode is fixed",
            "fieldPath": ".mode",
            "reason": "FieldValueForbidden",
        },
        {"rule": "self.count > 0", "messageExpression": "'too ' + 'few'"},
    ],
    "properties": {
        "mode": {"type": "string", "enum": ["slow", "fast"]},
        "count": {"type": "integer", "default": 1, "maximum": 100, "format": "int32"},
        "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5, "minLength": 2},
        "ratio": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "multipleOf": 0.5},
        "size": {"x-kubernetes-int-or-string": True},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "nested": {"type": "object", "default": {}, "properties": {"deep": {"type": "string", "default": "yes"}}},
        "when": {"type": "string", "format": "date-time"},
        "maybe": {"type": "string", "nullable": True},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}, "maxItems": 3},
        "ports": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "port": {"type": "integer", "minimum": 1}},
            },
        },
        "labels": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 2},
        "either": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
    },
}


def definition(here, **version):
    group = f"g{here.suffix}.conformance.gpuplane.dev"
    here.normal.names[group] = "GROUP"
    schema = {
        "type": "object",
        "properties": {
            "spec": SPEC,
            "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}},
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"gadgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "kind": "Gadget", "shortNames": ["gad"], "categories": ["all"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.count", "statusReplicasPath": ".status.replicas"},
                    },
                    "additionalPrinterColumns": [
                        {"name": "Mode", "type": "string", "jsonPath": ".spec.mode", "description": "How fast."},
                        {"name": "Count", "type": "integer", "jsonPath": ".spec.count", "priority": 1},
                        {"name": "Tags", "type": "string", "jsonPath": ".spec.tags"},
                        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                    ],
                    "schema": {"openAPIV3Schema": schema},
                    **version,
                }
            ],
        },
    }


@pytest.fixture
def served(here):
    """The path of its objects."""
    made = here.made(CRDS, definition(here))
    established(here, made["metadata"]["name"])
    path = here.at(f"{made['spec']['group']}/v1", "gadgets")
    until_served(here, path)
    return path


def established(here, name):
    return here.until(
        f"{CRDS}/{name}",
        lambda found: any(
            c["type"] == "Established" and c["status"] == "True"
            for c in (found.get("status") or {}).get("conditions") or ()
        ),
    )


def until_served(here, path):
    for _ in range(2000):  # Established comes a moment before the path is there
        if here.get(path).status == 200:
            return
    raise AssertionError(f"{path} is never served")


def gadget(name="g", **spec):
    return {"kind": "Gadget", "metadata": {"name": name}, "spec": {"mode": "slow", **spec}}


def versioned(path, obj):
    return {"apiVersion": "/".join(path.split("/")[2:4]), **obj}


def test_a_definition(here):
    made = here.create(CRDS, definition(here))
    here.see("create", {**made.body, "status": sorted(made.body.get("status") or ())}["spec"])
    found = established(here, made["metadata"]["name"])
    conditions = [{**c, "lastTransitionTime": "T"} for c in found["status"]["conditions"]]
    here.see("status", {**found["status"], "conditions": sorted(conditions, key=lambda c: c["type"])})
    path = here.at(f"{made['spec']['group']}/v1", "gadgets")
    until_served(here, path)
    group = f"/apis/{made['spec']['group']}"
    here.see("group", here.get(group))
    kept = [{k: v for k, v in r.items() if k != "storageVersionHash"} for r in here.get(f"{group}/v1")["resources"]]
    here.see("resources", kept)
    here.see("the same again", here.create(CRDS, definition(here)).status)
    here.see("another scope", here.patch(f"{CRDS}/{made['metadata']['name']}", {"spec": {"scope": "Cluster"}}))
    for _ in range(2000):
        schema = here.get(f"/openapi/v3{group}/v1")
        if schema.status == 200:
            break
    schemas = schema["components"]["schemas"]
    (name,) = [name for name in schemas if name.endswith(".Gadget")]
    here.see("schema of spec", schemas[name]["properties"]["spec"])
    here.see("schema beside it", {k: v for k, v in schemas[name].items() if k != "properties"})
    here.see("its paths", sorted(schema["paths"]))


WRONG = (
    ("name", {"metadata": {"name": "other.example.com"}}),
    ("no schema", {"schema": None}),
    ("not structural", {"schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"properties": {}}}}}}),
    (
        "a default that is wrong",
        {"schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "string", "default": 1}}}}},
    ),
    (
        "a rule that is none",
        {"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-validations": [{"rule": "self.nosuch > 1"}]}}},
    ),
    (
        "a rule that does not parse",
        {"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-validations": [{"rule": "self >"}]}}},
    ),
    ("a column", {"additionalPrinterColumns": [{"name": "X", "type": "nonsense", "jsonPath": "spec.x"}]}),
    ("an unknown type", {"schema": {"openAPIV3Schema": {"type": "thing"}}}),
    ("two stored", {}),
    ("none stored", {"storage": False}),
    ("scale", {"subresources": {"scale": {"specReplicasPath": "spec.x", "statusReplicasPath": ".status.x"}}}),
    (
        "status of its own",
        {
            "schema": {
                "openAPIV3Schema": {
                    "type": "object",
                    "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}},
                }
            }
        },
    ),
)


def test_wrong_definitions(here):
    for what, change in WRONG:
        metadata = change.get("metadata")
        wrong = definition(here, **{k: v for k, v in change.items() if k != "metadata"})
        if metadata:
            wrong["metadata"] = metadata
        if what == "two stored":
            wrong["spec"]["versions"].append({**wrong["spec"]["versions"][0], "name": "v2"})
        here.see(what, here.create(CRDS, wrong, dryRun="All"))


def test_objects(here, served):
    here.see("create", here.create(served, versioned(served, gadget())), managed=True)
    here.see(
        "defaults and pruning",
        here.create(
            served,
            versioned(
                served,
                gadget(
                    "p",
                    unknown="x",
                    free={"any": {"thing": [1]}},
                    nested={"other": 1},
                    size="10%",
                    maybe=None,
                    count=None,
                ),
            ),
        ),
    )
    here.see(
        "strict",
        here.create(served, versioned(served, gadget("s", unknown="x", nested={"other": 1})), fieldValidation="Strict"),
    )
    here.see("warned", here.create(served, versioned(served, gadget("w", unknown="x")), fieldValidation="Warn"))
    here.see("no kind", here.create(served, gadget("k")))
    here.see("another kind", here.create(served, {**versioned(served, gadget("k")), "kind": "Other"}))
    here.see("merge", here.patch(f"{served}/g", {"spec": {"count": 2, "nested": None}}))
    here.see("json", here.patch(f"{served}/g", [{"op": "replace", "path": "/spec/count", "value": 3}], "json")["spec"])
    here.see("strategic", here.patch(f"{served}/g", {"spec": {"count": 4}}, "strategic"))
    here.see("replace without a version", here.replace(f"{served}/g", versioned(served, gadget())))
    here.see("no such", here.get(f"{served}/nosuch"))
    here.see("again", here.create(served, versioned(served, gadget())))
    here.see("table", here.get(served, accept=TABLE)["columnDefinitions"])
    rows = here.get(f"{served}/p", accept=TABLE)["rows"]
    here.see("row", rows[0]["cells"][:-1])
    here.see("list", {**here.get(served).body, "items": len(here.get(served)["items"])})
    here.see("delete", here.delete(f"{served}/g"))


REFUSED = (
    ("type", {"count": "x"}),
    ("enum", {"mode": "quick"}),
    ("maximum", {"count": 101}),
    ("pattern", {"name": "ABC"}),
    ("long", {"name": "abcdef"}),
    ("short", {"name": "a"}),
    ("number", {"ratio": 0}),
    ("multiple", {"ratio": 0.3}),
    ("int or string", {"size": True}),
    ("null", {"name": None}),
    ("date", {"when": "yesterday"}),
    ("set", {"tags": ["a", "a"]}),
    ("items", {"tags": list("abcd")}),
    ("map list", {"ports": [{"name": "a"}, {"name": "a"}]}),
    ("required", {"ports": [{"port": 1}]}),
    ("minimum", {"ports": [{"name": "a", "port": 0}]}),
    ("properties", {"labels": {"a": "1", "b": "2", "c": "3"}}),
    ("value", {"labels": {"a": 1}}),
    ("one of", {"either": {"a": "1", "b": "2"}}),
    ("none of", {"either": {}}),
    ("rule", {"count": 6}),
    ("rule's own message", {"count": 0}),
    ("several", {"count": "x", "mode": "quick", "name": "A"}),
    ("float", {"count": 1.5}),
    ("array", {"tags": "a"}),
    ("object", {"nested": []}),
    ("big", {"count": 2**31}),
    ("absent", {"mode": None}),
)


def test_refused_objects(here, served):
    for what, spec in REFUSED:
        here.see(what, here.create(served, versioned(served, gadget(**spec)), dryRun="All"))


def test_rules_on_updates(here, served):
    here.made(served, versioned(served, gadget()))
    here.see("a transition", here.patch(f"{served}/g", {"spec": {"mode": "fast"}}))
    here.see("a value", here.patch(f"{served}/g", {"spec": {"count": 9}}))
    here.see("a name", here.patch(f"{served}/g", {"spec": {"name": "X"}}))


def test_subresources(here, served):
    made = here.made(served, versioned(served, {**gadget(), "status": {"phase": "Up"}}))
    here.see("a create ignores status", made.get("status"))
    here.see("a patch too", here.patch(f"{served}/g", {"status": {"phase": "Up"}, "spec": {"count": 2}}))
    here.see(
        "status alone",
        here.patch(
            f"{served}/g/status", {"status": {"phase": "Up", "replicas": 2, "unknown": 1}, "spec": {"count": 5}}
        ),
    )
    here.see("a wrong one", here.patch(f"{served}/g/status", {"status": {"phase": 1}}))
    here.see("scale", here.get(f"{served}/g/scale"))
    here.see("scaled", here.patch(f"{served}/g/scale", {"spec": {"replicas": 3}}))
    here.see("scaled too far", here.patch(f"{served}/g/scale", {"spec": {"replicas": 6}}))
    here.see("generation", here.get(f"{served}/g")["metadata"]["generation"])


def test_apply(here, served):
    def put(manager, sub="", **spec):
        obj = (
            versioned(served, gadget(**spec))
            if not sub
            else versioned(served, {"kind": "Gadget", "metadata": {"name": "g"}, "status": spec})
        )
        return here.patch(f"{served}/g{sub}", obj, "apply", fieldManager=manager)

    def see(step, answer):
        here.see(
            step,
            {"spec": answer["spec"], "managers": answer["metadata"]["managedFields"]}
            if answer.status < 300
            else answer,
            managed=True,
        )

    see("one", put("one", tags=["a"], ports=[{"name": "x", "port": 1}], labels={"a": "1"}, free={"k": [1]}))
    see("two", put("two", tags=["b"], ports=[{"name": "y", "port": 2}], labels={"b": "2"}))
    see("conflict", put("two", ports=[{"name": "x", "port": 9}]))
    see("one leaves", put("one", tags=["c"]))
    see("status", put("three", "/status", phase="Up"))
    see("unknown", put("four", unknown="x"))


def test_a_definition_goes_with_its_objects(here):
    made = here.made(CRDS, definition(here))
    name = made["metadata"]["name"]
    established(here, name)
    path = here.at(f"{made['spec']['group']}/v1", "gadgets")
    until_served(here, path)
    stuck = versioned(path, gadget("stuck"))
    stuck["metadata"]["finalizers"] = ["x.example.com/y"]
    here.made(path, stuck)
    here.see("delete", here.delete(f"{CRDS}/{name}").status)

    def terminating(found):
        return [c for c in found["status"]["conditions"] if c["type"] == "Terminating"] if found else []

    found = here.until(
        f"{CRDS}/{name}",
        lambda found: not found or [c["reason"] for c in terminating(found)] == ["InstanceDeletionInProgress"],
    )
    here.see("finalizers", found.get("metadata", {}).get("finalizers"))
    here.see("terminating", terminating(found))
    # A real server says so in the definition's conditions before it turns to the objects.
    for _ in range(2000):
        marked = here.get(f"{path}/stuck")
        if marked.status != 200 or "deletionTimestamp" in marked["metadata"]:
            break
    here.see("its object", marked.status == 200 and "deletionTimestamp" in marked["metadata"])
    here.see("no more", here.create(path, versioned(path, gadget("more"))))
    here.patch(f"{path}/stuck", {"metadata": {"finalizers": None}})
    here.until(f"{CRDS}/{name}", lambda found: not found)
    for _ in range(2000):
        if (answer := here.get(path)).status == 404:
            break
    here.see("not served", answer)


def test_what_is_forgotten(here, served):
    """At a version before the kind existed, a client that watches, or asks for the next page, starts again."""
    here.made(served, versioned(served, gadget()))
    with here.watch(served, resourceVersion="1") as events:
        first = next(events)
    first["object"]["message"] = first["object"]["message"].partition(" (")[0]
    here.see("a watch", first)
