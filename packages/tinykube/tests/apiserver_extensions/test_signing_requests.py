"""CertificateSigningRequests: the caller's name, and the rights to approve and to sign."""

from __future__ import annotations

import base64
import datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kubekit.kube.certificates import Validity, make_authority
from tinykube.apiserver import ApiFailure, User

REQUESTS = "certificatesigningrequests"
CLIENT = "kubernetes.io/kube-apiserver-client"
VALID = Validity(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC))
JANE = User("jane", ("developers", "system:authenticated"), "u-1", {"team": ("a", "b")})
APPROVER = User("approver", ("system:authenticated",))
TIMES = {"lastUpdateTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}
APPROVED = {"type": "Approved", "status": "True", "reason": "Checked", **TIMES}
DENIED = {"type": "Denied", "status": "True", "reason": "Checked", **TIMES}
CERTIFICATE = base64.b64encode(make_authority("own", VALID).certificate_pem).decode()
ANOTHER = base64.b64encode(make_authority("other", VALID).certificate_pem).decode()
OTHER = {"type": "example.com/Seen", "status": "True", **TIMES}


def pem(*organizations: str) -> str:
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "jane"), *names])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = made.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return base64.b64encode(signed.public_bytes(serialization.Encoding.PEM)).decode()


async def request(cluster: Any, *organizations: str, signer: str = CLIENT, user: User = JANE, **spec: Any) -> Any:
    body = {"request": pem(*organizations), "signerName": signer, "usages": ["client auth"], **spec}
    return await cluster.create(REQUESTS, {"metadata": {"name": "r"}, "spec": body}, user=user)


async def write(cluster: Any, subresource: str, user: User = APPROVER, **status: Any) -> Any:
    patch = {"status": status}
    return await cluster.registry.patch(REQUESTS, None, "r", patch, "merge", subresource=subresource, user=user)


async def grant(cluster: Any, verb: str, signer: str) -> None:
    rule = {"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": [verb], "resourceNames": [signer]}
    await cluster.create("clusterroles", {"metadata": {"name": verb}, "rules": [rule]})
    group = "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "ClusterRole", "name": verb}
    subject = {"apiGroup": group, "kind": "User", "name": APPROVER.name}
    await cluster.create("clusterrolebindings", {"metadata": {"name": verb}, "roleRef": role, "subjects": [subject]})


async def test_a_request_names_its_caller_whatever_the_caller_wrote(cluster: Any) -> None:
    forged = {"username": "system:admin", "uid": "x", "groups": ["system:masters"], "extra": {"team": ["root"]}}
    spec = (await request(cluster, **forged))["spec"]
    found = {field: spec[field] for field in forged}
    assert found == {"username": "jane", "uid": "u-1", "groups": list(JANE.groups), "extra": {"team": ["a", "b"]}}


async def test_a_request_without_uid_and_extra_has_no_forged_ones(cluster: Any) -> None:
    spec = (await request(cluster, user=APPROVER, uid="x", extra={"team": ["root"]}))["spec"]
    assert (spec["username"], "uid" in spec, "extra" in spec) == ("approver", False, False)


async def test_the_spec_of_a_request_never_changes(cluster: Any) -> None:
    before = (await request(cluster))["spec"]
    patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"signerName": "example.com/other", "username": "root"}}
    after = await cluster.registry.patch(REQUESTS, None, "r", patch, "merge")
    assert (after["spec"], after["metadata"]["labels"]) == (before, {"a": "b"})


async def test_the_signer_of_clients_makes_no_certificate_of_masters(cluster: Any) -> None:
    with pytest.raises(ApiFailure) as refused:
        await request(cluster, "developers", "system:masters")
    assert refused.value.status == 403
    text = f"use of {CLIENT} signer with system:masters group is not allowed"
    assert str(refused.value) == f'certificatesigningrequests.certificates.k8s.io "r" is forbidden: {text}'
    await request(cluster, "system:masters", signer="example.com/own")


