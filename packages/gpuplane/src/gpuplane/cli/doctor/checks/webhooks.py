"""The certificates of the webhook, by the authorities that its configurations trust.

The webhook makes an authority with each certificate, which ends with it, and writes it into `caBundle` of every webhook
(`kubekit.kube.server_certificates`). So the newest authority of a bundle tells when the certificate ends, and bundles
with different newest authorities cannot all be right. No Secret is read.
"""

from __future__ import annotations

import datetime
from typing import Final

from cryptography import x509

from gpuplane import names
from gpuplane.cli.doctor.facts import DoctorFacts, WebhookTrust
from gpuplane.cli.doctor.finding import Diagnosis, DoctorCheck, DoctorFinding, Severity

SOON_DAYS: Final = 15  # a certificate of 90 days is renewed when 30 are left
_NAME: Final = names.ADMISSION_NAME
_CURE: Final = f"kubectl -n {names.OPERATOR_NAMESPACE} rollout restart deployment/{_NAME}"
_REMOVE: Final = f"kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration {_NAME}"


def _decide(facts: DoctorFacts) -> Diagnosis:
    if facts.deployment(_NAME) is None:
        if not facts.webhooks:
            return Diagnosis("webhook not installed")
        what = "the API server calls a webhook whose server is not installed"
        finding = DoctorFinding(
            fault="webhook-without-server", what=what, where=f"deployment/{_NAME} is missing", cure=_REMOVE
        )
        return Diagnosis("", (finding,))
    findings = []
    newest: dict[str, x509.Certificate] = {}
    for webhook in facts.webhooks:
        where = f"{webhook.kind}/{_NAME}, webhook {webhook.name}"
        authority = _newest(webhook)
        if authority is None or not _is_ours(authority):
            what = "its caBundle has no authority of the webhook: the API server cannot call it"
            findings.append(DoctorFinding(fault="webhook-untrusted", what=what, where=where, cure=_CURE))
            continue
        newest[where] = authority
    if len({one.serial_number for one in newest.values()}) > 1:
        last = max(newest.values(), key=lambda one: one.not_valid_after_utc)
        where = next(where for where, one in newest.items() if one != last)
        what = "its caBundle has another authority than the other webhooks': the API server cannot call both"
        findings.append(DoctorFinding(fault="webhook-authorities-differ", what=what, where=where, cure=_CURE))
    ends = min((one.not_valid_after_utc for one in newest.values()), default=None)
    left = (ends - datetime.datetime.fromtimestamp(facts.clock, datetime.UTC)).total_seconds() if ends else 0.0
    if ends is not None and left <= 0:
        what = f"its certificate ended on {ends:%Y-%m-%d}: the API server cannot call it"
        findings.append(DoctorFinding(fault="webhook-expired", what=what, where=f"deployment/{_NAME}", cure=_CURE))
    elif ends is not None and left < SOON_DAYS * 86400:
        findings.append(
            DoctorFinding(
                fault="webhook-expires-soon",
                severity=Severity.WARNING,
                what=f"its certificate ends on {ends:%Y-%m-%d}, and should have been renewed before",
                where=f"deployment/{_NAME}",
                cure=_CURE,
            )
        )
    good = f"webhook trusted until {ends:%Y-%m-%d}" if ends else "no webhook is configured"
    return Diagnosis(good, tuple(findings))


def _newest(webhook: WebhookTrust) -> x509.Certificate | None:
    """Return the authority that ends last; None for a bundle without one, or an unreadable bundle."""
    try:
        found = x509.load_pem_x509_certificates(webhook.bundle)
    except ValueError:
        return None
    return max(found, key=lambda one: one.not_valid_after_utc)


def _is_ours(authority: x509.Certificate) -> bool:
    common = authority.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return bool(common) and str(common[0].value).startswith(_NAME)


WEBHOOKS: Final = DoctorCheck(
    "webhooks",
    "the API server trusts the webhook, and its certificate lasts",
    ("webhooks", "deployments", "clock"),
    {
        "webhook-untrusted": "a caBundle has no authority of the webhook",
        "webhook-authorities-differ": "the caBundles of the webhooks have different authorities",
        "webhook-expired": "the webhook's certificate has ended",
        "webhook-expires-soon": f"the certificate ends within {SOON_DAYS} days, so it was not renewed",
        "webhook-without-server": "webhooks are configured, and their server is not installed",
    },
    _decide,
)
