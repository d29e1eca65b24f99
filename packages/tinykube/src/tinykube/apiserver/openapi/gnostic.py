"""The protobuf form of an OpenAPI v2 document, which kubectl up to 1.23 asks for and will not do without.

Field numbers are those of `openapiv2/OpenAPIv2.proto` of google/gnostic; only the fields that our documents use are
written. The wire format is small enough (varints and length-prefixed bytes) to be written without a compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bytes(field: int, payload: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(payload)) + payload


def _text(field: int, text: str | None) -> bytes:
    return _bytes(field, text.encode()) if text else b""


def _texts(field: int, texts: Iterable[str]) -> bytes:
    return b"".join(_bytes(field, text.encode()) for text in texts)


def _any(value: Any) -> bytes:
    """gnostic's Any: the value as YAML, of which JSON is a part."""
    return _text(2, msgspec.json.encode(value).decode() + "\n")


def _named(name: str, value: bytes) -> bytes:
    return _text(1, name) + _bytes(2, value)


def _extensions(field: int, source: Mapping[str, Any]) -> bytes:
    found = (_named(key, _any(value)) for key, value in source.items() if key.startswith("x-"))
    return b"".join(_bytes(field, extension) for extension in found)


def _schema(schema: Mapping[str, Any]) -> bytes:
    out = [_text(1, schema.get("$ref")), _text(2, schema.get("format")), _text(4, schema.get("description"))]
    if "default" in schema:
        out.append(_bytes(5, _any(schema["default"])))
    out.append(_texts(19, schema.get("required", ())))
    out += [_bytes(20, _any(value)) for value in schema.get("enum") or ()]
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping):
        out.append(_bytes(21, _bytes(1, _schema(extra))))
    elif extra:
        out.append(_bytes(21, b"\x10\x01"))
    if schema.get("type"):
        out.append(_bytes(22, _text(1, schema["type"])))
    if "items" in schema:
        out.append(_bytes(23, _bytes(1, _schema(schema["items"]))))
    if schema.get("properties"):
        out.append(_bytes(25, _named_schemas(schema["properties"])))
    out.append(_extensions(31, schema))
    return b"".join(out)


def _named_schemas(schemas: Mapping[str, Mapping[str, Any]]) -> bytes:
    return b"".join(_bytes(1, _named(name, _schema(schema))) for name, schema in schemas.items())


def _query_parameter(parameter: Mapping[str, Any]) -> bytes:
    body = _text(2, "query") + _text(4, parameter["name"]) + _text(6, parameter["type"])
    return _bytes(1, _bytes(2, _bytes(3, body)))  # ParametersItem > Parameter > NonBodyParameter


_METHODS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}


def _path_item(item: Mapping[str, Any]) -> bytes:
    out = []
    for method, operation in item.items():
        responses = b"".join(
            _bytes(1, _named(code, _bytes(1, _text(1, response["description"]))))
            for code, response in operation["responses"].items()
        )
        body = (
            _texts(7, operation["consumes"])
            + b"".join(_bytes(8, _query_parameter(parameter)) for parameter in operation["parameters"])
            + _bytes(9, responses)
            + _extensions(13, operation)
        )
        out.append(_bytes(_METHODS[method], body))
    return b"".join(out)


def encode_document(document: Mapping[str, Any]) -> bytes:
    """An `openapi.v2.Document` of a document as `documents.py` makes it."""
    info = _text(1, document["info"]["title"]) + _text(2, document["info"]["version"])
    paths = b"".join(_bytes(2, _named(path, _path_item(item))) for path, item in document["paths"].items())
    return (
        _text(1, document["swagger"])
        + _bytes(2, info)
        + _bytes(8, paths)
        + _bytes(9, _named_schemas(document["definitions"]))
    )
