"""Nodes that the cluster's pools would buy for a waiting pod, as `gpuplane explain` prints them."""

from __future__ import annotations

import copy
import json
import re
import shlex
from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.api.karpenter import (
    DeclaredPool,
    EC2NodeClass,
    NodePool,
    PoolRequirement,
    Provisioner,
    declared_pool,
)
from gpuplane.api.karpenter_crds import karpenter_crds
from gpuplane.api.nodeoverlay import NodeOverlay
from gpuplane.explain.answer import PoolAnswer
from gpuplane.explain.pool_reading import read_pool_facts
from gpuplane.explain.pool_trouble import PoolTrouble
from gpuplane.explain.pools import PoolFacts, pool_answers
from gpuplane.operator.installation import resource_of
from kubekit.api.core import Taint
from kubekit.kube import Client
from packages.gpuplane.tests.cli.explained_pools import (
    CLASS_SPEC,
    GUARDED,
    ON_DEMAND,
    SHARING,
    TYPES,
    declared_object,
    not_ready,
    pod,
    pool,
    printed,
)
from tests.support.api_client import connected
from tinykube.apiserver.server import ApiServer


def test_each_pool_says_what_it_would_buy_or_which_rule_says_no() -> None:
    full = pool("full", limits={"cpu": 4}, used={"cpu": "4"})
    heavy = pool("heavy", weight=5)
    found = pool_answers(pod(), PoolFacts([GUARDED, full, pool("plain"), heavy], sharing=SHARING))
    assert [answer.pool for answer in found] == ["heavy", "plain", "full", "guarded"]
    assert found[1] == PoolAnswer("plain", "g4dn.xlarge", "on-demand", 0.526)
    assert "cpu" in found[2].why_not and "limit" in found[2].why_not
    assert found[3].why_not == "the pod does not tolerate the taint nvidia.com/gpu:NoSchedule"


def test_replicas_are_known_before_the_node_exists() -> None:
    shared = pool("shared", labels={"nvidia.com/device-plugin.config": "shared"})
    (whole,) = pool_answers(pod(4), PoolFacts([pool("plain")], sharing=SHARING))
    (replicas,) = pool_answers(pod(4), PoolFacts([shared], sharing=SHARING))
    assert (whole.type, replicas.type) == ("g4dn.12xlarge", "g4dn.xlarge")


def test_the_page_lists_them_also_where_there_is_no_node() -> None:
    found = pool_answers(pod(), PoolFacts([GUARDED, pool("plain")], sharing=SHARING))
    assert printed(found) == [
        " POOL      BUYS",
        " plain     g4dn.xlarge on-demand, 0.526 $/h",
        " guarded   ✗ the pod does not tolerate the taint nvidia.com/gpu:NoSchedule",
        "",
        "   Prices are on-demand, of the built-in list (2026-07-20, us-east-1).",
    ]


