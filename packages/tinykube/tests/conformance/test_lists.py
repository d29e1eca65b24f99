"""Lists and watches: what informers, kubectl get and pagination stand on."""

from __future__ import annotations

import base64
import json
from itertools import islice

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def fill(here, count=5):
    path = here.core("configmaps")
    here.until(f"{path}/kube-root-ca.crt", lambda found: found)
    for number in range(count):
        labels = {"n": str(number), "odd": "yes" if number % 2 else "no"}
        here.made(path, {"metadata": {"name": f"c{number}", "labels": labels}})
    return path


def names(answer):
    return [item["metadata"]["name"] for item in answer["items"]] if answer.status == 200 else answer.seen


def test_pages(here):
    path = fill(here)
    page = here.get(path, limit=2)
    here.see("first", page)
    rest = page["metadata"]["continue"]
    here.made(path, {"metadata": {"name": "b0"}})
    second = here.get(path, **{"limit": 2, "continue": rest})
    here.see("second", {"names": names(second), "left": second["metadata"].get("remainingItemCount")})
    here.see("one moment", second["metadata"]["resourceVersion"] == page["metadata"]["resourceVersion"])
    last = here.get(path, **{"limit": 9, "continue": second["metadata"]["continue"]})
    here.see("last", {"names": names(last), "metadata": sorted(last["metadata"])})
    here.see("a token that is none", here.get(path, **{"limit": 2, "continue": "nonsense"}))
    here.see("with a version", here.get(path, **{"limit": 2, "continue": rest, "resourceVersion": "1"}))
    here.see("limit that is none", here.get(path, limit="x"))
    here.see("a selector leaves out the rest's number", here.get(path, limit=1, labelSelector="n")["metadata"])


def test_made_up_tokens(here):
    """Tokens of a list's next page that no server has made."""
    path = fill(here)
    for name, token in {
        "another version of tokens": {"v": "meta.k8s.io/v2", "rv": 1, "start": "a"},
        "no version": {"v": "meta.k8s.io/v1", "start": "a"},
        "no start": {"v": "meta.k8s.io/v1", "rv": 1},
        "a way up": {"v": "meta.k8s.io/v1", "rv": -1, "start": "../other/a"},
        "two slashes": {"v": "meta.k8s.io/v1", "rv": -1, "start": "a//b"},
    }.items():
        text = base64.urlsafe_b64encode(json.dumps(token).encode()).decode().rstrip("=")
        here.see(name, here.get(path, **{"limit": 2, "continue": text}))
    now = {"v": "meta.k8s.io/v1", "rv": -1, "start": "b\0"}
    text = base64.urlsafe_b64encode(json.dumps(now).encode()).decode().rstrip("=")
    found = here.get(path, **{"limit": 2, "continue": text})
    here.see("as it is now", {"names": names(found), "metadata": sorted(found["metadata"])})


def test_label_selectors(here):
    path = fill(here)
    for selector in (
        "odd=yes",
        "odd!=yes,n",
        "odd in (yes,no)",
        "odd notin (yes),n",
        "n",
        "!n,odd",
        "n>2",
        "n<2",
        "n=1,odd=yes",
        "n==1",
        "n in ()",
        "a=b=c",
        "!",
        "n=,odd",
        "-x=1",
        "x in (a",
    ):
        here.see(selector, names(here.get(path, labelSelector=selector)))


def test_field_selectors(here):
    path = fill(here)
    for selector in (
        "metadata.name=c1",
        "metadata.name!=c1",
        "metadata.namespace=nosuch",
        "data.k=v",
        "metadata.name",
        "metadata.name=c1,metadata.name=c2",
    ):
        here.see(selector, names(here.get(path, fieldSelector=selector)))
    here.made(here.core("pods"), here.pod("p", schedulerName="nobody"))
    for selector in (
        "status.phase=Pending",
        "status.phase!=Pending",
        "spec.nodeName=",
        "spec.schedulerName=nobody",
        "spec.restartPolicy=Never",
        "spec.containers=x",
    ):
        here.see(f"pods {selector}", names(here.get(here.core("pods"), fieldSelector=selector)))
    here.see("jobs", names(here.get(here.at("batch/v1", "jobs"), fieldSelector="status.successful=1")))
    here.see("nodes", names(here.get("/api/v1/nodes", fieldSelector="spec.unschedulable=maybe")))


def test_versions_of_lists(here):
    path = fill(here, 1)
    here.see("any", names(here.get(path, resourceVersion="0")))
    now = here.get(path)["metadata"]["resourceVersion"]
    here.see("not older", names(here.get(path, resourceVersion=now, resourceVersionMatch="NotOlderThan")))
    here.see("exact", names(here.get(path, resourceVersion=now, resourceVersionMatch="Exact")))
    here.see("a match without a version", here.get(path, resourceVersionMatch="Exact"))
    here.see("an unknown match", here.get(path, resourceVersion=now, resourceVersionMatch="About"))
    here.see("no number", here.get(path, resourceVersion="x"))
    here.see("exact 0", here.get(path, resourceVersion="0", resourceVersionMatch="Exact"))
    here.see("too old", here.get(path, resourceVersion="1", resourceVersionMatch="Exact").status in (200, 410))
    future = str(int(now) + 1_000_000)
    here.see("of the future", here.get(path, resourceVersion=future, timeoutSeconds=1))
    here.see("get any", here.get(f"{path}/c0", resourceVersion="0").status)


