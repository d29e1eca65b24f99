"""Endpoints behind services, disruption budgets, events, and the loop that all controllers share."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tinykube.controllers.disruption import numbers
from tinykube.controllers.following import follow
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.worker import KeyWorker


async def pod(cluster, name, ip, ready=True, node="", **labels):
    ports = [{"name": "metrics", "containerPort": 9400}]
    spec = {"containers": [{"name": "m", "image": "x", "ports": ports}], **({"nodeName": node} if node else {})}
    made = await cluster.create("pods", {"metadata": {"name": name, "labels": labels}, "spec": spec})
    await cluster.run_pods(made, ready=ready)
    await cluster.set_status("pods", made, podIP=ip)
    return made


def endpoints(cluster):
    return cluster.registry.get("endpoints", "default", "web")


def slices(cluster):
    return cluster.registry.list("endpointslices", "default")


async def test_endpoints_are_the_ready_pods_behind_a_service(cluster):
    await cluster.create(
        "services",
        {
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "metrics"}]},
        },
    )
    await pod(cluster, "one", "10.0.0.1", app="web")
    await pod(cluster, "two", "10.0.0.2", ready=False, app="web")
    await pod(cluster, "other", "10.0.0.3", app="db")
    await cluster.settle()
    subset = endpoints(cluster)["subsets"][0]
    assert [a["ip"] for a in subset["addresses"]] == ["10.0.0.1"]
    assert [a["ip"] for a in subset["notReadyAddresses"]] == ["10.0.0.2"]
    assert subset["ports"] == [{"port": 9400, "protocol": "TCP"}]
    found = cluster.registry.list("endpointslices", "default")[0]
    assert [e["conditions"]["ready"] for e in found["endpoints"]] == [True, False]
    assert found["metadata"]["labels"]["kubernetes.io/service-name"] == "web"
    await cluster.registry.delete("pods", "default", "one", grace=0)
    await cluster.settle()
    assert "addresses" not in endpoints(cluster)["subsets"][0]
    await cluster.registry.delete("services", "default", "web")
    await cluster.settle()
    assert endpoints(cluster) is None
    assert cluster.registry.list("endpointslices", "default") == []


async def test_pods_with_a_subdomain_have_names_below_their_headless_service(cluster):
    spec = {"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 80}]}
    await cluster.create("services", {"metadata": {"name": "peers"}, "spec": spec})
    for name, more in (("web-0", {"hostname": "web-0", "subdomain": "peers"}), ("other", {"hostname": "other"})):
        body = {"metadata": {"name": name, "labels": {"app": "web"}}}
        body["spec"] = {"containers": [{"name": "m", "image": "x"}], **more}
        await cluster.run_pods(await cluster.create("pods", body))
    await cluster.settle()
    (found,) = slices(cluster)
    assert [endpoint.get("hostname") for endpoint in found["endpoints"]] == [None, "web-0"]
    assert found["metadata"]["labels"]["service.kubernetes.io/headless"] == ""
    (subset,) = cluster.registry.get("endpoints", "default", "peers")["subsets"]
    assert [address.get("hostname") for address in subset["addresses"]] == [None, "web-0"]


async def test_endpoints_of_services_without_a_selector_are_left_alone_and_copied_to_a_slice(cluster):
    await cluster.create("services", {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}})
    ports = [{"name": "http", "port": 8080}]
    body = {"metadata": {"name": "web", "labels": {"team": "ml"}}, "subsets": [{"addresses": [{"ip": "1.2.3.4"}]}]}
    body["subsets"][0]["ports"] = ports
    await cluster.create("endpoints", body)
    await cluster.settle()
    assert endpoints(cluster)["subsets"][0]["addresses"][0]["ip"] == "1.2.3.4"
    (made,) = slices(cluster)
    assert made["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    assert made["endpoints"] == [{"addresses": ["1.2.3.4"], "conditions": {"ready": True}}]
    assert made["metadata"]["labels"] == {
        "team": "ml",
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io",
    }
    change = {"subsets": [{"notReadyAddresses": [{"ip": "1.2.3.5"}], "ports": ports}]}
    await cluster.registry.patch("endpoints", "default", "web", change, "merge")
    await cluster.settle()
    (changed,) = slices(cluster)
    assert changed["metadata"]["name"] == made["metadata"]["name"]
    assert changed["endpoints"] == [{"addresses": ["1.2.3.5"], "conditions": {"ready": False}}]
    await cluster.registry.delete("endpoints", "default", "web")
    await cluster.settle()
    assert slices(cluster) == []


@pytest.mark.parametrize(
    "meta",
    [
        {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        {"annotations": {"control-plane.alpha.kubernetes.io/leader": "{}"}},
        {"name": "no-such-service"},
    ],
)
async def test_endpoints_that_are_no_pods_are_not_copied(cluster, meta):
    await cluster.create("services", {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}})
    subsets = [{"addresses": [{"ip": "1.2.3.4"}], "ports": [{"port": 80}]}]
    await cluster.create("endpoints", {"metadata": {"name": "web", **meta}, "subsets": subsets})
    await cluster.settle()
    assert slices(cluster) == []
    assert cluster.registry.list("endpoints", "default") != []


async def test_what_others_delete_or_change_is_made_again(cluster):
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    await cluster.create("services", {"metadata": {"name": "web"}, "spec": spec})
    await pod(cluster, "one", "10.0.0.1", app="web")
    await cluster.settle()
    (before,) = slices(cluster)
    await cluster.registry.delete("endpointslices", "default", before["metadata"]["name"])
    await cluster.registry.delete("endpoints", "default", "web")
    await cluster.settle()
    (after,) = slices(cluster)
    assert after["endpoints"] == before["endpoints"]
    assert endpoints(cluster)["subsets"][0]["addresses"][0]["ip"] == "10.0.0.1"
    await cluster.registry.patch("endpointslices", "default", after["metadata"]["name"], {"endpoints": []}, "merge")
    await cluster.settle()
    assert slices(cluster)[0]["endpoints"] == before["endpoints"]


async def test_a_pod_that_is_to_end_is_in_the_slice_until_it_has_ended(cluster):
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    await cluster.create("services", {"metadata": {"name": "web"}, "spec": spec})
    await pod(cluster, "one", "10.0.0.1", node="n1", app="web")
    await cluster.settle()
    await cluster.registry.delete("pods", "default", "one", grace=30)
    await cluster.settle()
    assert "subsets" not in endpoints(cluster)
    ((endpoint,),) = [one["endpoints"] for one in slices(cluster)]
    assert endpoint["conditions"] == {"ready": False, "serving": True, "terminating": True}
    await cluster.registry.delete("pods", "default", "one", grace=0)
    await cluster.settle()
    assert [one["endpoints"] for one in slices(cluster)] == [[]]


async def test_a_budget_says_how_many_pods_may_be_disrupted(cluster):
    await cluster.create(
        "poddisruptionbudgets",
        {"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}},
    )
    await pod(cluster, "one", "10.0.0.1", app="web")
    await pod(cluster, "two", "10.0.0.2", app="web")
    await cluster.settle()
    status = cluster.registry.get("poddisruptionbudgets", "default", "web")["status"]
    assert (status["currentHealthy"], status["desiredHealthy"], status["disruptionsAllowed"]) == (2, 1, 1)
    await cluster.registry.delete("pods", "default", "one", grace=0)
    await cluster.settle()
    status = cluster.registry.get("poddisruptionbudgets", "default", "web")["status"]
    assert status["disruptionsAllowed"] == 0
    assert status["conditions"][0]["reason"] == "InsufficientPods"


@pytest.mark.parametrize("plural", ["statefulsets", "replicationcontrollers"])
async def test_a_budget_counts_the_pods_that_their_owner_wants(cluster, plural):
    body = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "m", "image": "x"}]}}
    selector = {"app": "web"} if plural == "replicationcontrollers" else {"matchLabels": {"app": "web"}}
    await cluster.create(
        plural, {"metadata": {"name": "web"}, "spec": {"replicas": 4, "selector": selector, "template": body}}
    )
    budget = {"maxUnavailable": "25%", "selector": {"matchLabels": {"app": "web"}}}
    await cluster.create("poddisruptionbudgets", {"metadata": {"name": "web"}, "spec": budget})
    await cluster.settle()
    assert cluster.registry.get("poddisruptionbudgets", "default", "web")["status"]["expectedPods"] == 4


async def test_a_granted_eviction_counts_until_the_pod_goes_or_two_minutes_are_over(cluster):
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    made = await cluster.create("poddisruptionbudgets", {"metadata": {"name": "web"}, "spec": budget})
    for name in ("one", "two"):
        await pod(cluster, name, "10.0.0.1", app="web")
    await cluster.settle()
    granted = {"one": cluster.registry.now(), "gone": cluster.registry.now()}
    await cluster.set_status("poddisruptionbudgets", made, disruptedPods=granted)
    await cluster.settle(60)
    status = cluster.registry.get("poddisruptionbudgets", "default", "web")["status"]
    assert status["disruptedPods"] == {"one": granted["one"]}
    assert (status["currentHealthy"], status["disruptionsAllowed"]) == (1, 0)
    await cluster.settle(70)
    status = cluster.registry.get("poddisruptionbudgets", "default", "web")["status"]
    assert "disruptedPods" not in status
    assert status["disruptionsAllowed"] == 1


def test_budgets_in_percent_count_what_the_controllers_want():
    ready = {"metadata": {}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    assert numbers({"maxUnavailable": "50%"}, [ready] * 4, 4)["disruptionsAllowed"] == 2
    assert numbers({"minAvailable": "75%"}, [ready] * 3, 4)["disruptionsAllowed"] == 0
    assert numbers({"maxUnavailable": 0}, [ready] * 4, 4)["disruptionsAllowed"] == 0


# -- events ------------------------------------------------------------------------------------------------------------
async def test_the_same_event_again_raises_its_count(cluster):
    recorder = Recorder(cluster.registry, "tester")
    writing = asyncio.create_task(recorder.run())
    node = await cluster.node("a")
    for _ in range(3):
        recorder.record(node, "Node", "Odd", "something odd", "Warning")
        await cluster.settle()
    found = cluster.events("Odd")
    assert [(e["count"], e["metadata"]["namespace"]) for e in found] == [(3, "default")]
    assert found[0]["firstTimestamp"] < found[0]["lastTimestamp"]
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing


async def test_one_object_cannot_flood_the_events(cluster):
    recorder = Recorder(cluster.registry, "tester")
    writing = asyncio.create_task(recorder.run())
    node = await cluster.node("a")
    for turn in range(100):
        recorder.record(node, "Node", "Flood", f"message {turn}")
    await cluster.settle()
    assert len(cluster.events("Flood")) == 25
    await cluster.settle(301)
    recorder.record(node, "Node", "Flood", "another one")
    await cluster.settle()
    assert len(cluster.events("Flood")) == 26
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing


# -- the loop ----------------------------------------------------------------------------------------------------------
async def test_a_worker_looks_once_however_often_it_is_told_and_backs_off_on_errors(virtual_time):
    seen = []

    async def reconcile(key):
        seen.append((key, round(asyncio.get_running_loop().time(), 3)))
        if key == "bad" and len([k for k, _ in seen if k == "bad"]) < 4:
            raise ValueError("not yet")
        return 60.0 if key == "again" and len(seen) < 20 else None

    worker = KeyWorker("test", reconcile)
    for _ in range(5):
        worker.add("good")
    task = asyncio.create_task(worker.run())
    await asyncio.sleep(1)
    assert [key for key, _ in seen] == ["good"]
    seen.clear()
    start = asyncio.get_running_loop().time()
    worker.add("bad")
    await asyncio.sleep(1)
    assert [round(at - start, 3) for _, at in seen] == [0.0, 0.005, 0.015, 0.035]
    seen.clear()
    worker.add("again")
    await asyncio.sleep(125)
    assert [key for key, _ in seen] == ["again"] * 3
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_listener_that_fails_does_not_fail_the_write(cluster, caplog):
    def broken(event, obj, old):
        raise KeyError("nobody expected this")

    follow(cluster.registry, cluster.registry.resource("secrets"), broken)
    await cluster.create("secrets", {"metadata": {"name": "s"}})
    assert cluster.registry.get("secrets", "default", "s") is not None
    assert "secrets default/s was not followed" in caplog.text