async def test_what_cannot_be_read_or_is_signed_by_another_key_is_invalid(cluster: Any) -> None:
    head, _, foot = (b"-----%s CERTIFICATE REQUEST-----\n" % word for word in (b"BEGIN", b"", b"END"))
    other = base64.b64decode(pem())
    lines = other.splitlines(keepends=True)
    broken = bytearray(base64.b64decode(b"".join(lines[1:-1])))
    broken[-1] ^= 1  # the last byte of the signature
    for wrong in (head + b"AAAA\n" + foot, head + base64.encodebytes(bytes(broken)) + foot):
        with pytest.raises(ApiFailure, match=r"spec\.request: Invalid value") as refused:
            await request(cluster, request=base64.b64encode(wrong).decode())
        assert refused.value.status == 422


@pytest.mark.parametrize("signer", [CLIENT, "kubernetes.io/*"])
@pytest.mark.parametrize(
    ("subresource", "verb", "change"),
    [
        ("approval", "approve", {"conditions": [APPROVED]}),
        ("status", "sign", {"certificate": CERTIFICATE}),
        ("status", "sign", {"conditions": [OTHER]}),
    ],
)
async def test_approval_and_signing_need_the_right_to_the_signer(
    cluster: Any, subresource: str, verb: str, change: Any, signer: str
) -> None:
    await request(cluster)
    await grant(cluster, verb, "example.com/*")
    with pytest.raises(ApiFailure) as refused:
        await write(cluster, subresource, **change)
    assert refused.value.status == 403
    assert str(refused.value).endswith(
        f'is forbidden: user not permitted to {verb} requests with signerName "{CLIENT}"'
    )
    rule = {"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": [verb], "resourceNames": [signer]}
    await cluster.registry.patch("clusterroles", None, verb, {"rules": [rule]}, "merge")
    status = (await write(cluster, subresource, **change))["status"]
    assert {field: status[field] for field in change} == change


