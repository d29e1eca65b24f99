"""Nodes that a pod may run on, and the messages for the other nodes."""

from __future__ import annotations

import msgspec
import pytest

from kubekit.scheduling.decide import find, fit_error


def term(key, operator, *values):
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}]}


def required_node(selector):
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}


def company(kind, labels, key="kubernetes.io/hostname"):
    rule = {"labelSelector": {"matchLabels": labels}, "topologyKey": key}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}


def names(found):
    return sorted(node.name for node in found.feasible)


def verdict(world, pod):
    return fit_error(find(pod, world.cache))


def test_the_reasons_are_counted_and_worded_as_kube_scheduler_does(world):
    world.node("a", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    world.node("b")
    world.node("c")
    text = verdict(world, world.pod("p", requests={"nvidia.com/gpu": "1"}))
    assert text == "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient nvidia.com/gpu."


def test_without_nodes_the_message_says_so(world):
    assert verdict(world, world.pod("p")) == "no nodes available to schedule pods"


def test_all_short_resources_are_named(world):
    world.node("a", allocatable={"pods": "0"})
    text = verdict(world, world.pod("p", requests={"cpu": "5", "memory": "9Gi"}))
    assert text == "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 1 Too many pods."


def test_what_placed_pods_hold_is_not_free(world):
    world.node("a", allocatable={"nvidia.com/gpu": "8"})
    world.placed("one", "a", requests={"nvidia.com/gpu": "5"})
    assert names(find(world.pod("fits", requests={"nvidia.com/gpu": "3"}), world.cache)) == ["a"]
    assert not find(world.pod("does-not", requests={"nvidia.com/gpu": "4"}), world.cache).feasible


def test_cordoned_nodes_take_only_pods_that_tolerate_it(world):
    world.node("a", unschedulable=True)
    assert "1 node(s) were unschedulable" in verdict(world, world.pod("p"))
    tolerant = world.pod("p", tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])
    assert names(find(tolerant, world.cache)) == ["a"]


@pytest.mark.parametrize(
    ("toleration", "passes"),
    [
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "k", "value": "other"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_tolerations(world, toleration, passes):
    world.node("a", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
    assert bool(find(world.pod("p", tolerations=[toleration]), world.cache).feasible) is passes


def test_prefer_no_schedule_keeps_nobody_out(world):
    world.node("a", taints=[{"key": "k", "effect": "PreferNoSchedule"}])
    assert names(find(world.pod("p"), world.cache)) == ["a"]


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        ("In", ["h100", "t4"], ["a", "b"]),
        ("NotIn", ["h100"], ["b", "c"]),
        ("Exists", [], ["a", "b"]),
        ("DoesNotExist", [], ["c"]),
    ],
)
def test_node_affinity_operators(world, operator, values, expected):
    world.node("a", labels={"gpu": "h100"})
    world.node("b", labels={"gpu": "t4"})
    world.node("c")
    pod = world.pod("p", affinity=required_node(term("gpu", operator, *values)))
    assert names(find(pod, world.cache)) == expected


@pytest.mark.parametrize(("operator", "expected"), [("Gt", ["b"]), ("Lt", ["a"])])
def test_node_affinity_compares_numbers(world, operator, expected):
    world.node("a", labels={"count": "2"})
    world.node("b", labels={"count": "10"})
    world.node("c", labels={"count": "many"})
    assert names(find(world.pod("p", affinity=required_node(term("count", operator, "4"))), world.cache)) == expected


def test_an_empty_node_selector_term_matches_nothing(world):
    world.node("a")
    pod = world.pod("p", affinity=required_node({"nodeSelectorTerms": [{}]}))
    assert "didn't match Pod's node affinity/selector" in verdict(world, pod)


def test_a_daemon_pod_asks_its_own_node_only(world):
    world.node("a")
    world.node("b", allocatable={"pods": "0"})
    world.node("c")
    fields = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}
    text = verdict(world, world.pod("p", affinity=required_node(fields)))
    assert text == "0/3 nodes are available: 1 Too many pods, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]."


def test_host_ports_conflict_by_address_protocol_and_number(world):
    world.node("a")
    world.placed("one", "a", ports=[{"hostPort": 80, "hostIP": "10.0.0.1"}])

    def fits(**port):
        return bool(find(world.pod("p", ports=[port]), world.cache).feasible)

    assert not fits(hostPort=80)
    assert not fits(hostPort=80, hostIP="10.0.0.1")
    assert fits(hostPort=80, hostIP="10.0.0.2")
    assert fits(hostPort=80, protocol="UDP")
    assert fits(hostPort=81)
    sidecar = {"name": "proxy", "image": "proxy", "ports": [{"hostPort": 80}], "restartPolicy": "Always"}
    assert not find(world.pod("p", initContainers=[sidecar]), world.cache).feasible
    assert find(world.pod("p", initContainers=[{**sidecar, "restartPolicy": None}]), world.cache).feasible


