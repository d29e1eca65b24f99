"""The wire formats of AWS' requests and answers, as far as this cloud answers by itself. Pure.

EC2's protocol: a form whose names are paths (`LaunchTemplateConfigs.1.Overrides.2.InstanceType`), answered with XML.
Source: the protocols of botocore, `ec2` and `json`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

import msgspec

from kubekit.documents import MOST_DEPTH, DocumentError, decode_json

_CREDENTIAL: Final = re.compile(r"Credential=[^/]+/\d+/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request")
_NAMESPACE: Final = "http://ec2.amazonaws.com/doc/2016-11-15/"
REQUEST_ID: Final = "00000000-0000-4000-8000-000000000000"


class AwsRequest(msgspec.Struct, frozen=True):
    """One request: `parameters` are nested as in boto3, but with the names and the texts of the wire."""

    service: str
    action: str
    parameters: dict[str, Any]


class CloudRefusal(Exception):
    """An error that the cloud answers with. `code` is AWS' name."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def read_request(headers: Mapping[str, str], body: bytes) -> AwsRequest | None:
    """Return a signed request; None for one that is not AWS'. `headers` have lower-case names."""
    found = _CREDENTIAL.search(headers.get("authorization", ""))
    if found is None:
        return None
    service = found[2]
    if target := headers.get("x-amz-target", ""):
        try:
            parameters = decode_json(body or b"{}")
        except DocumentError:
            parameters = {}
        return AwsRequest(service, target.rpartition(".")[2], parameters if isinstance(parameters, dict) else {})
    form = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
    return AwsRequest(service, form.get("Action", ""), nested(form))


def nested(form: Mapping[str, str]) -> dict[str, Any]:
    """Return a form as nested mappings; numbered fields become lists in the order of their numbers."""
    tree: dict[str, Any] = {}
    for name, value in form.items():
        if name.count(".") > MOST_DEPTH:
            continue  # no API has such a field
        *parents, last = name.split(".")
        place = tree
        for parent in parents:
            below = place.setdefault(parent, {})
            place = below if isinstance(below, dict) else place
        place[last] = value
    return {name: _lists(value) for name, value in tree.items()}


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value and all(name.isdecimal() for name in value):
        return [_lists(value[name]) for name in sorted(value, key=int)]
    return {name: _lists(below) for name, below in value.items()}


def xml_answer(action: str, content: Mapping[str, Any]) -> bytes:
    """Return an answer in EC2's protocol: lists become `item` elements, None is left out."""
    body = _elements({"requestId": REQUEST_ID} | dict(content))
    return f'<?xml version="1.0"?><{action}Response xmlns="{_NAMESPACE}">{body}</{action}Response>'.encode()


def xml_error(refusal: CloudRefusal) -> bytes:
    """Return an error in EC2's protocol."""
    error = _elements({"Errors": {"Error": {"Code": refusal.code, "Message": refusal.message}}})
    return f'<?xml version="1.0"?><Response>{error}<RequestID>{REQUEST_ID}</RequestID></Response>'.encode()


def json_error(refusal: CloudRefusal) -> bytes:
    """Return an error in the JSON protocol of SSM, SQS and the price list."""
    return msgspec.json.encode({"__type": refusal.code, "message": refusal.message})


def _elements(content: Mapping[str, Any]) -> str:
    return "".join(f"<{name}>{_text(value)}</{name}>" for name, value in content.items() if value is not None)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return _elements(value)
    if isinstance(value, (list, tuple)):
        return "".join(f"<item>{_text(one)}</item>" for one in value)
    return escape(str(value))