def test_watches(here):
    path = fill(here, 1)
    now = here.get(path)["metadata"]["resourceVersion"]
    here.made(path, CONFIG)
    here.patch(f"{path}/a", {"data": {"k": "2"}})
    here.delete(f"{path}/a")
    with here.watch(path, resourceVersion=now) as events:
        here.see("what was missed", list(islice(events, 3)))
    with here.watch(path, resourceVersion="0", fieldSelector="metadata.name=c0") as events:
        here.see("from any version: what there is", list(islice(events, 1)))
    with here.watch(path, labelSelector="shown=yes") as events:
        here.patch(f"{path}/c0", {"metadata": {"labels": {"shown": "yes"}}})
        here.patch(f"{path}/c0", {"data": {"x": "1"}})
        here.patch(f"{path}/c0", {"metadata": {"labels": {"shown": None}}})
        seen = list(islice(events, 3))
        here.see(
            "coming into a selector and leaving it", [(e["type"], e["object"]["metadata"]["labels"]) for e in seen]
        )
        version = int(seen[-1]["object"]["metadata"]["resourceVersion"])
        here.see(
            "the version of leaving is that of the write",
            version == int(here.get(f"{path}/c0")["metadata"]["resourceVersion"]),
        )
    with here.watch(path, resourceVersion="x") as events:
        here.see("no number", next(events))
    with here.watch(path, resourceVersion=now, timeoutSeconds="1") as events:
        here.see("ends in time", [event["type"] for event in events])
    with here.watch(here.core("nosuchthings")) as events:
        here.see("no such resource", next(events)["code"])
    with here.watch(f"{path}/c0", resourceVersion="0") as events:
        here.see("one object by its path", next(events).get("kind"))
    with here.watch(path, labelSelector="a=b=c") as events:
        here.see("a wrong selector", next(events))


def test_initial_events(here):
    path = fill(here, 2)
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    with here.watch(path, labelSelector="n", **query) as events:
        seen = list(islice(events, 3))
        here.see(
            "events and the bookmark that ends them",
            [
                (
                    e["type"],
                    e["object"]["metadata"].get("name"),
                    sorted(e["object"]["metadata"].get("annotations") or ()),
                    e["object"].get("kind"),
                )
                for e in seen
            ],
        )
        here.see("the bookmark's fields", {**seen[-1]["object"], "metadata": sorted(seen[-1]["object"]["metadata"])})
        here.made(path, {"metadata": {"name": "new", "labels": {"n": "9"}}})
        here.see("then changes", next(events)["object"]["metadata"]["name"])
    with here.watch(path, sendInitialEvents="true") as events:
        here.see("without a match", next(events))
    with here.watch(path, resourceVersionMatch="NotOlderThan") as events:
        here.see("a match alone", next(events))
    here.see("in a list", here.get(path, sendInitialEvents="true"))


def test_tables(here):
    """The columns that kubectl prints."""
    path = fill(here, 1)
    here.see("a list", table(here.get(path, accept=TABLE), "c0"))
    here.see("one", table(here.get(f"{path}/c0", accept=TABLE)))
    whole = here.get(f"{path}/c0", accept=TABLE, includeObject="Object")
    here.see("with the object", [row["object"]["kind"] for row in whole["rows"]])
    none = here.get(f"{path}/c0", accept=TABLE, includeObject="None")
    here.see("without", [row.get("object") for row in none["rows"]])
    here.see("nonsense", here.get(f"{path}/c0", accept=TABLE, includeObject="Nonsense"))
    here.see("an error", here.get(f"{path}/nosuch", accept=TABLE))
    with here.watch(path, resourceVersion="0", fieldSelector="metadata.name=c0", accept=TABLE) as events:
        first = next(events)
        here.see(
            "a watch",
            [first["type"], first["object"]["kind"], [c["name"] for c in first["object"]["columnDefinitions"]]],
        )
    partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    here.see("metadata alone", here.get(f"{path}/c0", accept=partial))
    listed = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    found = here.get(path, accept=listed, labelSelector="n")
    here.see("a list of metadata", found)


def table(answer, only=None):
    rows = [row["cells"] for row in answer["rows"] if only in (None, row["cells"][0])]
    return {
        "columns": answer["columnDefinitions"],
        "rows": rows,
        "kind": answer["kind"],
        "apiVersion": answer["apiVersion"],
    }


