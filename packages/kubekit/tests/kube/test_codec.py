"""Answers of the API server into Structs; what tenants store in one object hides no other."""

from __future__ import annotations

import json

import pytest

from kubekit.api.core import Pod
from kubekit.kube.codec import decode_any, decode_list, decode_object, decoder
from kubekit.kube.errors import ServerError
from kubekit.kube.watch import decode_event

# A tenant writes any depth into managedFields.
DEEP = '{"metadata":{"name":"deep","managedFields":[{"fieldsV1":' + '{"f:a":' * 5000 + "{}" + "}" * 5000 + "}]}}"


def test_an_object_that_is_nested_deep_hides_nothing_else_of_its_list() -> None:
    page = decode_list(Pod, f'{{"metadata":{{}},"items":[{DEEP},{{"metadata":{{"name":"good"}}}}]}}'.encode(), None)
    assert [pod.metadata.name for pod in page.items] == ["deep", "good"]


def test_an_object_that_is_nested_deep_ends_no_watch() -> None:
    line = f'{{"type":"ADDED","object":{DEEP}}}'.encode()
    event = decode_event(decoder(Pod), line, where="/api/v1/pods", bad=None)
    assert event.object.metadata.name == "deep"


def test_an_object_that_is_nested_deep_is_read_alone() -> None:
    assert decode_object(Pod, DEEP.encode(), "deep").metadata.name == "deep"
    assert decode_any(DEEP.encode())["metadata"]["name"] == "deep"


@pytest.mark.parametrize("body", [b'{"metadata":{"name":"\xff"}}', b"<html>", b""])
def test_an_answer_that_is_no_json_is_a_server_error(body: bytes) -> None:
    with pytest.raises(ServerError):
        decode_any(body)
    with pytest.raises(ServerError):
        decode_object(Pod, body, "a")
    with pytest.raises(ServerError):
        decode_list(Pod, b'{"items":[' + body + b"]", None)
    with pytest.raises(ServerError):
        decode_event(decoder(Pod), b'{"type":"ADDED","object":' + body, where="", bad=None)


def test_ordinary_answers_are_as_they_were() -> None:
    assert decode_any(json.dumps({"a": [1, None]}).encode()) == {"a": [1, None]}
