"""Secrets leave objects and logs, wherever they stand, and are counted; nothing else changes."""

from __future__ import annotations

import base64
import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cli.doctor.redaction import LAST_APPLIED, MARK, Redactor

SECRETS = st.text(string.ascii_letters + string.digits, min_size=16, max_size=40).map(lambda text: f"zQ{text}Qz")
NAMES = st.sampled_from(
    ["DB_PASSWORD", "password", "API_TOKEN", "token", "clientSecret", "client-secret", "AWS_SECRET_ACCESS_KEY",
     "apiKey", "api_key", "NGC_API_KEY", "privateKey", "authorization", "licenseToken", "credentials", "passphrase"]
)  # fmt: skip
HARMLESS = st.text(string.ascii_letters + " .,/-_", max_size=20)


def pem(secret: str) -> str:
    return f"-----BEGIN RSA PRIVATE KEY-----\n{secret}\n-----END RSA PRIVATE KEY-----"


@st.composite
def places(draw: st.DrawFn) -> tuple[Any, str]:
    """A piece of an object or of a log line with one secret in it, and the secret."""
    secret, name, text = draw(SECRETS), draw(NAMES), draw(HARMLESS)
    kind = draw(st.integers(0, 15))
    found: Any = [
        {name: secret},
        {"env": [{"name": name, "value": secret}]},
        {"args": [f"--{name}={secret}"]},
        {"args": [f"--{name}", secret]},
        {"command": ["sh", "-c", f"run {name}={secret} now"]},
        {"annotations": {f"example.com/{name}": secret}},
        {"annotations": {LAST_APPLIED: json.dumps({"spec": {"env": [{"name": name, "value": secret}]}})}},
        {"annotations": {"note": f"Authorization: Bearer {secret}"}},
        {"url": f"https://user:{secret}@example.com/x"},
        {"data": {"config": f"{text}\n{name}: {secret}\n{text}"}},
        {"data": pem(secret)},
        {"data": base64.b64encode(pem(secret).encode()).decode()},
        {"caBundle": secret},
        f"time=1 level=info {name}={secret} msg=x",
        f'{{"{name}":"{secret}","level":"info"}}',
        f"{text} eyJhbGciOiJIUzI1NiJ9.{secret}.{secret} {text}",
    ][kind]
    return found, secret


def redact(redactor: Redactor, piece: Any) -> str:
    return redactor.text(piece) if isinstance(piece, str) else json.dumps(redactor.data(piece))


@given(st.lists(places(), min_size=1, max_size=6), HARMLESS)
def test_no_secret_is_left_at_any_place_and_each_is_counted(pieces: list[tuple[Any, str]], key: str) -> None:
    redactor = Redactor()
    texts = [piece for piece, _ in pieces if isinstance(piece, str)]
    data = {"items": [{f"x{key}": piece} for piece, _ in pieces if not isinstance(piece, str)]}
    out = json.dumps(redactor.data(data)) + redactor.text("\n".join(texts))
    for piece, secret in pieces:
        assert secret not in out, piece
        assert base64.b64encode(secret.encode()).decode()[4:-8] not in out, piece
    assert redactor.removed >= len(pieces)


@given(places())
def test_what_was_redacted_stays_as_it_is(made: tuple[Any, str]) -> None:
    piece, _ = made
    first, again = Redactor(), Redactor()
    once = first.text(piece) if isinstance(piece, str) else first.data(piece)
    twice = again.text(once) if isinstance(once, str) else again.data(once)
    assert (twice, again.removed) == (once, 0)


@given(st.lists(places(), min_size=1, max_size=4))
def test_a_mark_stands_for_each_secret(pieces: list[tuple[Any, str]]) -> None:
    redactor = Redactor()
    out = "\n".join(redact(redactor, piece) for piece, _ in pieces)
    assert redactor.removed == out.count(MARK)


@pytest.mark.parametrize(
    "harmless",
    [
        {"secretName": "gpuplane-admission-tls", "imagePullSecrets": [{"name": "registry"}]},
        {"valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"automountServiceAccountToken": False, "replicas": 2},
        {"args": ["run", "device-plugin", "--host-root=/host", "--kubelet-dir=/host/var/lib/kubelet"]},
        {"image": "registry.example.com/gpuplane:0.1.0@sha256:" + 64 * "a", "uuid": "GPU-7c41d0a3-9f0e-4c7b-8c4e"},
    ],
)
def test_objects_without_secrets_are_unchanged(harmless: Any) -> None:
    redactor = Redactor()
    assert (redactor.data(harmless), redactor.removed) == (harmless, 0)


@pytest.mark.parametrize(
    "line",
    [
        "bound pod=ml/tune-7 node=gpu-t-01 gpu=0 took=8.9ms",
        "wrote secret gpuplane-admission-tls",
        "GET /api/v1/nodes 200 https://10.0.0.1:6443/healthz",
        'gpuplane_admission_reviews_total{webhook="validate",verdict="admitted"} 7',
        "reading tokens of service accounts; token expired",
    ],
)
def test_log_lines_without_secrets_are_unchanged(line: str) -> None:
    redactor = Redactor()
    assert (redactor.text(line), redactor.removed) == (line, 0)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 5_000 + "1" + "}" * 5_000])
def test_a_last_applied_text_that_is_nested_too_deep_is_a_secret(text: str) -> None:
    """Every user who may write an object may write this annotation; doctor crashed on it."""
    found = Redactor().data({"metadata": {"annotations": {LAST_APPLIED: text}}})
    assert found["metadata"]["annotations"][LAST_APPLIED] == MARK


def test_managed_fields_are_left_out() -> None:
    data = {"metadata": {"name": "x", "managedFields": [{"manager": "m"}]}}
    assert Redactor().data(data) == {"metadata": {"name": "x"}}


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ('password="ab cde, fgh" user=x', "ab cde, fgh"),
        ("password='it is long' user=x", "it is long"),
        (r"{\"token\": \"abc123def\"}", "abc123def"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalr"),
        ("key id AKIAIOSFODNN7EXAMPLE used", "AKIAIOSFODNN7EXAMPLE"),
        ("clone https://ghp_abcdefghijklmnopqrstuv@github.com/x", "ghp_abc"),
    ],
)
def test_secrets_of_log_lines(line: str, secret: str) -> None:
    redactor = Redactor()
    out = redactor.text(line)
    assert not any(word in out for word in secret.split()[1:] or [secret])
    assert redactor.removed == 1 and out.count(MARK) == 1
