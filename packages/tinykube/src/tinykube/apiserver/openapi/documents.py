"""OpenAPI v3 (an index and one document for each group version) and v2 (one document of everything).

Clients read from them: which fields a kind has (`kubectl explain`, client-side validation), that the server checks
unknown fields itself (`fieldValidation`), that dry runs are supported, how lists merge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.discovery import VERSION, DiscoveryAnswer
from tinykube.apiserver.openapi.gnostic import encode_document
from tinykube.apiserver.openapi.models import Schema, closure, reference, schema_name

CustomSchema = Callable[[ResourceInfo], Schema | None]

_GVK: Final = "x-kubernetes-group-version-kind"
_INFO: Final = {"title": "tinykube", "version": VERSION["gitVersion"]}
_PROTOBUF_V2: Final = (
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
)
_OPERATIONS: Final = {"create": "post", "delete": "delete", "get": "get", "patch": "patch", "update": "put"}
_ACTIONS: Final = {"post": "post", "put": "put", "patch": "patch", "delete": "delete", "get": "get"}
_WRITE: Final = ("dryRun", "fieldManager", "fieldValidation")
_PARAMETERS: Final = {"post": _WRITE, "put": _WRITE, "patch": (*_WRITE, "force"), "delete": ("dryRun",), "get": ()}
_PATCH_TYPES: Final = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
# The keywords of v2 (JSON schema draft 4 with its own ideas) for a custom resource.
_V2_KEYWORDS: Final = frozenset(
    (
        *("type", "format", "title", "description", "properties", "items", "additionalProperties", "required", "enum"),
        *("default", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("multipleOf", "minItems", "maxItems", "minProperties", "maxProperties", "uniqueItems"),
    )
)


# The page /version: the only document that is about no resource.
_VERSION_V3: Final[Schema] = {
    "openapi": "3.0.0",
    "info": _INFO,
    "paths": {
        "/version/": {
            "get": {
                "operationId": "getCodeVersion",
                "responses": {
                    "200": {
                        "description": "OK",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/VersionInfo"}}},
                    }
                },
            }
        }
    },
    "components": {
        "schemas": {
            "VersionInfo": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in VERSION},
                "required": list(VERSION),
            }
        }
    },
}


class OpenAPI:
    """Answers for /openapi/...; documents are cached until `changes`, a count of changes of the served kinds, moves."""

    def __init__(
        self, resources: Callable[[], Iterable[ResourceInfo]], custom: CustomSchema, changes: Callable[[], int]
    ) -> None:
        self._resources = resources
        self._custom = custom
        self._changes = changes
        self._seen = -1
        self._kept: dict[str, DiscoveryAnswer] = {}

    def respond(self, path: str, accept: str) -> DiscoveryAnswer | None:
        """The document at a path, None where there is none."""
        if self._changes() != self._seen:
            self._kept.clear()
            self._seen = self._changes()
        parts = path.strip("/").split("/")
        if parts == ["openapi", "v2"]:
            if any(kind in accept for kind in _PROTOBUF_V2):
                # NB: the answer has the newer name whatever was asked for: Go reads no media type with an @.
                return self._keep("v2 protobuf", lambda: DiscoveryAnswer(encode_document(self._v2()), _PROTOBUF_V2[1]))
            return self._keep("v2", lambda: DiscoveryAnswer(msgspec.json.encode(self._v2())))
        if parts == ["openapi", "v3"]:
            return self._keep("v3", lambda: DiscoveryAnswer(msgspec.json.encode(self._index())))
        if parts[:2] != ["openapi", "v3"]:
            return None
        name = "/".join(parts[2:])
        if name == "version":
            return self._keep(name, lambda: DiscoveryAnswer(msgspec.json.encode(_VERSION_V3)))
        infos = self._by_version().get(name)
        return self._keep(name, lambda: DiscoveryAnswer(msgspec.json.encode(self._v3(infos)))) if infos else None

    def _keep(self, name: str, make: Callable[[], DiscoveryAnswer]) -> DiscoveryAnswer:
        answer = self._kept.get(name)
        if answer is None:
            answer = make()
            answer = self._kept[name] = answer._replace(etag=f'"{hashlib.sha256(answer.body).hexdigest().upper()}"')
        return answer

    def _by_version(self) -> dict[str, list[ResourceInfo]]:
        found: dict[str, list[ResourceInfo]] = {}
        for info in self._resources():
            name = f"apis/{info.group}/{info.version}" if info.group else f"api/{info.version}"
            found.setdefault(name, []).append(info)
        return found

    def _index(self) -> Schema:
        """The hash names what a document is made from, not its text, so that the index is cheap."""
        paths = {}
        for name, infos in sorted(self._by_version().items()):
            content = msgspec.json.encode([[info, self._custom(info)] for info in infos])
            digest = hashlib.sha256(content + VERSION["gitVersion"].encode()).hexdigest().upper()
            paths[name] = {"serverRelativeURL": f"/openapi/v3/{name}?hash={digest}"}
        digest = hashlib.sha256(msgspec.json.encode(_VERSION_V3)).hexdigest().upper()
        paths["version"] = {"serverRelativeURL": f"/openapi/v3/version?hash={digest}"}
        return {"paths": paths}

    # -- schemas and paths, shared by both ---------------------------------------------------------------------
    def _schemas(self, infos: Iterable[ResourceInfo]) -> dict[str, Schema]:
        roots: dict[tuple[str, str], Schema] = {}
        own: dict[str, Schema] = {}
        for info in infos:
            if info.model:
                roots[info.model, info.kind] = {_GVK: [_gvk(info)]}
            else:
                roots["meta_v1", "ObjectMeta"] = {}
                own[_name(info)] = _custom_schema(info, self._custom(info) or {"type": "object"})
        return {**closure(roots), **own}

    def _v3(self, infos: Iterable[ResourceInfo]) -> Schema:
        listed = list(infos)
        paths = {path: _operations_v3(info, verbs) for info in listed for path, verbs in _paths(info)}
        return {
            "openapi": "3.0.0",
            "info": _INFO,
            "paths": paths,
            "components": {"schemas": self._schemas(listed)},
        }

    def _v2(self) -> Schema:
        listed = list(self._resources())
        paths = {path: _operations_v2(info, verbs) for info in listed for path, verbs in _paths(info)}
        definitions = {name: _definition(schema) for name, schema in self._schemas(listed).items()}
        return {"swagger": "2.0", "info": _INFO, "paths": paths, "definitions": definitions}


def _gvk(info: ResourceInfo) -> Schema:
    return {"group": info.group, "kind": info.kind, "version": info.version}


def _name(info: ResourceInfo) -> str:
    if info.model:
        return schema_name(info.model, info.kind)
    return ".".join([*reversed(info.group.split(".")), info.version, info.kind])


def _custom_schema(info: ResourceInfo, schema: Schema) -> Schema:
    """A CRD's schema with what every object has."""
    text = {"type": "string"}
    metadata = reference(schema_name("meta_v1", "ObjectMeta"))
    common = {
        "apiVersion": {"description": "APIVersion defines the version of the schema of this object.", **text},
        "kind": {"description": "The kind of this object.", **text},
        "metadata": {"description": "Standard object's metadata.", "allOf": [metadata]},
    }
    published = _published(schema)
    return {**published, "properties": {**common, **(published.get("properties") or {}), **common}, _GVK: [_gvk(info)]}