def test_the_preferences_that_a_pool_does_not_keep_are_listed() -> None:
    terms = [
        {"weight": weight, "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}}
        for weight, key, value in ((9, "team", "red"), (1, "node.kubernetes.io/instance-type", "g4dn.12xlarge"))
    ]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    soft = pool("soft", Taint(key="old", effect="PreferNoSchedule"))
    found = pool_answers(pod(affinity=affinity), PoolFacts([pool("plain"), soft], sharing=SHARING))
    assert printed(found)[1:7] == [
        " soft    g4dn.xlarge on-demand, 0.526 $/h",
        "         gives up node affinity: team In red",
        "         gives up node affinity: node.kubernetes.io/instance-type In g4dn.12xlarge",
        "         gives up a node without PreferNoSchedule taints",
        " plain   g4dn.12xlarge on-demand, 3.912 $/h",
        "         gives up node affinity: team In red",
    ]
    facts = PoolFacts([pool("plain")], sharing=SHARING, respect_preferences=False)
    assert pool_answers(pod(affinity=affinity), facts) == (PoolAnswer("plain", "g4dn.xlarge", "on-demand", 0.526),)


# -- the pool's own region, and spot -----------------------------------------------------------------------------------

REGION, ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
SPOT = PoolRequirement(key="karpenter.sh/capacity-type", operator="In", values=("spot",))
EITHER = PoolRequirement(key="karpenter.sh/capacity-type", operator="In", values=("spot", "on-demand"))


def requiring(*requirements: PoolRequirement) -> DeclaredPool:
    return DeclaredPool("gpu", requirements=(TYPES, *requirements))


def in_(key: str, *values: str) -> PoolRequirement:
    return PoolRequirement(key=key, operator="In", values=values)


def test_a_pool_of_spot_buys_for_at_most_the_price_of_on_demand() -> None:
    found = pool_answers(pod(), PoolFacts([requiring(SPOT)], sharing=SHARING))
    assert found == (PoolAnswer("gpu", "g4dn.xlarge", "spot", 0.526, spot=True),)
    assert printed(found)[1:] == [
        " gpu    g4dn.xlarge spot, at most 0.526 $/h",
        "",
        "   Prices are on-demand, of the built-in list (2026-07-20, us-east-1). Those of spot are known to the cloud"
        " only.",
    ]
    found = pool_answers(pod(), PoolFacts([requiring(EITHER)], sharing=SHARING))
    assert printed(found)[1] == " gpu    g4dn.xlarge on-demand, 0.526 $/h; spot is allowed and costs less"


@pytest.mark.parametrize(
    "requirement", [in_(REGION, "eu-west-1"), in_(ZONE, "eu-west-1b")], ids=["by its region", "by its zone"]
)
def test_a_pool_buys_in_its_own_region_at_a_price_that_is_not_known(requirement: PoolRequirement) -> None:
    found = pool_answers(pod(), PoolFacts([requiring(ON_DEMAND, requirement)], sharing=SHARING))
    assert (found[0].type, found[0].region) == ("g4dn.xlarge", "eu-west-1")
    assert "on-demand in eu-west-1 are known to the cloud only" in printed(found)[-1]


def test_the_region_of_the_autoscaler_decides_which_pods_get_a_node() -> None:
    facts = PoolFacts([requiring(ON_DEMAND)], sharing=SHARING, region="eu-central-1")
    near, far = pod(nodeSelector={ZONE: "eu-central-1a"}), pod(nodeSelector={ZONE: "us-east-1a"})
    assert pool_answers(near, facts)[0].type == "g4dn.xlarge"
    assert pool_answers(far, facts)[0].why_not == (
        "topology.kubernetes.io/zone: the pod wants In us-east-1a, and no node of the pool would have it"
    )
    elsewhere = PoolFacts([requiring(ON_DEMAND, in_(REGION, "us-west-2"))], sharing=SHARING, region="eu-central-1")
    assert pool_answers(pod(), elsewhere)[0].why_not == (
        "topology.kubernetes.io/region: the pool has In us-west-2, and nodes are bought in eu-central-1"
    )


def test_the_requirement_that_excludes_every_type_is_named() -> None:
    found = pool_answers(pod(), PoolFacts([requiring(ON_DEMAND, in_("kubernetes.io/arch", "arm64"))], sharing=SHARING))
    assert found[0].why_not.startswith("node.kubernetes.io/instance-type: the pool has In g4dn.xlarge, g4dn.12xlarge")


# -- cures -------------------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[dict[str, Any], DeclaredPool]] = {
    "a taint": (pod(), GUARDED),
    "a label": (pod(nodeSelector={"disk": "ssd"}), pool("plain")),
    "a label, a taint and a limit": (
        pod(nodeSelector={"disk": "ssd"}),
        msgspec.structs.replace(GUARDED, limits={"cpu": 2}),
    ),
    "node affinity": (
        pod(
            affinity={
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
                        ]
                    }
                }
            }
        ),
        pool("plain"),
    ),
    "a limit of a Provisioner": (pod(), pool("plain", kind="Provisioner", limits={"cpu": 6}, used={"cpu": "4"})),
    "a limit of nodes": (pod(), pool("plain", limits={"nodes": 1}, used={"nodes": "1"})),
    "too large for its types": (pod(8), pool("plain")),
    "too large for any type": (pod(40), pool("plain")),
}


