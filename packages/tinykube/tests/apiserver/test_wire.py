"""Protobuf bodies of Go clients, and the port: TLS, a port in use, stopping."""

from __future__ import annotations

import asyncio
import json
import ssl
import struct

import pytest

from kubekit.errors import Terminal
from tinykube.apiserver import User, protobuf
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.http import bind
from tinykube.apiserver.server import ApiServer

PROTOBUF = {"content-type": "application/vnd.kubernetes.protobuf"}


# -- a protobuf writer, small enough to be trusted -----------------------------------------------------------------
def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number, value):
    if isinstance(value, bool | int):
        return varint(number << 3) + varint(int(value))
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def message(*fields):
    return b"".join(field(number, value) for number, value in fields)


def body(api_version, kind, raw):
    types = message((1, api_version), (2, kind))
    return b"k8s\x00" + message((1, types), (2, raw), (3, ""), (4, ""))


def test_an_object_of_many_types_is_read():
    metadata = message((1, "web"), (3, ""), (8, b""), (11, message((1, "app"), (2, "web"))))
    port = message((1, ""), (2, 0), (3, 80), (4, "TCP"))
    limits = message((1, message((1, "cpu"), (2, message((1, "500m"))))))
    get = message((1, "/ok"), (2, message((1, 1), (3, "http"))))
    probe = message((1, message((2, get))), (2, 5))
    container = message((1, "c"), (2, "nginx"), (6, port), (8, limits), (10, probe))
    volume = message((1, "v"), (2, message((2, b""))))
    pod_spec = message((1, volume), (2, container), (3, "Always"), (4, 0), (11, False))
    template = message((1, message((11, message((1, "app"), (2, "web"))))), (2, pod_spec))
    selector = message((1, message((1, "app"), (2, "web"))))
    strategy = message((1, "RollingUpdate"), (2, message((1, message((1, 0), (2, 1), (3, ""))))))
    spec = message((1, 0), (2, selector), (3, template), (4, strategy), (5, 0))
    obj = protobuf.decode(body("apps/v1", "Deployment", message((1, metadata), (2, spec))))
    assert obj["metadata"] == {"name": "web", "labels": {"app": "web"}}
    assert obj["spec"]["replicas"] == 0
    assert obj["spec"]["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    found = obj["spec"]["template"]["spec"]
    assert found["terminationGracePeriodSeconds"] == 0
    assert found["volumes"] == [{"name": "v", "emptyDir": {}}]
    assert "hostNetwork" not in found
    assert found["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert found["containers"][0]["resources"] == {"limits": {"cpu": "500m"}}
    assert found["containers"][0]["livenessProbe"] == {
        "httpGet": {"path": "/ok", "port": "http"},
        "initialDelaySeconds": 5,
    }


def test_bytes_and_times_and_negative_numbers():
    secret = message((1, message((1, "s"))), (2, message((1, "k"), (2, b"\x00\xff"))), (3, "Opaque"))
    assert protobuf.decode(body("v1", "Secret", secret))["data"] == {"k": "AP8="}
    lease = message((1, message((1, "l"))), (2, message((1, "me"), (4, message((1, 1), (2, 5000))))))
    assert protobuf.decode(body("coordination.k8s.io/v1", "Lease", lease))["spec"] == {
        "holderIdentity": "me",
        "renewTime": "1970-01-01T00:00:01.000005Z",
    }
    options = protobuf.decode(body("policy/v1", "DeleteOptions", message((1, 0), (4, "Background"))))
    assert (options["gracePeriodSeconds"], options["propagationPolicy"]) == (0, "Background")
    klass = message((1, message((1, "p"))), (2, -5))
    assert protobuf.decode(body("scheduling.k8s.io/v1", "PriorityClass", klass))["value"] == -5


def test_a_schema_in_which_other_values_may_stand_is_read():
    text = message((5, "string"))
    properties = (
        ("any", message((38, True), (8, message((1, b'{"a":[1]}'))))),
        ("few", message((5, "integer"), (9, 3.0), (20, message((1, b"1"))), (20, message((1, b"null"))))),
        ("list", message((5, "array"), (24, message((1, text))))),
        ("pair", message((5, "array"), (24, message((2, text), (2, text))))),
        ("map", message((5, "object"), (30, message((2, text))))),
        ("open", message((5, "object"), (30, message((1, True))))),
        ("shut", message((5, "object"), (30, message((1, False))))),
        ("both", message((32, message((1, "a"), (2, message((2, "b"), (2, "c"))))))),
    )
    schema = message((5, "object"), *((29, message((1, name), (2, inner))) for name, inner in properties))
    version = message((1, "v1"), (2, True), (3, False), (4, message((1, schema))))
    names = message((1, "things"), (4, "Thing"))
    spec = message((1, "example.com"), (3, names), (4, "Namespaced"), (7, version))
    obj = protobuf.decode(
        body("apiextensions.k8s.io/v1", "CustomResourceDefinition", message((1, message((1, "t"))), (2, spec)))
    )
    assert obj["spec"]["names"] == {"plural": "things", "kind": "Thing"}
    [read] = obj["spec"]["versions"]
    assert (read["served"], read["storage"]) == (True, False)
    assert read["schema"]["openAPIV3Schema"]["properties"] == {
        "any": {"x-kubernetes-preserve-unknown-fields": True, "default": {"a": [1]}},
        "few": {"type": "integer", "maximum": 3.0, "enum": [1, None]},
        "list": {"type": "array", "items": {"type": "string"}},
        "pair": {"type": "array", "items": [{"type": "string"}, {"type": "string"}]},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "open": {"type": "object", "additionalProperties": True},
        "shut": {"type": "object", "additionalProperties": False},
        "both": {"dependencies": {"a": ["b", "c"]}},
    }


async def test_go_clients_define_resources_and_extensions_with_protobuf(api):
    text = message((5, "object"))
    version = message((1, "v1"), (2, True), (3, True), (4, message((1, text))))
    spec = message((1, "example.com"), (3, message((1, "things"), (4, "Thing"))), (4, "Cluster"), (7, version))
    crd = body(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        message((1, message((1, "things.example.com"))), (2, spec), (3, message((2, message((1, ""), (4, "")))))),
    )
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    answer = await api("POST", path, crd, headers=PROTOBUF)
    assert (answer.status, answer.json["spec"]["names"]) == (201, {"plural": "things", "kind": "Thing"})

    service = message((1, message((1, "ns"), (2, "s"))), (2, "y.example.com"), (3, "v1"), (4, True), (7, 10), (8, 20))
    extension = body(
        "apiregistration.k8s.io/v1", "APIService", message((1, message((1, "v1.y.example.com"))), (2, service))
    )
    answer = await api("POST", "/apis/apiregistration.k8s.io/v1/apiservices", extension, headers=PROTOBUF)
    assert (answer.status, answer.json["spec"]["versionPriority"]) == (201, 20)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"json",
        b"k8s\x00\xff",
        body("v1", "Nothing", b""),
        body("v1", "Pod", b"\x0a\xff"),
        body("v1", "Pod", b"\x0f"),
    ],
)
def test_what_cannot_be_read_is_a_bad_request(data):
    with pytest.raises(ApiFailure) as caught:
        protobuf.decode(data)
    assert caught.value.status == 400


