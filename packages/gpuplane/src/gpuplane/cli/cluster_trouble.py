"""Finds what is wrong with gpuplane's installation on a cluster: what, where and cure, from an `Overview`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuplane import names
from gpuplane.cli import extender_use
from gpuplane.cli.status_parts import SHOWN
from gpuplane.cli.status_views import ExtenderBypass, Overview


class ClusterTrouble(msgspec.Struct, frozen=True):
    """One entry: a line, since when, what it means for the cluster, and the lines below. `verdict`: bad or warn."""

    verdict: str
    head: str
    what: str
    cure: str
    where: str = ""
    since: str = ""
    effect: str = ""


def cluster_troubles(seen: Overview) -> Iterator[ClusterTrouble]:
    """Yield the entries in the order of the page, the most important last."""
    if (pause := seen.paused) is not None:
        yield ClusterTrouble(
            "warn",
            "operator paused",
            f"ClusterPolicy {pause.policy} carries {names.PAUSED_ANNOTATION}=true",
            f"kubectl annotate clusterpolicy {pause.policy} {names.PAUSED_ANNOTATION}-",
            since=pause.since,
            effect="nothing is changed",
        )
    if (refusal := seen.refused) is not None:
        yield ClusterTrouble(
            "bad",
            "operator refused",
            refusal.what,
            "gpuplane install brings rights and definitions up to date; what the message names otherwise",
            f"ClusterPolicy {refusal.policy} status.conditions",
            refusal.since,
            "existing pods are not affected",
        )
    if seen.unattended:  # for example after `helm uninstall`
        yield ClusterTrouble(
            "bad",
            "no operator",
            f"namespace {names.OPERATOR_NAMESPACE} has no deployment gpu-operator: the nodes are as it left them",
            "gpuplane install",
        )
    if seen.bypass is not None:
        yield bypassed(seen.bypass)


def bypassed(bypass: ExtenderBypass) -> ClusterTrouble:
    """Return the entry of a cluster whose kube-scheduler does not ask the extender."""
    what = extender_use.reason(bypass, SHOWN)
    return ClusterTrouble("warn", "kube-scheduler does not ask the extender", what, extender_use.CURE)
