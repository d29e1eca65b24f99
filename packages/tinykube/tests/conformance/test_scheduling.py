"""The nodes of pods, and the messages about pods that fit no node."""

from __future__ import annotations

import pytest

NOT_READY = "node.kubernetes.io/not-ready"


def scheduled(found):
    return [c for c in (found.get("status") or {}).get("conditions") or () if c["type"] == "PodScheduled"]


def until_bound(here, name):
    return here.until(here.core(f"pods/{name}"), lambda found: found["spec"].get("nodeName"))["spec"]["nodeName"]


def until_refused(here, name):
    """The condition that the scheduler wrote."""
    found = here.until(here.core(f"pods/{name}"), lambda found: any(c["status"] == "False" for c in scheduled(found)))
    return scheduled(found)


def event(here, name, reason):
    """One event about a pod, without times and counts."""
    selector = f"involvedObject.name={name},reason={reason}"
    (found, *_) = here.until_list(here.core("events"), lambda items: items, fieldSelector=selector)
    kept = {
        k: v
        for k, v in found.items()
        if k not in ("metadata", "eventTime", "firstTimestamp", "lastTimestamp", "series")
    }
    kept["involvedObject"].pop("resourceVersion", None)
    kept["reportingInstance"] = kept["reportingInstance"] and "INSTANCE"
    return kept


def test_bindings(here):
    node = here.node("a")
    pods = here.core("pods")
    bound = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "annotations": {"n": "1"}, "labels": {"l": "1"}},
        "target": {"kind": "Node", "name": node},
    }
    here.made(pods, here.pod("p", schedulerName="nobody"))
    version = here.get(f"{pods}/p")["metadata"]["resourceVersion"]
    wrong = {**bound, "metadata": {"name": "p", "uid": "00000000-0000-4000-8000-000000000000"}}
    here.see("a wrong uid", here.create(f"{pods}/p/binding", wrong))
    here.see(
        "a stale version",
        here.create(f"{pods}/p/binding", {**bound, "metadata": {"name": "p", "resourceVersion": "1"}}),
    )
    here.see("no target", here.create(f"{pods}/p/binding", {**bound, "target": {"kind": "Node"}}))
    here.see("another kind", here.create(f"{pods}/p/binding", {**bound, "target": {"kind": "Pod", "name": "x"}}))
    here.see("another name", here.create(f"{pods}/q/binding", bound))
    here.see("no such pod", here.create(f"{pods}/q/binding", {**bound, "metadata": {"name": "q"}}))
    with here.watch(pods, resourceVersion=version, fieldSelector="metadata.name=p") as events:
        here.see("bound", here.create(f"{pods}/p/binding", bound))
        seen = next(events)["object"]
        here.see(
            "one write",
            {
                "node": seen["spec"]["nodeName"],
                "metadata": {k: seen["metadata"].get(k) for k in ("annotations", "labels")},
                "status": scheduled(seen),
            },
        )
    here.see("again", here.create(f"{pods}/p/binding", bound))
    here.made(pods, here.pod("gated", schedulingGates=[{"name": "x.example.com/y"}]))
    here.see("gates", here.create(f"{pods}/gated/binding", {**bound, "metadata": {"name": "gated"}}))
    here.see("a gated pod says so", here.until(f"{pods}/gated", scheduled)["status"])
    here.made(pods, here.pod("r", schedulerName="nobody"))
    here.see("the old way", here.create(here.core("bindings"), {**bound, "metadata": {"name": "r"}}))
    here.see("nodeName is not patched", here.patch(f"{pods}/gated", {"spec": {"nodeName": node}}))


@pytest.mark.alone
def test_no_nodes(here):
    here.made(here.core("pods"), here.pod("p"))
    here.see("condition", until_refused(here, "p"))
    here.see("event", event(here, "p", "FailedScheduling"))


UNFIT = {
    "selector": {"nodeSelector": {"no": "such"}},
    "cpu": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100"}}}]},
    "gpu": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "9"}}}]},
    "several": {
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100", "memory": "1Ti"}}}]
    },
    "affinity": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "run", "operator": "DoesNotExist"}]}]
                }
            }
        }
    },
    "pod affinity": {
        "affinity": {
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {"matchLabels": {"no": "such"}}, "topologyKey": "kubernetes.io/hostname"}
                ]
            }
        }
    },
    "own labels apart": {
        "nodeName": "",
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {}, "topologyKey": "run"}]
            }
        },
    },
    "gone node": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["nosuch"]}]}
                    ]
                }
            }
        }
    },
}


@pytest.mark.alone
@pytest.mark.parametrize("what", UNFIT)
def test_what_does_not_fit(here, what):
    """Three nodes: one plain, one tainted, one cordoned."""
    here.node("plain", capacity={"nvidia.com/gpu": "2"})
    here.node("tainted", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    cordoned = here.node("cordoned")
    here.patch(f"/api/v1/nodes/{cordoned}", {"spec": {"unschedulable": True}})
    here.until(f"/api/v1/nodes/{cordoned}", lambda found: found["spec"].get("taints"))
    if what == "own labels apart":
        here.made(here.core("pods"), here.pod("first", labels={"a": "b"}))
        until_bound(here, "first")
    here.made(here.core("pods"), here.pod("p", **UNFIT[what]))
    here.see("condition", until_refused(here, "p"))
    here.see("event", event(here, "p", "FailedScheduling"))


@pytest.mark.alone
def test_a_claim_that_is_not_there(here):
    here.node("plain")
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "nosuch"}}
    here.made(here.core("pods"), here.pod("p", volumes=[volume]))
    here.see("condition", scheduled(here.until(here.core("pods/p"), scheduled)))