async def test_go_clients_create_with_protobuf_and_get_json(api):
    raw = message((1, message((1, "m"))), (2, message((1, "k"), (2, "v"))))
    answer = await api("POST", "/api/v1/namespaces/default/configmaps", body("v1", "ConfigMap", raw), headers=PROTOBUF)
    assert (answer.status, answer.json["data"]) == (201, {"k": "v"})


# -- the port ------------------------------------------------------------------------------------------------------
async def ask(server, path, token):
    context = ssl.create_default_context(cafile=server.authority)
    reader, writer = await asyncio.open_connection("localhost", server.port, ssl=context)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    size = int(head.lower().partition("content-length: ")[2].split("\r\n")[0])
    data = await reader.readexactly(size)
    writer.close()
    await writer.wait_closed()
    return int(head.split(" ", 2)[1]), json.loads(data)


async def test_a_server_answers_over_tls_and_comes_back_with_its_objects(tmp_path):
    server = await ApiServer.start(tmp_path / "pki", data=tmp_path / "data")
    server.extensions.identity.add("secret", User("admin", ("system:masters",)))
    await server.registry.create("configmaps", "default", {"metadata": {"name": "m"}})
    code, found = await ask(server, "/api/v1/namespaces/default/configmaps/m", "secret")
    assert (code, found["metadata"]["name"]) == (200, "m")
    code, refused = await ask(server, "/api/v1/namespaces/default/configmaps/m", "wrong")
    assert (code, refused["reason"]) == (401, "Unauthorized")
    authority, port = server.authority.read_bytes(), server.port
    assert (server.authority.parent / "ca.key").stat().st_mode & 0o777 == 0o600
    await server.stop()

    again = await ApiServer.start(tmp_path / "pki", data=tmp_path / "data", port=port)
    again.extensions.identity.add("secret", User("admin", ("system:masters",)))
    assert again.authority.read_bytes() == authority
    code, _ = await ask(again, "/api/v1/namespaces/default/configmaps/m", "secret")
    assert code == 200
    await again.stop()


async def test_stopping_ends_open_watches(tmp_path):
    server = await ApiServer.start(tmp_path / "pki")
    server.extensions.identity.add("secret", User("admin", ("system:masters",)))
    context = ssl.create_default_context(cafile=server.authority)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    path = "/api/v1/namespaces?watch=true&resourceVersion=0"
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\n\r\n".encode())
    assert b"ADDED" in await reader.readuntil(b"kube-system")
    await asyncio.wait_for(server.stop(), 10)
    assert (await asyncio.wait_for(reader.read(), 5)).endswith(b"0\r\n\r\n")
    writer.close()


@pytest.mark.parametrize("start", ["GET /readyz HTTP/1.1\r\nhost: x\r\nx: ", "GET /"], ids=["a header", "a path"])
async def test_a_request_that_never_ends_is_refused_and_others_do_not_wait(tmp_path, start: str):
    server = await ApiServer.start(tmp_path / "pki")
    context = ssl.create_default_context(cafile=server.authority)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    writer.write(start.encode() + b"a" * (2 << 20))
    answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.splitlines()[0] in (b"HTTP/1.1 431 Request Header Fields Too Large", b"HTTP/1.1 400 Bad Request")
    writer.close()
    # A long answer that ends is sent, also behind a body on the same connection.
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    body = "a" * (2 << 20)
    head = f"POST /api/v1/namespaces HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(f"{head}{body}GET /readyz HTTP/1.1\r\nhost: x\r\nx: {body[: 1 << 19]}\r\n\r\n".encode())
    first = await reader.readuntil(b"\r\n\r\n")
    length = int(first.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    assert b" 200 " in await asyncio.wait_for(reader.readline(), 20)
    writer.close()
    await server.stop()


def test_a_port_in_use_is_one_clear_error():
    taken = bind("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(Terminal, match=f"port {port} is in use; end the process that listens there"):
        bind("127.0.0.1", port)
    taken.close()