@pytest.mark.parametrize("case", CASES)
async def test_each_cure_makes_the_pool_buy_a_node(server: ApiServer, case: str) -> None:
    asked, declared = CASES[case]
    [answer] = pool_answers(asked, PoolFacts([declared], sharing=SHARING))
    assert answer.why_not and not answer.type
    assert answer.cures, answer
    async with connected(server) as client:
        for definition in karpenter_crds():
            await client.apply(definition, "test", resource=resource_of(definition))
        for cure in answer.cures:
            kind = Provisioner if declared.kind == "Provisioner" else NodePool
            await client.request("POST", kind.RESOURCE.path(), None, as_object(declared))
            changed = copy.deepcopy(asked)
            for change in cure.change.split("; "):
                await carry_out(client, kind, changed, change)
            now = declared_pool(await client.get(kind, declared.name))
            # The status is the autoscaler's to write, so it is not part of the object that was made here.
            after = msgspec.structs.replace(now, used=declared.used, class_kind="", class_name="", machines={})
            [then] = pool_answers(changed, PoolFacts([after], sharing=SHARING))
            assert then.type and cure.place.startswith(f"{then.type} {then.capacity_type}"), (cure, then)
            await client.delete(kind, declared.name)


def as_object(declared: DeclaredPool) -> dict[str, Any]:
    requirements = [
        {"key": one.key, "operator": one.operator, "values": list(one.values)} for one in declared.requirements
    ]
    taints = [{"key": taint.key, "effect": taint.effect} for taint in declared.taints]
    if declared.kind == "Provisioner":
        spec: dict[str, Any] = {
            "requirements": requirements,
            "taints": taints,
            "limits": {"resources": declared.limits},
            "provider": {"launchTemplate": "gpu", "subnetSelector": {"a": "b"}},
        }
        return {
            "apiVersion": "karpenter.sh/v1alpha5",
            "kind": "Provisioner",
            "metadata": {"name": declared.name},
            "spec": spec,
        }
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"}
    template = {"requirements": requirements, "taints": taints, "nodeClassRef": reference}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": declared.name},
        "spec": {"limits": declared.limits, "template": {"spec": template}},
    }


async def carry_out(client: Client, kind: type[Any], asked: dict[str, Any], change: str) -> None:
    """Carry a change out as a person reads it: a command as it stands, else a change of the pod."""
    spec = asked["spec"]
    if change.startswith("kubectl "):
        words = shlex.split(change)
        assert words[:3] == ["kubectl", "patch", kind.RESOURCE.kind.lower()] and words[4::2] == ["--type", "-p"]
        await client.patch(kind, words[3], json.loads(words[7]), type=words[5])
    elif found := re.fullmatch(r"tolerate (\S+):(\S+)", change):
        spec.setdefault("tolerations", []).append({"key": found[1], "operator": "Exists", "effect": found[2]})
    elif found := re.fullmatch(r"drop (\S+)=(\S+) of the nodeSelector", change):
        assert spec["nodeSelector"].pop(found[1]) == found[2]
    elif found := re.fullmatch(r"drop (\S+) of the node affinity", change):
        del spec["affinity"]
    elif found := re.fullmatch(r"ask (\d+) instead of (\d+) GPUs", change):
        limits = spec["containers"][0]["resources"]["limits"]
        assert limits["nvidia.com/gpu"] == int(found[2])
        limits["nvidia.com/gpu"] = int(found[1])
    else:
        pytest.fail(f"nobody could carry out {change!r}")


def test_every_rule_is_named_one_after_the_other() -> None:
    asked, declared = CASES["a label, a taint and a limit"]
    [answer] = pool_answers(asked, PoolFacts([declared], sharing=SHARING))
    assert (answer.why_not, *answer.also_not) == (
        "the pod does not tolerate the taint nvidia.com/gpu:NoSchedule",
        "disk: the pod wants In ssd, and no node of the pool would have it",
        "the limit cpu 2 of the pool is reached",
    )
    assert printed((answer,))[4:7] == [
        "           cure   tolerate nvidia.com/gpu:NoSchedule; drop disk=ssd of the nodeSelector; kubectl patch"
        """ nodepool guarded --type merge -p '{"spec": {"limits": {"cpu": "4"}}}'""",
        "                  buys g4dn.xlarge on-demand, 0.526 $/h",
        "",
    ]


