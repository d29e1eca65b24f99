"""The controllers of Deployments, DaemonSets and Jobs, with their conditions and events."""

from __future__ import annotations

import pytest


def template(here, image="busybox", **spec):
    return {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": image}], "nodeSelector": {"run": here.suffix}, **spec},
    }


def chosen(here, image="busybox", **spec):
    return {"selector": {"matchLabels": {"a": "b"}}, "template": template(here, image), **spec}


def told(here, reason, about):
    found = here.until_list(
        here.core("events"), lambda items: items, fieldSelector=f"reason={reason},involvedObject.kind={about}"
    )
    event = found[0]
    return {k: event.get(k) for k in ("message", "type", "source", "reportingComponent", "action")} | {
        "about": sorted(event["involvedObject"])
    }


def ready(count):
    return lambda found: (
        (found.get("status") or {}).get("readyReplicas") == count
        and found["status"]["observedGeneration"] == found["metadata"]["generation"]
        and found["status"].get("updatedReplicas") == count
        and found["status"].get("replicas") == count
    )


def test_a_deployment(here):
    here.node("a")
    path = here.apps("deployments/d")
    here.made(
        here.apps("deployments"),
        {"metadata": {"name": "d", "annotations": {"note": "x"}}, "spec": chosen(here, replicas=2)},
    )
    found = here.until(path, ready(2))
    here.see("annotations", found["metadata"]["annotations"])
    found = here.until(
        path,
        lambda found: (
            ready(2)(found) and any(c["reason"] == "NewReplicaSetAvailable" for c in found["status"]["conditions"])
        ),
    )
    here.see("status", sorted_conditions(found["status"]))
    (owned,) = here.until_list(
        here.apps("replicasets"), lambda items: items and items[0]["status"].get("availableReplicas") == 2
    )
    here.see("replica set", {**owned, "status": owned["status"]})
    pods = here.get(here.core("pods"), labelSelector="a=b")["items"]
    here.see("pod", pods[0]["metadata"])
    here.see("scaled", told(here, "ScalingReplicaSet", "Deployment"))
    here.see("made", {**told(here, "SuccessfulCreate", "ReplicaSet"), "message": "M"})
    here.patch(path, {"spec": {"template": template(here, "two")}})
    found = here.until(path, ready(2))
    here.until_list(
        here.core("pods"),
        lambda items: {c["image"] for i in items for c in i["spec"]["containers"]} == {"two"},
        labelSelector="a=b",
    )
    here.see("revision", here.get(path)["metadata"]["annotations"]["deployment.kubernetes.io/revision"])
    sets = here.until_list(
        here.apps("replicasets"), lambda items: sorted(i["spec"]["replicas"] for i in items) == [0, 2]
    )
    here.see(
        "both sets",
        sorted(
            (i["metadata"]["annotations"]["deployment.kubernetes.io/revision"], i["spec"]["replicas"]) for i in sets
        ),
    )
    here.delete(path, propagationPolicy="Foreground")
    here.until(path, lambda found: not found)
    here.see("nothing left", here.get(here.core("pods"), labelSelector="a=b")["items"])


def sorted_conditions(status):
    return {**status, "conditions": sorted(status["conditions"], key=lambda c: c["type"])}


def test_a_deployment_that_cannot(here):
    path = here.apps("deployments/d")
    here.made(
        here.apps("deployments"),
        {
            "metadata": {"name": "d"},
            "spec": chosen(here, replicas=1, progressDeadlineSeconds=1, template=template(here)),
        },
    )

    def is_late(found):
        status = found.get("status") or {}
        return "replicas" in status and any(
            c["reason"] == "ProgressDeadlineExceeded" for c in status.get("conditions") or ()
        )

    found = here.until(path, is_late)
    here.see("status", sorted_conditions(found["status"]))