def test_pod_affinity_follows_company_and_the_first_may_go_anywhere(world):
    for name, zone in (("a", "x"), ("b", "x"), ("c", "y")):
        world.node(name, labels={"zone": zone})
    rule = company("podAffinity", {"app": "web"}, "zone")
    member = {"labels": {"app": "web"}, "affinity": rule}
    assert names(find(world.pod("first", **member), world.cache)) == ["a", "b", "c"]
    stranger = world.pod("stranger", affinity=rule)
    assert "3 node(s) didn't match pod affinity rules" in verdict(world, stranger)
    world.placed("first", "a", **member)
    assert names(find(stranger, world.cache)) == ["a", "b"]


def test_anti_affinity_works_in_both_directions(world):
    world.node("a")
    world.node("b")
    rule = company("podAntiAffinity", {"app": "web"})
    world.placed("one", "a", labels={"app": "web"}, affinity=rule)
    assert names(find(world.pod("two", labels={"app": "web"}), world.cache)) == ["b"]
    world.placed("two", "b", labels={"app": "web"})
    text = verdict(world, world.pod("three", affinity=rule))
    assert text == "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."
    four = find(world.pod("four", labels={"app": "web"}), world.cache)
    assert names(four) == ["b"]
    assert four.failures["a"].reasons == ("node(s) didn't satisfy existing pods anti-affinity rules",)


def test_affinity_looks_into_namespaces_by_name_and_by_label(world):
    world.node("a")
    world.node("b")
    world.cache.set_namespace("team", {"kind": "team"})
    world.placed("one", "a", namespace="team", labels={"app": "web"})
    rule = company("podAffinity", {"app": "web"})
    terms = rule["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert not find(world.pod("p", affinity=rule), world.cache).feasible
    terms[0]["namespaces"] = ["team"]
    assert names(find(world.pod("p", affinity=rule), world.cache)) == ["a"]
    terms[0]["namespaces"] = []
    terms[0]["namespaceSelector"] = {"matchLabels": {"kind": "team"}}
    assert names(find(world.pod("p", affinity=rule), world.cache)) == ["a"]
    world.cache.set_namespace("team", {})
    assert not find(world.pod("p", affinity=rule), world.cache).feasible


def spread(skew=1, key="zone", **more):
    return [
        {
            "maxSkew": skew,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
            **more,
        }
    ]


def test_topology_spread_keeps_the_skew(world):
    world.node("a", labels={"zone": "x"})
    world.node("b", labels={"zone": "y"})
    world.node("c")
    web = {"labels": {"app": "web"}}
    world.placed("one", "a", **web)
    pod = world.pod("two", **web, topologySpreadConstraints=spread())
    assert names(find(pod, world.cache)) == ["b"]
    assert find(pod, world.cache).failures["c"].reasons == (
        "node(s) didn't match pod topology spread constraints (missing required label)",
    )
    world.placed("two", "b", **web)
    assert names(find(world.pod("three", **web, topologySpreadConstraints=spread()), world.cache)) == ["a", "b"]


def test_topology_spread_waits_for_enough_domains(world):
    world.node("a", labels={"zone": "x"})
    web = {"labels": {"app": "web"}}
    world.placed("one", "a", **web)
    pod = world.pod("two", **web, topologySpreadConstraints=spread(minDomains=2))
    assert "1 node(s) didn't match pod topology spread constraints" in verdict(world, pod)


def test_topology_spread_does_not_count_pods_that_are_leaving(world):
    world.node("a", labels={"zone": "x"})
    world.node("b", labels={"zone": "y"})
    leaving = world.pod("one", labels={"app": "web"}, nodeName="a")
    world.cache.place(msgspec.structs.replace(leaving, terminating=True))
    pod = world.pod("two", labels={"app": "web"}, topologySpreadConstraints=spread())
    assert names(find(pod, world.cache)) == ["a", "b"]


def test_topology_spread_with_an_empty_selector_counts_no_pod(world):
    """As kube-scheduler does, though the selector matches the pod itself."""
    world.node("a", labels={"zone": "x"})
    world.node("b", labels={"zone": "y"})
    for name in ("one", "two"):
        world.placed(name, "a")
    pod = world.pod("three", topologySpreadConstraints=spread(labelSelector={}))
    assert names(find(pod, world.cache)) == ["a", "b"]
    few_domains = spread(labelSelector={}, minDomains=3, maxSkew=1)
    assert names(find(world.pod("four", topologySpreadConstraints=few_domains), world.cache)) == ["a", "b"]


def resized(actual, *conditions):
    statuses = [{"name": "main", "resources": {"requests": actual}, "allocatedResources": actual}]
    return {"containerStatuses": statuses, "conditions": list(conditions)}


@pytest.mark.parametrize(
    ("wanted", "had", "reason", "free"),
    [
        ("1", "1", "", "3"),
        ("1", "3", "", "1"),  # smaller, once the kubelet has done that
        ("3", "1", "Deferred", "1"),
        ("9e18", "1", "Infeasible", "3"),
    ],
)
def test_a_container_holds_what_it_had_until_its_resize_is_carried_out(world, wanted, had, reason, free):
    world.node("a")
    pending = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    world.placed("one", "a", requests={"cpu": wanted}, status=resized({"cpu": had}, *pending))
    assert find(world.pod("fits", requests={"cpu": free}), world.cache).feasible
    assert not find(world.pod("more", requests={"cpu": f"{free}.5"}), world.cache).feasible