KINDS = """
/api/v1/namespaces
/api/v1/nodes
/api/v1/pods
/api/v1/services
/api/v1/events
/api/v1/secrets
/api/v1/serviceaccounts
/api/v1/endpoints
/api/v1/persistentvolumes
/api/v1/persistentvolumeclaims
/api/v1/resourcequotas
/api/v1/replicationcontrollers
/apis/apps/v1/deployments
/apis/apps/v1/daemonsets
/apis/apps/v1/replicasets
/apis/apps/v1/statefulsets
/apis/apps/v1/controllerrevisions
/apis/batch/v1/jobs
/apis/batch/v1/cronjobs
/apis/coordination.k8s.io/v1/leases
/apis/policy/v1/poddisruptionbudgets
/apis/scheduling.k8s.io/v1/priorityclasses
/apis/node.k8s.io/v1/runtimeclasses
/apis/storage.k8s.io/v1/storageclasses
/apis/rbac.authorization.k8s.io/v1/roles
/apis/rbac.authorization.k8s.io/v1/rolebindings
/apis/rbac.authorization.k8s.io/v1/clusterroles
/apis/rbac.authorization.k8s.io/v1/clusterrolebindings
/apis/apiextensions.k8s.io/v1/customresourcedefinitions
/apis/networking.k8s.io/v1/ingresses
/apis/networking.k8s.io/v1/networkpolicies
/apis/discovery.k8s.io/v1/endpointslices
/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations
/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations
/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies
/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings
/apis/resource.k8s.io/v1/resourceslices
/apis/resource.k8s.io/v1/resourceclaims
/apis/resource.k8s.io/v1/deviceclasses
/apis/autoscaling/v2/horizontalpodautoscalers
"""


def test_columns(here):
    """Of each kind: name, type, format, priority (only explain reads the descriptions)."""
    for path in KINDS.split():
        found = here.get(path, accept=TABLE, limit=1)
        columns = [[c["name"], c["type"], c["format"], c["priority"]] for c in found.body.get("columnDefinitions", ())]
        here.see(path.rpartition("/")[2], columns or found)


PASSING = ("Age", "Created At", "Duration")  # these columns count seconds


def test_rows(here):
    """Rows of what is made here; ages are left out."""
    spec = {"containers": [{"name": "c", "image": "i"}], "schedulerName": "nobody"}
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    chosen = {"selector": {"matchLabels": labels}, "template": template}
    objects = {
        here.core("pods"): {"spec": spec},
        here.apps("deployments"): {"spec": {**chosen, "replicas": 0}},
        here.apps("daemonsets"): {
            "spec": {**chosen, "template": {**template, "spec": {**spec, "nodeSelector": {"no": "such"}}}}
        },
        here.apps("replicasets"): {"spec": {**chosen, "replicas": 0}},
        here.apps("statefulsets"): {"spec": {**chosen, "replicas": 0, "serviceName": "s"}},
        here.at("batch/v1", "jobs"): {
            "spec": {"parallelism": 0, "template": {"spec": {**spec, "restartPolicy": "Never"}}}
        },
        here.at("batch/v1", "cronjobs"): {
            "spec": {
                "schedule": "0 0 1 1 *",
                "jobTemplate": {"spec": {"template": {"spec": {**spec, "restartPolicy": "Never"}}}},
            }
        },
        here.core("services"): {"spec": {"ports": [{"port": 80}], "clusterIP": "None"}},
        here.core("secrets"): {"stringData": {"a": "b"}},
        here.core("serviceaccounts"): {},
        here.at("policy/v1", "poddisruptionbudgets"): {
            "spec": {"maxUnavailable": "10%", "selector": {"matchLabels": {"no": "such"}}}
        },
        here.at("rbac.authorization.k8s.io/v1", "roles"): {"rules": []},
        here.at("rbac.authorization.k8s.io/v1", "rolebindings"): {
            "roleRef": {"kind": "Role", "name": "w"},
            "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}],
        },
        here.at("coordination.k8s.io/v1", "leases"): {"spec": {"holderIdentity": "h"}},
        here.core("persistentvolumeclaims"): {
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "none",
            }
        },
        here.at("networking.k8s.io/v1", "ingresses"): {
            "spec": {
                "rules": [
                    {
                        "host": "h",
                        "http": {
                            "paths": [
                                {
                                    "path": "/",
                                    "pathType": "Prefix",
                                    "backend": {"service": {"name": "s", "port": {"number": 80}}},
                                }
                            ]
                        },
                    }
                ]
            }
        },
    }
    for path, obj in objects.items():
        here.made(path, {"metadata": {"name": "w"}, **obj})
        if path.endswith("/jobs"):
            here.until(f"{path}/w", lambda found: found.get("status", {}).get("startTime"))
        if "deployments" in path:
            here.until(f"{path}/w", lambda found: found.get("status", {}).get("observedGeneration"))
        found = here.get(f"{path}/w", accept=TABLE)
        columns = [column["name"] for column in found["columnDefinitions"]]
        here.see(
            path.rpartition("/")[2],
            {k: v for k, v in zip(columns, found["rows"][0]["cells"], strict=True) if k not in PASSING},
        )
