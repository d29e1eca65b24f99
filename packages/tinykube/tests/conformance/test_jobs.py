"""The Job controller's reaction to failed and succeeded pods by policies, and the effect of taints on pods."""

from __future__ import annotations

import pytest

IGNORE_DISRUPTIONS = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
FAIL_AT_ONE = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}
FAIL_INDEX_AT_ONE = {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [1]}}
INDEXED = {"completionMode": "Indexed", "completions": 3}


def job(here, image, **spec):
    pod = {"containers": [{"name": "c", "image": image}], "nodeSelector": {"run": here.suffix}}
    return {"metadata": {"name": "j"}, "spec": {"template": {"spec": {**pod, "restartPolicy": "Never"}}, **spec}}


def ended(found):
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Failed") for c in conditions)


def event(here, reason):
    (found,) = here.until_list(
        here.core("events"), lambda items: items, fieldSelector=f"reason={reason},involvedObject.kind=Job"
    )
    return {name: found.get(name) for name in ("message", "type", "source")}


@pytest.mark.parametrize(
    ("image", "spec"),
    [
        pytest.param("fail", {**INDEXED, "parallelism": 3, "backoffLimitPerIndex": 0}, id="failed indexes"),
        pytest.param(
            "fail",
            {**INDEXED, "parallelism": 1, "backoffLimitPerIndex": 0, "maxFailedIndexes": 0},
            id="too many failed indexes",
        ),
        pytest.param(
            "fail",
            {
                **INDEXED,
                "parallelism": 3,
                "backoffLimitPerIndex": 5,
                "podFailurePolicy": {"rules": [FAIL_INDEX_AT_ONE]},
            },
            id="a policy that fails the index",
        ),
        pytest.param(
            "fail", {"podFailurePolicy": {"rules": [IGNORE_DISRUPTIONS, FAIL_AT_ONE]}}, id="a policy that fails the job"
        ),
        pytest.param(
            "done",
            {**INDEXED, "parallelism": 1, "successPolicy": {"rules": [{"succeededIndexes": "0"}]}},
            id="enough successes",
        ),
    ],
)
def test_the_end_of_a_job(here, image, spec):
    here.node("a")
    path = here.at("batch/v1", "jobs/j")
    made = here.made(here.at("batch/v1", "jobs"), job(here, image, **spec))
    here.see("created", {name: value for name, value in made["spec"].items() if name != "template"})
    found = here.until(path, ended)
    first = min(here.get(here.core("pods"))["items"], key=lambda pod: pod["metadata"]["name"])
    here.normal.names[first["metadata"]["name"]] = "POD"
    here.see("status", found["status"])
    here.see("pod", {name: first["metadata"].get(name) for name in ("labels", "annotations", "finalizers")})
    reason = found["status"]["conditions"][-1]["reason"]
    here.see("event", event(here, "Completed" if image == "done" else reason))


def test_an_index_is_tried_again(here):
    here.node("a")
    here.made(
        here.at("batch/v1", "jobs"),
        job(here, "fail", completionMode="Indexed", completions=1, backoffLimitPerIndex=1),
    )

    def waits(items):
        return items and items[0]["status"].get("phase") == "Failed"

    (pod,) = here.until_list(here.core("pods"), waits)
    here.see("a failed pod", {name: pod["metadata"].get(name) for name in ("annotations", "finalizers")})
    pods = here.until_list(here.core("pods"), lambda items: len(items) == 2)
    again = next(one for one in pods if one["metadata"]["uid"] != pod["metadata"]["uid"])
    here.see("its replacement", again["metadata"]["annotations"])
    found = here.until(here.at("batch/v1", "jobs/j"), ended)
    here.see("status", found["status"])


def test_a_lost_machine_is_no_failure_of_the_program(here):
    here.node("other")  # when no node is left, nothing is evicted
    node = here.node("a")
    spec = {"backoffLimit": 0, "podFailurePolicy": {"rules": [IGNORE_DISRUPTIONS]}}
    body = job(here, "busybox", **spec)
    body["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    here.made(here.at("batch/v1", "jobs"), body)
    (pod,) = here.until_list(here.core("pods"), lambda items: items and items[0]["status"].get("phase") == "Running")
    here.normal.names[pod["metadata"]["name"]] = "POD"
    # A finalizer lets the pod be seen after it was evicted.
    path = here.core(f"pods/{pod['metadata']['name']}")
    held = [*pod["metadata"]["finalizers"], "example.com/look"]
    here.patch(path, {"metadata": {"finalizers": held}})
    here.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [{"key": "gone", "effect": "NoExecute"}]}})
    found = here.until(path, lambda found: "deletionTimestamp" in found.get("metadata", {}))
    conditions = [c for c in found["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    here.see("evicted", conditions)
    (noticed,) = here.until_list(here.core("events"), lambda items: items, fieldSelector="reason=TaintManagerEviction")
    here.see("event", {name: noticed.get(name) for name in ("message", "type", "source")})
    here.patch(path, {"metadata": {"finalizers": None}})


def test_an_evicted_pod_says_that_it_was_disrupted(here):
    here.node("a")
    body = here.pod("p")
    body["metadata"]["finalizers"] = ["example.com/look"]
    here.made(here.core("pods"), body)
    here.until(here.core("pods/p"), lambda found: found["status"].get("phase") == "Running")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    here.see("evicted", here.create(here.core("pods/p/eviction"), eviction).status)
    found = here.get(here.core("pods/p"))
    here.see("condition", [c for c in found["status"]["conditions"] if c["type"] == "DisruptionTarget"])
    here.patch(here.core("pods/p"), {"metadata": {"finalizers": None}})