def test_a_pod_that_names_another_pool_is_not_told_to_leave_it() -> None:
    asked = pod(nodeSelector={"karpenter.sh/nodepool": "other"})
    [answer] = pool_answers(asked, PoolFacts([pool("plain")], sharing=SHARING))
    assert answer.why_not and not answer.cures


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_pools_are_read_with_the_daemonsets_that_take_a_part_of_their_nodes(server: ApiServer) -> None:
    labels = {"app": "agent"}
    requests = {"requests": {"cpu": "3500m"}}
    containers = [{"name": "main", "image": "agent", "resources": requests}]
    daemons = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }
    provisioner: dict[str, Any] = {
        "apiVersion": Provisioner.RESOURCE.api_version,
        "kind": "Provisioner",
        "metadata": {"name": "gpu"},
        "spec": {
            "provider": {"launchTemplate": "gpu", "subnetSelector": {"a": "b"}},
            "requirements": [{"key": TYPES.key, "operator": "In", "values": ["g4dn.xlarge"]}],
        },
    }
    async with connected(server) as admin, connected(server, "nobody") as nobody:
        assert await read_pool_facts(admin) is None
        for definition in karpenter_crds():
            await admin.apply(definition, "test", resource=resource_of(definition))
        await admin.request("POST", Provisioner.RESOURCE.path(), None, provisioner)
        facts = await read_pool_facts(admin)
        assert facts is not None and [one.name for one in facts.pools] == ["gpu"]
        assert pool_answers(pod(), facts)[0].type == "g4dn.xlarge"
        await admin.request("POST", "/apis/apps/v1/namespaces/default/daemonsets", None, daemons)
        facts = await read_pool_facts(admin)
        assert facts is not None
        busy = pod()
        busy["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
        assert "g4dn.xlarge" in pool_answers(busy, facts)[0].why_not
        assert await read_pool_facts(nobody) is None
        made = declared_object(metadata={"name": "new"})
        await admin.request("POST", NodePool.RESOURCE.path(), None, as_object(declared_pool(made)))
        facts = await read_pool_facts(admin)
        assert facts is not None and facts.troubles["new"].cure == "create the EC2NodeClass gpu"
        await admin.patch(NodePool, "new", {"status": not_ready("x; y")}, subresource="status")
        own = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": "gpu"}}
        await admin.request("POST", EC2NodeClass.RESOURCE.path(), None, {**own, "spec": CLASS_SPEC})
        facts = await read_pool_facts(admin)
        assert facts is not None and facts.troubles == {
            "new": PoolTrouble("the pool's condition Ready is False: x", "y")
        }
        facts = await read_pool_facts(admin)
        assert facts is not None and facts.overlays == [] and facts.respect_preferences


async def test_overlays_count_where_the_autoscaler_takes_them_and_found_them_sound(server: ApiServer) -> None:
    async with connected(server) as admin:
        for definition in karpenter_crds():
            await admin.apply(definition, "test", resource=resource_of(definition))
        await admin.request("POST", NodePool.RESOURCE.path(), None, as_object(pool("plain")))
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-operator"}}
        await admin.request("POST", "/api/v1/namespaces", None, space)
        settings = {"FEATURE_GATES": "NodeOverlay=true", "PREFERENCE_POLICY": "Ignore"}
        settings |= {"MIN_VALUES_POLICY": "BestEffort", "VM_MEMORY_OVERHEAD_PERCENT": "0.2"}
        environment = [{"name": name, "value": value} for name, value in settings.items()]
        container = {"name": "main", "image": "i", "env": environment}
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
        autoscaler = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": names.AUTOSCALER_NAME, "namespace": "gpu-operator"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
        }
        await admin.request("POST", "/apis/apps/v1/namespaces/gpu-operator/deployments", None, autoscaler)
        asked = {"key": TYPES.key, "operator": "In", "values": ["g4dn.xlarge"]}
        overlay = {
            "apiVersion": "karpenter.sh/v1alpha1",
            "kind": "NodeOverlay",
            "metadata": {"name": "contract"},
            "spec": {"requirements": [asked], "price": "0.25"},
        }
        await admin.request("POST", NodeOverlay.RESOURCE.path(), None, overlay)
        prices = []
        for status in ("False", "True"):
            condition = {"type": "ValidationSucceeded", "status": status, "reason": "x", "observedGeneration": 1}
            patch = {"status": {"conditions": [condition]}}
            await admin.patch(NodeOverlay, "contract", patch, subresource="status")
            facts = await read_pool_facts(admin)
            assert facts is not None
            assert not facts.respect_preferences
            assert facts.memory_overhead == 0.2 and all(one.relaxes_min_values for one in facts.pools)
            [answer] = pool_answers(pod(), msgspec.structs.replace(facts, troubles={}))
            prices.append(answer.price)
        assert prices == [0.526, 0.25]