def test_a_daemon_set(here):
    first = here.node("a", labels={"gpu": "yes"})
    here.node("b", labels={"gpu": "no"})
    here.node("c", labels={"gpu": "yes"}, taints=[{"key": "t", "effect": "NoSchedule"}])
    path = here.apps("daemonsets/d")
    spec = chosen(here)
    spec["template"]["spec"]["nodeSelector"] = {"run": here.suffix, "gpu": "yes"}
    here.made(here.apps("daemonsets"), {"metadata": {"name": "d"}, "spec": spec})
    found = here.until(path, lambda found: (found.get("status") or {}).get("numberAvailable") == 1)
    here.see("status", found["status"])
    (pod,) = here.get(here.core("pods"), labelSelector="a=b")["items"]
    here.see("where", [pod["spec"]["nodeName"], pod["spec"]["affinity"]])
    here.see("tolerations", sorted(pod["spec"]["tolerations"], key=str))
    here.see("its metadata", pod["metadata"])
    (revision,) = here.get(here.apps("controllerrevisions"))["items"]
    here.see("revision", {k: v for k, v in revision.items() if k != "data"})
    here.see("data", revision["data"])
    here.see("told", {**told(here, "SuccessfulCreate", "DaemonSet"), "message": "M"})
    here.patch(f"/api/v1/nodes/{here.name('b')}", {"metadata": {"labels": {"gpu": "yes"}}})
    here.until(path, lambda found: found["status"].get("numberAvailable") == 2)
    here.patch(f"/api/v1/nodes/{first}", {"metadata": {"labels": {"gpu": "no"}}})
    found = here.until(
        path,
        lambda found: (
            found["status"]["desiredNumberScheduled"] == 1
            and found["status"].get("numberAvailable") == 1
            and not found["status"]["numberMisscheduled"]
        ),
    )
    here.see("moved", found["status"])
    here.patch(path, {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}})
    found = here.until(
        path,
        lambda found: (
            found["status"].get("updatedNumberScheduled") == 1
            and found["status"].get("numberAvailable") == 1
            and found["status"]["observedGeneration"] == 2
        ),
    )
    here.see("updated", found["status"])
    here.see("revisions", sorted(i["revision"] for i in here.get(here.apps("controllerrevisions"))["items"]))


def test_a_daemon_set_on_delete(here):
    here.node("a")
    path = here.apps("daemonsets/d")
    here.made(
        here.apps("daemonsets"), {"metadata": {"name": "d"}, "spec": chosen(here, updateStrategy={"type": "OnDelete"})}
    )
    here.until(path, lambda found: (found.get("status") or {}).get("numberAvailable") == 1)
    here.patch(path, {"spec": {"template": template(here, "two")}})
    found = here.until(
        path,
        lambda found: found["status"]["observedGeneration"] == 2 and not found["status"].get("updatedNumberScheduled"),
    )
    here.see("status", found["status"])
    (pod,) = here.get(here.core("pods"), labelSelector="a=b")["items"]
    here.see("the old pod stays", pod["spec"]["containers"][0]["image"])
    here.delete(here.core(f"pods/{pod['metadata']['name']}"))
    here.until_list(
        here.core("pods"),
        lambda items: [i["spec"]["containers"][0]["image"] for i in items] == ["two"],
        labelSelector="a=b",
    )


@pytest.mark.parametrize("image", ["done", "fail"])
def test_a_job(here, image):
    here.node("a")
    spec = {"template": {"spec": {**template(here, image)["spec"], "restartPolicy": "Never"}}, "backoffLimit": 0}
    made = here.made(here.at("batch/v1", "jobs"), {"metadata": {"name": "j"}, "spec": spec})
    here.see("created", made)
    wanted = "Complete" if image == "done" else "Failed"
    found = here.until(
        here.at("batch/v1", "jobs/j"),
        lambda found: any(c["type"] == wanted for c in (found.get("status") or {}).get("conditions") or ()),
    )
    here.see("status", found["status"])
    (pod,) = here.get(here.core("pods"))["items"]
    here.see("pod", pod["metadata"])
    here.see("told", told(here, "Completed" if image == "done" else "BackoffLimitExceeded", "Job"))
    here.see("deleted by default", here.delete(here.at("batch/v1", "jobs/j")))


