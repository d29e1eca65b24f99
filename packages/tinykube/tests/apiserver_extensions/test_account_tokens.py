"""Tokens of service accounts: their claims, how long they are good, and the documents by which others check them."""

from __future__ import annotations

import base64
import json
import os
import stat
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given
from hypothesis import strategies as st

from kubekit.errors import Terminal
from tinykube.apiserver.account_tokens import ISSUER, InvalidToken, ServiceAccountTokens
from tinykube.apiserver.hooks import Attributes, User
from tinykube.apiserver.identity import ADMIN, node_user, service_account_user
from tinykube.apiserver.rest import Rest
from tinykube.apiserver.token_key import TokenKey

ACCOUNT = {"metadata": {"name": "a", "namespace": "n", "uid": "u"}}
TOKEN_PATH = "/api/v1/namespaces/default/serviceaccounts/bot/token"


def unpacked(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def claims_of(token: str) -> dict[str, Any]:
    claims: dict[str, Any] = json.loads(unpacked(token.split(".")[1]))
    return claims


async def call(cluster: Any, method: str, path: str, body: Any = None, user: str = "admin") -> tuple[int, Any]:
    """The status and the body of an answer to a user with a token."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {user}".encode())] if user else []
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""}
    await Rest(cluster.registry)(scope, receive, send)
    data = b"".join(message.get("body", b"") for message in sent[1:])
    try:
        return sent[0]["status"], json.loads(data)
    except ValueError:
        return sent[0]["status"], data


@pytest.fixture
async def served(cluster: Any) -> Any:
    identity = cluster.extensions.identity
    identity.add("admin", ADMIN)
    identity.add("kubelet", node_user("n1"))
    identity.add("jane", User("jane", ("system:authenticated",)))
    await cluster.create("serviceaccounts", {"metadata": {"name": "bot"}})
    return cluster


def asked(seconds: int = 3600, **spec: Any) -> dict[str, Any]:
    return {"spec": {"expirationSeconds": seconds, **spec}}


def reference(obj: Any, kind: str) -> dict[str, Any]:
    metadata = obj["metadata"]
    return {"apiVersion": "v1", "kind": kind, "name": metadata["name"], "uid": metadata["uid"]}


# -- claims ------------------------------------------------------------------------------------------------------------
async def test_a_token_of_a_pod_has_the_claims_of_kubernetes(served):
    node = await served.create("nodes", {"metadata": {"name": "n1"}})
    pod = await served.pod(serviceAccountName="bot", nodeName="n1")
    status, answer = await call(served, "POST", TOKEN_PATH, asked(900, boundObjectRef=reference(pod, "Pod")), "kubelet")
    assert status == 201
    account = served.extensions.find("serviceaccounts", "default", "bot")
    assert answer["metadata"]["uid"] == account["metadata"]["uid"]
    now = int(served.time)
    claims = claims_of(answer["status"]["token"])
    assert len(claims.pop("jti")) == 36
    assert claims == {
        "aud": [ISSUER],
        "exp": now + 900,
        "iat": now,
        "iss": ISSUER,
        "kubernetes.io": {
            "namespace": "default",
            "node": {"name": "n1", "uid": node["metadata"]["uid"]},
            "pod": {"name": "p", "uid": pod["metadata"]["uid"]},
            "serviceaccount": {"name": "bot", "uid": account["metadata"]["uid"]},
        },
        "nbf": now,
        "sub": "system:serviceaccount:default:bot",
    }


async def test_the_token_that_every_pod_has_is_good_for_a_year_and_says_when_to_renew_it(served):
    pod = await served.pod(serviceAccountName="bot")
    bound = asked(3607, boundObjectRef=reference(pod, "Pod"))
    _, answer = await call(served, "POST", TOKEN_PATH, bound)
    claims = claims_of(answer["status"]["token"])
    assert claims["exp"] == claims["iat"] + 365 * 86400
    assert claims["kubernetes.io"]["warnafter"] == claims["iat"] + 3607
    assert answer["status"]["expirationTimestamp"] == "2027-01-15T09:00:07Z"
    for other in (asked(3607), {"spec": {**bound["spec"], "audiences": ["vault"]}}):
        _, answer = await call(served, "POST", TOKEN_PATH, other)
        assert "warnafter" not in claims_of(answer["status"]["token"])["kubernetes.io"]


# -- how long ------------------------------------------------------------------------------------------------------
async def test_a_token_lives_as_long_as_what_it_is_bound_to(cluster):
    tokens = cluster.extensions.identity.accounts
    account = await cluster.create("serviceaccounts", {"metadata": {"name": "bot"}})
    pod = await cluster.pod(serviceAccountName="bot", nodeName="n1")
    token, until = tokens.issue(account, 600, pod=pod)
    user, _ = tokens.check(token)
    assert user.name == "system:serviceaccount:default:bot"
    assert "system:serviceaccounts:default" in user.groups
    assert user.extra["authentication.kubernetes.io/node-name"] == ("n1",)
    with pytest.raises(InvalidToken, match="audiences"):
        tokens.check(token, ("vault",))
    cluster.time = until + 59  # clocks differ
    tokens.check(token)
    cluster.time = until + 60
    with pytest.raises(InvalidToken, match="expired"):
        tokens.check(token)
    cluster.time = until - 1
    await cluster.registry.delete("pods", "default", "p", grace=0)
    with pytest.raises(InvalidToken, match="invalidated"):
        tokens.check(token)
    unbound, _ = tokens.issue(account, 600)
    await cluster.registry.delete("serviceaccounts", "default", "bot")
    with pytest.raises(InvalidToken, match="not found"):
        tokens.check(unbound)
    await cluster.create("serviceaccounts", {"metadata": {"name": "bot"}})
    with pytest.raises(InvalidToken, match="does not match"):
        tokens.check(unbound)


@pytest.mark.parametrize(("plural", "kind"), [("secrets", "Secret"), ("nodes", "Node")])
async def test_a_token_may_be_bound_to_a_secret_or_a_node(served, plural, kind):
    bound = await served.create(plural, {"metadata": {"name": "x"}})
    _, answer = await call(served, "POST", TOKEN_PATH, asked(boundObjectRef=reference(bound, kind)))
    token = answer["status"]["token"]
    assert claims_of(token)["kubernetes.io"][kind.lower()]["name"] == "x"
    assert (await call(served, "GET", "/version", user=token))[0] == 200
    await served.registry.delete(plural, "default" if kind == "Secret" else None, "x")
    assert (await call(served, "GET", "/version", user=token))[0] == 401


async def test_a_pod_that_should_be_gone_since_a_minute_speaks_no_more(cluster):
    tokens = cluster.extensions.identity.accounts
    account = await cluster.create("serviceaccounts", {"metadata": {"name": "bot"}})
    pod = await cluster.pod(serviceAccountName="bot", nodeName="n1")
    token, _ = tokens.issue(account, 3600, pod=pod)
    await cluster.registry.delete("pods", "default", "p", grace=30)
    cluster.time += 90
    tokens.check(token)
    cluster.time += 1
    with pytest.raises(InvalidToken, match="invalidated"):
        tokens.check(token)


# -- the key -----------------------------------------------------------------------------------------------------------
TOKENS = ServiceAccountTokens(TokenKey.make(), lambda *_: ACCOUNT, lambda: 1000.0)


@given(st.integers(0, 1000), st.integers(0, 255))
def test_a_changed_token_is_refused(position, value):
    token, _ = TOKENS.issue(ACCOUNT, 600)
    at = position % len(token)
    changed = token[:at] + chr(33 + value % 90) + token[at + 1 :]
    if changed != token:
        with pytest.raises(InvalidToken):
            TOKENS.check(changed)


@given(st.text(max_size=200) | st.lists(st.text("Aa0-_=", max_size=100), max_size=4).map(".".join))
def test_what_is_no_token_is_refused(text):
    with pytest.raises(InvalidToken):
        TOKENS.check(text)


def test_a_token_chooses_no_algorithm(cluster):
    token, _ = TOKENS.issue(ACCOUNT, 600)
    payload = token.split(".")[1]
    for header in ({"alg": "none"}, {"alg": "HS256", "typ": "JWT"}):
        head = base64.urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("=")
        for signature in ("", token.split(".")[2]):
            with pytest.raises(InvalidToken):
                TOKENS.check(f"{head}.{payload}.{signature}")


def test_the_key_outlives_the_server_and_only_its_owner_reads_it(tmp_path):
    path = tmp_path / "sa.key"
    before = os.umask(0)
    try:
        key = TokenKey.ensure(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["sa.key"]
    token = key.sign(b"{}")
    assert TokenKey.ensure(path).verify(token) == b"{}"
    assert TokenKey.make().verify(token) is None


OTHER_CURVE = ec.generate_private_key(ec.SECP384R1()).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)


@pytest.mark.parametrize("content", [b"", b"nonsense", OTHER_CURVE])
def test_a_key_that_cannot_be_used_is_named(tmp_path, content):
    path = tmp_path / "sa.key"
    path.write_bytes(content)
    with pytest.raises(Terminal, match=r"sa\.key"):
        TokenKey.ensure(path)


# -- requests ----------------------------------------------------------------------------------------------------------
async def test_a_kubelet_gets_tokens_for_pods_of_its_node_only(served):
    mine = await served.pod("mine", serviceAccountName="bot", nodeName="n1")
    other = await served.pod("other", serviceAccountName="bot", nodeName="n2")
    nameless = {**reference(mine, "Pod"), "uid": ""}
    for bound, why in (
        (None, "not bound to a pod"),
        (nameless, "without a uid"),
        ({**nameless, "uid": "other"}, "does not match the UID in record"),
        (reference(other, "Pod"), "a different node"),
    ):
        status, answer = await call(served, "POST", TOKEN_PATH, asked(boundObjectRef=bound), "kubelet")
        assert (status, answer["reason"]) == (403, "Forbidden") and why in answer["message"]
    status, _ = await call(served, "POST", TOKEN_PATH, asked(boundObjectRef=reference(mine, "Pod")), "kubelet")
    assert status == 201


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (asked(599), 422, "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 min"),
        (asked(2**32 + 1), 422, "may not specify a duration larger than 2^32 seconds"),
        (asked("soon"), 400, "cannot be handled as a TokenRequest"),
        (asked(audiences="vault"), 400, "cannot be handled as a TokenRequest"),
        ({"spec": []}, 201, ""),
        ({"metadata": {"name": "x"}}, 422, 'metadata.name: Invalid value: "x": must match the service account name'),
        ({"metadata": {"uid": "x"}}, 409, "the UID in the token request (x) does not match the UID of the service"),
        (asked(boundObjectRef={"kind": "ConfigMap", "apiVersion": "v1", "name": "x"}), 400, "of type /v1, Kind=Conf"),
        (asked(boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "x"}), 404, 'pods "x" not found'),
        (asked(boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p"}), 400, "different serviceaccount name"),
    ],
)
async def test_wrong_requests_for_tokens(served, body, status, message):
    await served.create("serviceaccounts", {"metadata": {"name": "default"}})
    await served.pod()
    found, answer = await call(served, "POST", TOKEN_PATH, body)
    assert found == status and message in answer.get("message", "")


# -- discovery ---------------------------------------------------------------------------------------------------------
async def test_others_check_tokens_by_the_documents(served):
    account = served.extensions.find("serviceaccounts", "default", "bot")
    token, _ = served.extensions.identity.accounts.issue(account, 600, audiences=("vault",))
    _, mine = await call(served, "POST", TOKEN_PATH, asked())
    robot = mine["status"]["token"]
    status, configuration = await call(served, "GET", "/.well-known/openid-configuration", user=robot)
    assert (status, configuration["issuer"]) == (200, claims_of(token)["iss"])
    assert configuration["jwks_uri"].endswith("/openid/v1/jwks")
    _, keys = await call(served, "GET", "/openid/v1/jwks", user=robot)
    header = json.loads(unpacked(token.split(".")[0]))
    (key,) = [key for key in keys["keys"] if key["kid"] == header["kid"]]
    assert header["alg"] == key["alg"] and [key["alg"]] == configuration["id_token_signing_alg_values_supported"]
    point = [int.from_bytes(unpacked(key[axis])) for axis in "xy"]
    public = ec.EllipticCurvePublicNumbers(*point, ec.SECP256R1()).public_key()
    signature = unpacked(token.split(".")[2])
    numbers = [int.from_bytes(half) for half in (signature[:32], signature[32:])]
    signed = token.rpartition(".")[0].encode()
    public.verify(encode_dss_signature(*numbers), signed, ec.ECDSA(hashes.SHA256()))


async def test_the_documents_are_for_service_accounts(served):
    for path in ("/.well-known/openid-configuration", "/openid/v1/jwks"):
        assert (await call(served, "GET", path, user="jane"))[0] == 403
        assert (await call(served, "GET", path, user=""))[0] == 403
    wanted = Attributes("get", path="/openid/v1/jwks")
    assert served.extensions.rbac.authorize(service_account_user("default", "bot"), wanted) is None


async def test_a_review_says_which_pod_and_node_a_token_is_from(served):
    await served.create("nodes", {"metadata": {"name": "n1"}})
    pod = await served.pod(serviceAccountName="bot", nodeName="n1")
    _, answer = await call(served, "POST", TOKEN_PATH, asked(boundObjectRef=reference(pod, "Pod")))
    token = answer["status"]["token"]
    reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
    _, review = await call(served, "POST", reviews, {"spec": {"token": token}})
    extra = review["status"]["user"]["extra"]
    prefix = "authentication.kubernetes.io/"
    assert extra[prefix + "pod-name"] == ["p"] and extra[prefix + "node-name"] == ["n1"]
    assert extra[prefix + "credential-id"] == [f"JTI={claims_of(token)['jti']}"]


async def test_a_token_is_verified_once_and_its_objects_each_time(served, monkeypatch):
    pod = await served.pod(serviceAccountName="bot", nodeName="n1")
    _, answer = await call(served, "POST", TOKEN_PATH, asked(boundObjectRef=reference(pod, "Pod")))
    token = answer["status"]["token"]
    key, checked = served.extensions.identity.accounts.key, []
    verify = key.verify
    monkeypatch.setattr(key, "verify", lambda text: (checked.append(text), verify(text))[1])
    for _ in range(3):
        assert (await call(served, "GET", "/version", user=token))[0] == 200
    assert checked == [token]
    await served.registry.delete("pods", "default", "p", grace=0)
    assert (await call(served, "GET", "/version", user=token))[0] == 401
