"""Actions of the autoscaler for a pod, which `gpuplane explain` prints before everything else."""

from __future__ import annotations

import io
from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.karpenter_crds import karpenter_crds
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.cli.explain_text import page
from gpuplane.cli.terminal import Console
from gpuplane.explain.answer import Explanation
from gpuplane.explain.buying import BuyingFacts, buying_of
from gpuplane.explain.pool_reading import read_buying_facts
from gpuplane.operator.installation import resource_of
from kubekit.api.core import Event, EventSource, ObjectReference
from kubekit.api.meta import Condition, ObjectMeta
from tests.support.api_client import connected
from tinykube.apiserver.server import ApiServer

POD: dict[str, Any] = {"metadata": {"name": "train", "namespace": "ml", "uid": "1"}, "spec": {}}
PLACE = "gpu-operator/gpuplane-autoscaler"


def told(
    reason: str, message: str, kind: str = "Pod", name: str = "train", at: str = "1", level: str = "Normal"
) -> Event:
    return Event(
        involved_object=ObjectReference(kind=kind, name=name, uid="1" if kind == "Pod" else ""),
        reason=reason,
        message=message,
        type=level,
        last_timestamp=f"2026-11-23T00:00:0{at}Z",
        source=EventSource(component=names.AUTOSCALER_NAME),
    )


def claim(*conditions: Condition, deleted: str | None = None) -> NodeClaim:
    labels = {"node.kubernetes.io/instance-type": "g4dn.xlarge", "karpenter.sh/capacity-type": "spot"}
    meta = ObjectMeta(name="gpu-1", labels=labels, deletion_timestamp=deleted)
    status = NodeClaim().status.__class__(conditions=conditions)
    return NodeClaim(metadata=meta, status=status)


def facts(*events: Event, claims: tuple[NodeClaim, ...] = (), **fields: Any) -> BuyingFacts:
    return BuyingFacts(**{"claims": claims, "events": events, "place": PLACE, "wanted": 1, "ready": 1, **fields})


def is_(kind: str, status: str = "True", message: str = "", reason: str = "") -> Condition:
    return Condition(type=kind, status=status, message=message, reason=reason)