def test_a_node_that_goes(here):
    """Its pods go with it; marks that it is not to be used are taints."""
    here.node("other")  # when all are gone, a cluster blames itself and does nothing
    node = here.node("a")
    here.until(f"/api/v1/nodes/{node}", lambda found: not found["spec"].get("taints"))
    here.see("node", {k: v for k, v in here.get(f"/api/v1/nodes/{node}")["spec"].items() if k != "podCIDR"})
    here.made(here.core("pods"), here.pod("p", nodeName=node))
    here.until(here.core("pods/p"), lambda found: found["status"].get("phase") == "Running")
    here.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    found = here.until(f"/api/v1/nodes/{node}", lambda found: found["spec"].get("taints"))
    here.see("cordoned", found["spec"]["taints"])
    here.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})
    here.until(f"/api/v1/nodes/{node}", lambda found: not found["spec"].get("taints"))
    down = {
        "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "no"}]}
    }
    here.patch(f"/api/v1/nodes/{node}/status", down, "strategic")
    found = here.until(f"/api/v1/nodes/{node}", lambda found: len(found["spec"].get("taints") or ()) == 2)
    here.see("not ready", sorted(found["spec"]["taints"], key=lambda t: t["effect"]))
    taint = [{"key": "now", "effect": "NoExecute"}]
    here.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": taint}})
    here.until(here.core("pods/p"), lambda found: not found)


def test_events(here):
    """Events of both groups are one thing."""
    about = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "namespace": here.namespace, "uid": "u"}
    old = {
        "metadata": {"name": "old"},
        "involvedObject": about,
        "reason": "Told",
        "message": "m",
        "type": "Normal",
        "source": {"component": "me"},
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    here.see("old", here.create(here.core("events"), old))
    here.see("as new", here.get(here.at("events.k8s.io/v1", "events/old")))
    new = {
        "metadata": {"name": "new"},
        "regarding": about,
        "reason": "Told",
        "note": "m",
        "type": "Normal",
        "action": "Do",
        "reportingController": "a.example.com/c",
        "reportingInstance": "i",
        "eventTime": "2026-01-01T00:00:00.000000Z",
    }
    here.see("new", here.create(here.at("events.k8s.io/v1", "events"), new))
    here.see("as old", here.get(here.core("events/new")))
    here.see(
        "new without a time",
        here.create(here.at("events.k8s.io/v1", "events"), {**new, "metadata": {"name": "n"}, "eventTime": None}),
    )
    here.see(
        "another namespace",
        here.create(
            here.core("events"), {**old, "metadata": {"name": "o"}, "involvedObject": {**about, "namespace": "default"}}
        ),
    )
    here.see(
        "selected",
        [
            i["metadata"]["name"]
            for i in here.get(here.core("events"), fieldSelector="involvedObject.name=c,reason=Told")["items"]
        ],
    )


def test_leases(here):
    path = here.at("coordination.k8s.io/v1", "leases")
    spec = {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.123456Z",
    }
    made = here.made(path, {"metadata": {"name": "l"}, "spec": spec})
    here.see("times", [made["spec"]["renewTime"][-8:], made["spec"]["acquireTime"][-8:]])
    here.see("lease", made)
    here.see(
        "stale",
        here.replace(
            f"{path}/l",
            {**made, "metadata": {"name": "l", "resourceVersion": "1"}, "spec": {**spec, "holderIdentity": "you"}},
        ),
    )
    here.see("time without fractions", here.patch(f"{path}/l", {"spec": {"renewTime": "2026-01-01T00:00:00Z"}}).status)