@pytest.mark.alone
def test_what_fits(here):
    here.node("plain", capacity={"nvidia.com/gpu": "2"}, labels={"zone": "a"})
    here.node("tainted", taints=[{"key": "gpu", "effect": "NoSchedule"}], labels={"zone": "b"})
    here.made(here.core("pods"), here.pod("p"))
    here.see("the plain one", until_bound(here, "p"))
    here.see("event", event(here, "p", "Scheduled"))
    here.made(
        here.core("pods"), here.pod("t", tolerations=[{"key": "gpu", "operator": "Exists"}], nodeSelector={"zone": "b"})
    )
    here.see("tolerated", until_bound(here, "t"))
    gpu = [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]
    here.made(here.core("pods"), here.pod("g", containers=gpu))
    here.see("the one with GPUs", until_bound(here, "g"))
    here.made(here.core("pods"), here.pod("h", containers=gpu))
    here.see("no more", until_refused(here, "h"))
    here.delete(here.core("pods/g"))
    here.see("until they are free", until_bound(here, "h"))
    found = here.until(here.core("pods/p"), lambda found: found["status"].get("phase") == "Running")
    here.see("conditions", sorted(c["type"] for c in found["status"]["conditions"]))
    here.see(
        "qos",
        [
            here.get(here.core(f"pods/{name}"))["status"]["qosClass"]
            for name in "ptg"
            if here.get(here.core(f"pods/{name}")).status == 200
        ],
    )


@pytest.mark.alone
def test_preemption(here):
    here.node("a", capacity={"nvidia.com/gpu": "1"})
    priority = here.name("high")
    here.made("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": priority}, "value": 1000})
    gpu = [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    here.made(here.core("pods"), here.pod("low", containers=gpu))
    until_bound(here, "low")
    version = here.get(here.core("pods"))["metadata"]["resourceVersion"]
    for _ in range(2000):
        answer = here.create(here.core("pods"), here.pod("high", containers=gpu, priorityClassName=priority))
        if answer.status == 201:
            break
    here.see("priority", [answer["spec"][k] for k in ("priority", "preemptionPolicy")])
    until_bound(here, "high")
    with here.watch(here.core("pods"), resourceVersion=version, fieldSelector="metadata.name=low") as events:
        marked = next(e["object"] for e in events if "deletionTimestamp" in e["object"]["metadata"])
    here.see("the victim's condition", [c for c in marked["status"]["conditions"] if c["type"] == "DisruptionTarget"])
    here.see("event", event(here, "low", "Preempted"))


def test_evictions(here):
    here.node("a")
    pods = here.core("pods")
    template = {"metadata": {"labels": {"a": "b"}}, "spec": here.pod("x")["spec"]}
    here.made(
        here.apps("replicasets"),
        {
            "metadata": {"name": "r"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template},
        },
    )
    running = here.until_list(
        pods, lambda items: sum(i["status"].get("phase") == "Running" for i in items) == 2, labelSelector="a=b"
    )
    where = here.at("policy/v1", "poddisruptionbudgets")
    here.made(where, {"metadata": {"name": "b"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"a": "b"}}}})
    found = here.until(
        f"{where}/b",
        lambda found: (found.get("status") or {}).get("expectedPods") == 2 and found["status"]["currentHealthy"] == 2,
    )
    here.see("status", {**found["status"], "conditions": found["status"]["conditions"]})
    name = running[0]["metadata"]["name"]
    evict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    refused = here.create(f"{pods}/{name}/eviction", evict)
    here.see("refused", refused)
    here.see("retry after", refused.headers.get("retry-after"))
    here.patch(f"{where}/b", {"spec": {"minAvailable": 1}})
    here.until(f"{where}/b", lambda found: found["status"]["disruptionsAllowed"] == 1)
    here.see("dry", here.create(f"{pods}/{name}/eviction", {**evict, "deleteOptions": {"dryRun": ["All"]}}))
    here.see("allowed", here.create(f"{pods}/{name}/eviction", evict))
    here.see("no such pod", here.create(f"{pods}/nosuch/eviction", {**evict, "metadata": {"name": "nosuch"}}))
    here.see("another name", here.create(f"{pods}/nosuch/eviction", evict))
    here.made(where, {"metadata": {"name": "c"}, "spec": {"minAvailable": 0, "selector": {"matchLabels": {"a": "b"}}}})
    left = here.until_list(
        pods, lambda items: sum(i["status"].get("phase") == "Running" for i in items) == 2, labelSelector="a=b"
    )
    name = left[0]["metadata"]["name"]
    here.see("two budgets", here.create(f"{pods}/{name}/eviction", {**evict, "metadata": {"name": name}}))
    here.delete(here.apps("replicasets/r"))
