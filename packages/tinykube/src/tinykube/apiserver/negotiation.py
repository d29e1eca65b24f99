"""Bodies on their way in and out: JSON, YAML, tables, metadata only; what is not spoken is refused.

`kubectl` and other Go clients send protobuf for built-in kinds in some commands; it is read, never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import yaml

from kubekit.documents import DocumentError, decode_json
from kubekit.yaml_documents import load_yaml
from tinykube.apiserver import protobuf
from tinykube.apiserver.asgi import MAX_BODY_BYTES, HttpRequest, HttpResponse
from tinykube.apiserver.failure import ApiFailure, bad_request
from tinykube.apiserver.kinds import Kind
from tinykube.apiserver.store import StoreEntry
from tinykube.apiserver.strictness import repeated_in_json, repeated_in_yaml
from tinykube.apiserver.tables import partial_metadata_version, table_version, to_table

Object = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

_TRUNCATED: Final = "Input data was truncated"  # as msgspec says it

PATCH_TYPES: Final = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
    "application/apply-patch+json": "apply",
}


def media_type(request: HttpRequest) -> str:
    return request.header(b"content-type").partition(";")[0].strip().lower()


def parse(request: HttpRequest, data: bytes) -> Any:
    """The body as plain data. Raises ApiFailure 400 for what cannot be read, 415 for what is not spoken."""
    media = media_type(request)
    if media in ("", "application/json", "*/*") or media.endswith("+json"):
        try:
            value = decode_json(data, limit=MAX_BODY_BYTES)
            request.repeated = repeated_in_json(data, value)
            return value
        except DocumentError as error:
            what = "unexpected end of JSON input" if _TRUNCATED in str(error) else str(error)
            prefix = (
                "error decoding patch: " if media in PATCH_TYPES else "couldn't get version/kind; json parse error: "
            )
            raise bad_request(prefix + what) from error
    if media in ("application/yaml", "application/apply-patch+yaml", "text/yaml"):
        # JSON is YAML, and two orders of magnitude quicker to read as what it is.
        if data[:1] == b"{":
            with suppress(DocumentError):
                value = decode_json(data, limit=MAX_BODY_BYTES)
                if repeated_in_json(data, value) is not None:
                    request.repeated = repeated_in_yaml(data)
                return value
        try:
            value = load_yaml(data, limit=MAX_BODY_BYTES, plain=True)
            request.repeated = repeated_in_yaml(data)
            return value
        except DocumentError as error:
            raise bad_request(f"error converting YAML to JSON: {error}") from error
    if media == "application/vnd.kubernetes.protobuf":
        return protobuf.decode(data)
    raise ApiFailure(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: "
        "application/json, application/yaml, application/vnd.kubernetes.protobuf",
    )


def parse_object(request: HttpRequest, data: bytes) -> Object:
    value = parse(request, data)
    if not isinstance(value, dict):
        raise bad_request("the body of the request is not an object")
    return value


def not_acceptable() -> ApiFailure:
    """406 for a representation that there is not."""
    text = "only the following media types are accepted: application/json, application/yaml"
    return ApiFailure(406, "NotAcceptable", text)


class View:
    """The representation that a client wants: whole objects, a table, or metadata only."""

    def __init__(self, request: HttpRequest) -> None:
        accept = request.header(b"accept")
        self.yaml = accept.startswith("application/yaml")
        self.table: str | None = None
        self.metadata: str | None = None
        self.include = "Metadata"
        if ";" in accept:
            self.table = table_version(accept)
            self.metadata = partial_metadata_version(accept) or partial_metadata_version(
                accept, kind="PartialObjectMetadataList"
            )
            self.include = request.query.get("includeObject") or "Metadata"
            if self.include not in ("Metadata", "Object", "None"):
                why = (
                    f"includeObject: Invalid value: \"{self.include}\": must be 'Metadata', 'Object', 'None', or empty"
                )
                raise bad_request(f"Unable to convert to Table as requested: {why}")
        elif accept and not self.yaml and "json" not in accept and "*" not in accept:
            raise not_acceptable()

    @property
    def plain(self) -> bool:
        return self.table is None and self.metadata is None

    def respond(self, body: bytes, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> HttpResponse:
        if self.yaml:
            text = yaml.safe_dump(_decode(body), sort_keys=False).encode()
            return HttpResponse(status, text, "application/yaml", headers)
        return HttpResponse(status, body, "application/json", headers)

    def one(self, kind: Kind, entry: StoreEntry) -> bytes:
        """One object as an answer."""
        if self.plain:
            return entry.raw
        return self.item(kind, entry, entry.obj["metadata"].get("resourceVersion", ""), headers=True)

    def item(self, kind: Kind, entry: StoreEntry, version: str, *, headers: bool) -> bytes:
        """One object as an answer or as the object of a watch event."""
        if self.metadata is not None:
            return _encode(_metadata_of(entry.obj, self.metadata))
        metadata = {"resourceVersion": version} if version else {}
        return _encode(self._table(kind, (entry.obj,), metadata, headers=headers))

    def many(self, kind: Kind, entries: Sequence[StoreEntry], metadata: Object) -> bytes:
        """A list as an answer; `metadata` is the list's own."""
        if self.table is not None:
            return _encode(self._table(kind, [entry.obj for entry in entries], metadata))
        if self.metadata is not None:
            version = self.metadata
            items = b",".join(_encode(_metadata_of(entry.obj, version)) for entry in entries)
            name, api_version = "PartialObjectMetadataList", f"meta.k8s.io/{version}"
        else:
            if not kind.info.model:
                metadata = {"continue": "", **metadata}  # as Go writes lists of no type of its own
            items = b",".join([entry.raw for entry in entries] if not kind.info.model else _bare(kind, entries))
            name, api_version = kind.info.list_kind, kind.info.api_version
        return b'{"kind":"%b","apiVersion":"%b","metadata":%b,"items":[%b]}' % (
            name.encode(),
            api_version.encode(),
            _encode(metadata),
            items,
        )

    def _table(self, kind: Kind, objects: Sequence[Object], metadata: Object, *, headers: bool = True) -> Object:
        return to_table(
            kind.printer,
            objects,
            now=datetime.now(UTC),
            version=self.table or "v1",
            include_object=self.include,
            list_metadata=metadata,
            headers=headers,
        )


def _bare(kind: Kind, entries: Sequence[StoreEntry]) -> list[bytes]:
    """Objects without apiVersion and kind: lists of built-in kinds say them once."""
    api_version, name = _encode(kind.info.api_version), _encode(kind.info.kind)
    heads = (b'{"apiVersion":%b,"kind":%b,' % (api_version, name), b'{"kind":%b,"apiVersion":%b,' % (name, api_version))
    items = []
    for entry in entries:
        raw = entry.raw
        if raw.startswith(heads):
            items.append(b"{" + raw[len(heads[0]) :])
        else:
            items.append(_encode({k: v for k, v in entry.obj.items() if k not in ("apiVersion", "kind")}))
    return items


def _metadata_of(obj: Object, version: str) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": obj["metadata"]}


def warning_headers(warnings: Sequence[str]) -> tuple[tuple[bytes, bytes], ...]:
    """`Warning: 299` headers, as clients print them."""
    shown = (text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") for text in warnings)
    return tuple((b"warning", f'299 - "{text}"'.encode()) for text in shown)