NOMINATED = told("Nominated", "waits for the node of the claim gpu-1")
NO_CAPACITY = told("InsufficientCapacityError", "no capacity for g4dn.xlarge", "NodeClaim", "gpu-1", level="Warning")
CASES: dict[str, tuple[BuyingFacts, str, str]] = {
    "no autoscaler": (facts(place=""), "none-installed", "no autoscaler is installed: no pool buys anything"),
    "karpenter": (facts(place="", karpenter="kube-system/karpenter"), "standing-aside", "Karpenter (kube-system/karp"),
    "scaled to zero": (facts(wanted=0, ready=0), "not-running", f"the autoscaler {PLACE} is scaled to zero"),
    "broken": (facts(ready=0), "not-running", f"the autoscaler {PLACE} does not run: 0 of 1 pods are ready"),
    "nothing yet": (facts(), "undecided", "the autoscaler has not decided about the pod yet"),
    "of another pod": (
        facts(told("Nominated", "waits for the node n", name="other")),
        "undecided",
        "the autoscaler has",
    ),
    "a node": (
        facts(told("Nominated", "waits for the node gpu-t-1")),
        "nominated",
        "the node gpu-t-1 is there or on its way",
    ),
    "promised again under the claim's name": (
        facts(NOMINATED, told("Nominated", "waits for the node gpu-1", at="2"), claims=(claim(),)),
        "coming",
        "the node gpu-1 (g4dn.xlarge spot) is being launched",
    ),
    "refused": (
        facts(NOMINATED, told("FailedScheduling", "no node is bought: plain: the limit cpu 4 is reached", at="2")),
        "refused",
        "the autoscaler refused: plain: the limit cpu 4 is reached",
    ),
    "launching": (facts(NOMINATED, claims=(claim(),)), "coming", "the node gpu-1 (g4dn.xlarge spot) is being launched"),
    "launch fails": (
        facts(NOMINATED, claims=(claim(is_("Launched", "Unknown", "no credentials", "LaunchFailed")),)),
        "failed",
        "the node gpu-1 (g4dn.xlarge spot) is being launched: no credentials",
    ),
    "joining": (
        facts(NOMINATED, claims=(claim(is_("Launched")),)),
        "coming",
        "the node gpu-1 (g4dn.xlarge spot) is launched, and its node has not joined yet",
    ),
    "preparing": (
        facts(
            NOMINATED,
            claims=(claim(is_("Launched"), is_("Registered"), is_("Initialized", "Unknown", "driver is missing")),),
        ),
        "coming",
        "the node gpu-1 (g4dn.xlarge spot) has joined, and is being prepared: driver is missing",
    ),
    "ready": (
        facts(NOMINATED, claims=(claim(is_("Launched"), is_("Registered"), is_("Initialized")),)),
        "coming",
        "the node gpu-1 (g4dn.xlarge spot) is ready; the scheduler places the pod",
    ),
    "removed": (
        facts(NOMINATED, claims=(claim(deleted="2026-11-23T00:00:00Z"),)),
        "failed",
        "the node gpu-1 (g4dn.xlarge spot) is being removed before it joined",
    ),
    "no capacity": (
        facts(NOMINATED, NO_CAPACITY),
        "failed",
        "the launch of gpu-1 failed: no capacity for g4dn.xlarge; the autoscaler decides again",
    ),
    "unreadable": (
        facts(place="", known=False),
        "undecided",
        "there is no right to read whether an autoscaler is installed",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_newest_trace_of_the_autoscaler_counts(case: str) -> None:
    known, state, text = CASES[case]
    found = buying_of(POD, known)
    assert (found.state, found.text[: len(text)]) == (state, text)
    assert bool(found.cure) == (case in ("no autoscaler", "scaled to zero", "broken", "launch fails"))


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_traces_are_read_as_far_as_the_user_may_read_them(server: ApiServer) -> None:
    async with connected(server) as admin, connected(server, "nobody") as nobody:
        assert buying_of(POD, await read_buying_facts(admin, "ml", "train")).state == "none-installed"
        assert not (await read_buying_facts(nobody, "ml", "train")).known
        for definition in karpenter_crds():
            await admin.apply(definition, "test", resource=resource_of(definition))
        for name in ("ml", "gpu-operator"):
            meta = {"metadata": {"name": name}}
            await admin.request("POST", "/api/v1/namespaces", None, {"apiVersion": "v1", "kind": "Namespace", **meta})
        template = {
            "metadata": {"labels": {"a": "b"}},
            "spec": {
                "containers": [{"name": "main", "image": "i", "env": [{"name": "AWS_REGION", "value": "eu-west-1"}]}]
            },
        }
        autoscaler = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": names.AUTOSCALER_NAME, "namespace": "gpu-operator"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
        }
        await admin.request("POST", "/apis/apps/v1/namespaces/gpu-operator/deployments", None, autoscaler)
        found = buying_of(POD, await read_buying_facts(admin, "ml", "train"))
        assert (found.state, found.autoscaler) == ("not-running", PLACE)
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "one", "namespace": "ml"},
            "involvedObject": {"kind": "Pod", "name": "train", "namespace": "ml", "uid": "1"},
            "reason": "Nominated",
            "message": NOMINATED.message,
            "type": "Normal",
            "lastTimestamp": "2026-11-23T00:00:00Z",
            "source": {"component": names.AUTOSCALER_NAME},
        }
        await admin.request("POST", "/api/v1/namespaces/ml/events", None, event)
        body = {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {"name": "gpu-1"},
            "spec": {
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"},
                "requirements": [{"key": "a", "operator": "Exists"}],
            },
        }
        await admin.request("POST", NodeClaim.RESOURCE.path(), None, body)
        for pod in ("train", ""):
            found = buying_of(POD, await read_buying_facts(admin, "ml", pod))
            assert (found.state, found.claim) == ("coming", "gpu-1")


def test_the_page_says_it_first() -> None:
    what = Explanation("ml/train", "waiting", asks="1 GPU", buying=buying_of(POD, facts(place="")))
    lines = page(what, Console(io.StringIO(), io.StringIO())).splitlines()
    assert lines[1:5] == [
        "",
        " ! no autoscaler is installed: no pool buys anything",
        "   cure   gpuplane install --autoscaler --cluster-name NAME",
        "",
    ]