def _published(schema: Schema) -> Schema:
    """A structural schema as it is published: what may be a number or a text says so in plain OpenAPI too."""
    made = dict(schema)
    if made.get("x-kubernetes-int-or-string") and "anyOf" not in made and "allOf" not in made:
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "properties" in made:
        made["properties"] = {name: _published(child) for name, child in made["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), Mapping):
            made[key] = _published(made[key])
    return made


def _paths(info: ResourceInfo) -> Iterable[tuple[str, tuple[str, ...]]]:
    """The paths of a resource with their HTTP methods."""
    root = f"/apis/{info.group}/{info.version}" if info.group else f"/api/{info.version}"
    base = f"{root}/namespaces/{{namespace}}/{info.plural}" if info.namespaced else f"{root}/{info.plural}"
    whole = tuple(method for verb, method in (("list", "get"), ("create", "post")) if verb in info.verbs)
    single = tuple(_OPERATIONS[verb] for verb in ("get", "update", "patch", "delete") if verb in info.verbs)
    yield base, whole
    if single:
        yield base + "/{name}", single
    for subresource in ("status", "scale"):
        if subresource in info.subresources:
            yield f"{base}/{{name}}/{subresource}", ("get", "put", "patch")
    if info.namespaced and "list" in info.verbs:
        yield f"{root}/{info.plural}", ("get",)


def _operations_v3(info: ResourceInfo, methods: Iterable[str]) -> Schema:
    content = {"application/json": {"schema": reference(_name(info))}}
    made: Schema = {}
    for method in methods:
        operation: Schema = {
            _GVK: _gvk(info),
            "x-kubernetes-action": _ACTIONS[method],
            "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _PARAMETERS[method]],
            "responses": {"200": {"description": "OK", "content": content}},
        }
        if method in ("post", "put"):
            operation["requestBody"] = {"required": True, "content": {"*/*": {"schema": reference(_name(info))}}}
        elif method == "patch":
            body = {"schema": {"type": "object"}}
            operation["requestBody"] = {"required": True, "content": dict.fromkeys(_PATCH_TYPES, body)}
        made[method] = operation
    return made


def _operations_v2(info: ResourceInfo, methods: Iterable[str]) -> Schema:
    return {
        method: {
            _GVK: _gvk(info),
            "consumes": list(_PATCH_TYPES) if method == "patch" else ["*/*"],
            "parameters": [{"name": name, "in": "query", "type": "string"} for name in _PARAMETERS[method]],
            "responses": {"200": {"description": "OK"}},
        }
        for method in methods
    }


def _definition(schema: Mapping[str, Any]) -> Schema:
    """A kind in the form of v2. NB: a kind that keeps unknown fields has no other keyword, or kubectl refuses them."""
    if _GVK in schema and schema.get("x-kubernetes-preserve-unknown-fields"):
        return {"type": "object", _GVK: schema[_GVK]}
    return _to_v2(schema)


def _to_v2(schema: Mapping[str, Any]) -> Schema:
    """The schema in the form of v2: references to definitions, no alternatives; the rest is left open."""
    merged = next((part for part in schema.get("allOf") or () if "$ref" in part), None)
    target = schema.get("$ref") or (merged or {}).get("$ref")
    if target:
        return {"$ref": target.replace("#/components/schemas/", "#/definitions/")} | _described(schema)
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        return {"type": "string", "format": "int-or-string"} | _described(schema)
    made = {key: value for key, value in schema.items() if key in _V2_KEYWORDS or key.startswith("x-kubernetes-")}
    made.pop("x-kubernetes-validations", None)
    if "properties" in made:
        made["properties"] = {name: _to_v2(child) for name, child in made["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), Mapping):
            made[key] = _to_v2(made[key])
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        # NB: a client of v2 would take `properties` for all there are.
        for key in ("type", "properties", "additionalProperties", "required"):
            made.pop(key, None)
    return made


def _described(schema: Mapping[str, Any]) -> Schema:
    return {"description": schema["description"]} if schema.get("description") else {}