async def test_a_custom_resource_of_the_same_plural_has_none_of_these_rules(cluster: Any) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    version["subresources"] = {"status": {}}
    names = {"plural": REQUESTS, "kind": "Wish"}
    spec = {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version]}
    await cluster.create("customresourcedefinitions", {"metadata": {"name": f"{REQUESTS}.example.com"}, "spec": spec})
    # A policy of the custom resource has its writes pass through admission.
    rule = {"apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["*/*", "*"], "operations": ["*"]}
    policy = {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}]}
    bound = {"policyName": "p", "validationActions": ["Deny"]}
    await cluster.create("validatingadmissionpolicies", {"metadata": {"name": "p"}, "spec": policy})
    await cluster.create("validatingadmissionpolicybindings", {"metadata": {"name": "b"}, "spec": bound})
    kind = f"{REQUESTS}.example.com"
    body = {"apiVersion": "example.com/v1", "kind": "Wish", "metadata": {"name": "w"}, "spec": {"username": "any"}}
    made = await cluster.registry.create(kind, None, body, user=JANE)
    assert made["spec"] == {"username": "any"}
    change = {"status": {"certificate": "x", "conditions": [APPROVED]}}
    changed = await cluster.registry.patch(kind, None, "w", change, "merge", subresource="status", user=JANE)
    assert changed["status"] == change["status"]
    changed = await cluster.registry.patch(kind, None, "w", {"spec": {"username": "other"}}, "merge", user=JANE)
    assert changed["spec"] == {"username": "other"}


async def test_only_an_approval_approves_and_it_signs_nothing(cluster: Any) -> None:
    await request(cluster)
    await grant(cluster, "sign", CLIENT)
    with pytest.raises(ApiFailure) as refused:
        await write(cluster, "status", conditions=[APPROVED])
    assert refused.value.status == 422
    assert 'status.conditions: Forbidden: updates may not add a condition of type "Approved"' in str(refused.value)
    await grant(cluster, "approve", CLIENT)
    approved = await write(cluster, "approval", conditions=[APPROVED], certificate=CERTIFICATE)
    assert approved["status"] == {"conditions": [APPROVED]}
    changed = await write(
        cluster, "status", conditions=[{**APPROVED, "reason": "Other"}, OTHER], certificate=CERTIFICATE
    )
    assert changed["status"] == {"conditions": [APPROVED, OTHER], "certificate": CERTIFICATE}


@pytest.mark.parametrize(
    ("subresource", "status", "text"),
    [
        ("approval", {"conditions": []}, 'updates may not remove a condition of type "Approved"'),
        ("status", {"conditions": []}, 'updates may not remove a condition of type "Approved"'),
        ("approval", {"conditions": [APPROVED, DENIED]}, "Approved and Denied conditions are mutually exclusive"),
        ("status", {"certificate": ANOTHER}, "updates may not modify existing certificate content"),
    ],
)
async def test_what_was_decided_stays(cluster: Any, subresource: str, status: Any, text: str) -> None:
    await request(cluster)
    await grant(cluster, "approve", CLIENT)
    await grant(cluster, "sign", CLIENT)
    await write(cluster, "approval", conditions=[APPROVED])
    await write(cluster, "status", certificate=CERTIFICATE)
    with pytest.raises(ApiFailure) as refused:
        await write(cluster, subresource, **status)
    assert refused.value.status == 422
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"usages": ["everything"]}, 'spec.usages[0]: Unsupported value: "everything": supported values: "any", "cert'),
        ({"usages": ["client auth", "client auth"]}, 'spec.usages[1]: Duplicate value: "client auth"'),
        (
            {"signer": "kubernetes.io/legacy-unknown"},
            'spec.signerName: Invalid value: "kubernetes.io/legacy-unknown": '
            "the legacy signerName is not allowed via this API version",
        ),
    ],
)
async def test_usages_and_signers_that_no_request_may_have(cluster: Any, spec: Any, text: str) -> None:
    with pytest.raises(ApiFailure) as refused:
        await request(cluster, **spec)
    assert refused.value.status == 422 and text in str(refused.value)


def encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


HEADED = base64.b64decode(CERTIFICATE).replace(b"CERTIFICATE-----\n", b"CERTIFICATE-----\na: b\n\n", 1)


@pytest.mark.parametrize(
    ("subresource", "status", "text"),
    [
        (
            "approval",
            {"conditions": [{**APPROVED, "status": "False"}]},
            'status.conditions[0].status: Unsupported value: "False": supported values: "True"',
        ),
        ("status", {"conditions": [{**OTHER, "status": "No"}]}, 'supported values: "False", "True", "Unknown"'),
        ("status", {"conditions": [{**OTHER, "type": "Failed", "status": "Unknown"}]}, 'supported values: "True"'),
        ("status", {"conditions": [OTHER, OTHER]}, 'status.conditions[1].type: Duplicate value: "example.com/Seen"'),
        ("status", {"certificate": encoded(b"text")}, "must contain at least one CERTIFICATE PEM block"),
        ("status", {"certificate": pem()}, 'only CERTIFICATE PEM blocks are allowed, found "CERTIFICATE REQUEST"'),
        ("status", {"certificate": encoded(HEADED)}, "no PEM block headers are permitted"),
        (
            "status",
            {"certificate": encoded(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")},
            'status.certificate: Invalid value: "<certificate data>": x509: malformed certificate',
        ),
    ],
)
async def test_what_no_status_may_say(cluster: Any, subresource: str, status: Any, text: str) -> None:
    await request(cluster)
    await grant(cluster, "approve", CLIENT)
    await grant(cluster, "sign", CLIENT)
    with pytest.raises(ApiFailure) as refused:
        await write(cluster, subresource, **status)
    assert refused.value.status == 422 and text in str(refused.value)


async def test_new_conditions_get_times(cluster: Any) -> None:
    await request(cluster)
    await grant(cluster, "approve", CLIENT)
    await grant(cluster, "sign", CLIENT)
    bare = {"type": "Approved", "status": "True"}
    approved = (await write(cluster, "approval", conditions=[bare]))["status"]["conditions"]
    assert approved == [{**bare, **dict.fromkeys(TIMES, approved[0]["lastUpdateTime"])}] and approved[0]
    seen = {"type": "example.com/Seen", "status": "True"}
    kept = {**seen, "lastTransitionTime": TIMES["lastTransitionTime"]}
    await write(cluster, "status", conditions=[bare, kept])
    conditions = (await write(cluster, "status", conditions=[bare, seen]))["status"]["conditions"]
    assert (conditions[0], conditions[1]["lastTransitionTime"]) == (approved[0], TIMES["lastTransitionTime"])
    changed = (await write(cluster, "status", conditions=[bare, {**seen, "status": "False"}]))["status"]["conditions"]
    assert changed[1]["lastTransitionTime"] != TIMES["lastTransitionTime"]
