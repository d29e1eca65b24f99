"""Objects and how they are refused: every reason a client may have to handle."""

from __future__ import annotations

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}}


def test_the_life_of_an_object(here):
    path = here.core("configmaps")
    here.see("create", here.create(path, CONFIG), managed=True)
    here.see("create again", here.create(path, CONFIG))
    here.see("get", here.get(f"{path}/a"))
    found = here.get(f"{path}/a").body
    here.see("replace", here.replace(f"{path}/a", {**found, "data": {"k": "2"}}), managed=True)
    here.see("replace with a stale version", here.replace(f"{path}/a", {**found, "data": {"k": "3"}}))
    without = {**CONFIG, "data": {"k": "4"}}
    here.see("replace without a version", here.replace(f"{path}/a", without))
    other = {**CONFIG, "metadata": {"name": "a", "uid": "00000000-0000-4000-8000-000000000000"}}
    here.see("replace with another uid", here.replace(f"{path}/a", other))
    here.see("replace under another name", here.replace(f"{path}/b", {**CONFIG, "metadata": {"name": "c"}}))
    here.see("replace what is not there", here.replace(f"{path}/b", {**CONFIG, "metadata": {"name": "b"}}))
    before = here.get(f"{path}/a")["metadata"]["resourceVersion"]
    same = here.replace(f"{path}/a", without)
    here.see("a write that changes nothing keeps the version", same["metadata"]["resourceVersion"] == before)
    here.see("delete", here.delete(f"{path}/a"))
    here.see("delete again", here.delete(f"{path}/a"))
    here.see("get what is gone", here.get(f"{path}/a"))
    here.see("patch what is gone", here.patch(f"{path}/a", {"data": {}}))


def test_names(here):
    path = here.core("configmaps")
    made = here.create(path, {"metadata": {"generateName": "made-"}})
    here.see("generateName", made)
    here.see("its length", len(made["metadata"]["name"]))
    for name in ("", "UPPER", "under_score", "x" * 254, "-a", "a..b", "a/b"):
        here.see(f"name {name[:20]!r}", here.create(path, {"metadata": {"name": name}}))
    here.see("another namespace in the body", here.create(path, {"metadata": {"name": "a", "namespace": "default"}}))
    here.see("a wrong namespace name", here.create("/api/v1/namespaces", {"metadata": {"name": "Not Right"}}))
    here.see("a service's name", here.create(here.core("services"), {"metadata": {"name": "1st.one"}, "spec": {}}))
    here.see("no such namespace", here.create("/api/v1/namespaces/nosuch-namespace/configmaps", CONFIG))
    labels = {"-bad": "x", "good": "b@d", "a/b/c": "x", "long": "y" * 64}
    here.see("labels", here.create(path, {"metadata": {"name": "l", "labels": labels}}))
    here.see("annotations", here.create(path, {"metadata": {"name": "l", "annotations": {"no good": "x"}}}))
    here.see("finalizers", here.create(path, {"metadata": {"name": "l", "finalizers": ["plain"]}}))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "", "uid": ""}
    here.see("owners", here.create(path, {"metadata": {"name": "l", "ownerReferences": [owner]}}))
    twice = [{"apiVersion": "v1", "kind": "Pod", "name": n, "uid": n, "controller": True} for n in "ab"]
    here.see("two controllers", here.create(path, {"metadata": {"name": "l", "ownerReferences": twice}}))


def test_preconditions_of_a_delete(here):
    path = here.core("configmaps")
    made = here.made(path, CONFIG)["metadata"]
    wrong = {"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}}
    here.see("another uid", here.delete(f"{path}/a", wrong))
    here.see("another version", here.delete(f"{path}/a", {"preconditions": {"resourceVersion": "1"}}))
    right = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
    here.see("the right ones", here.delete(f"{path}/a", {"preconditions": right}))


def test_bodies_that_are_wrong(here):
    path = here.core("configmaps")
    here.see("no JSON", here.create(path, b"{"))
    here.see("empty", here.create(path, b""))
    here.see("a list", here.create(path, []))
    here.see("no kind", here.create(path, {"metadata": {"name": "a"}}).status)
    here.see("another kind", here.create(path, {**CONFIG, "kind": "Secret"}))
    here.see("another version", here.create(path, {**CONFIG, "apiVersion": "v2"}))
    here.see("an unknown kind", here.create(path, {**CONFIG, "kind": "Nonsense"}))
    here.see("a wrong type", here.create(path, {**CONFIG, "data": {"k": 1}}))
    here.see("a wrong type of metadata", here.create(path, {**CONFIG, "metadata": []}))
    here.see("an unknown media type", here.create(path, b"x", type="text/plain"))
    here.see("an unknown patch type", here.call("PATCH", f"{path}/a", {}, type="application/json"))
    here.see("an unknown path", here.get("/apis/nosuch.example.com/v1/things"))
    here.see("an unknown resource", here.get(here.core("nosuchthings")))
    here.see("an unknown subresource", here.get(here.core("configmaps/a/nosuch")))
    here.see("a method that is not allowed", here.call("POST", f"{path}/a", CONFIG))
    here.see("an unacceptable answer", here.get(path, accept="text/html"))
    here.see("yaml", here.create(path, b"metadata: {name: y}\ndata: {k: v}\n", type="application/yaml"))


def test_unknown_fields(here):
    path = here.core("configmaps")

    def typo(name):
        return {"metadata": {"name": name}, "dat": {}, "data": {"k": "v"}}

    for how in ("Strict", "Warn", "Ignore"):
        here.see(how, here.create(path, typo(how.lower()), fieldValidation=how))
    here.see("by default", here.create(path, typo("default")))
    here.see("wrong", here.create(path, typo("wrong"), fieldValidation="Wrong"))
    twice = b'{"metadata":{"name":"twice"},"data":{"k":"1","k":"2"}}'
    here.see("a field twice", here.create(path, twice, fieldValidation="Strict"))
    deep = here.pod("deep")
    deep["spec"]["containers"][0]["imagee"] = "x"
    here.see("deep", here.create(here.core("pods"), deep, fieldValidation="Strict"))
    here.made(path, {"metadata": {"name": "p"}})
    here.see("patched", here.patch(f"{path}/p", {"dat": {}}, fieldValidation="Strict").status)
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p"}, "dat": {}}
    here.see("applied", here.patch(f"{path}/p", applied, "apply", fieldManager="m", fieldValidation="Strict"))


def test_dry_run_writes_nothing(here):
    path = here.core("configmaps")
    here.see("create", here.create(path, CONFIG, dryRun="All"))
    here.see("wrong", here.create(path, CONFIG, dryRun="Some"))
    here.see("nothing there", here.get(f"{path}/a").status)
    here.made(path, CONFIG)
    here.see("patch", here.patch(f"{path}/a", {"data": {"k": "2"}}, dryRun="All"))
    here.see("delete", here.delete(f"{path}/a", dryRun="All"))
    here.see("as before", here.get(f"{path}/a"))
    here.see("of a pod", here.create(here.core("pods"), here.pod("dry"), dryRun="All"))


def test_defaults(here):
    """The server returns values for fields that the client left out."""
    here.see("pod", here.create(here.core("pods"), here.pod("p", schedulerName="nobody"), dryRun="All"))
    rich = here.pod(
        "rich",
        initContainers=[{"name": "first", "image": "registry.example.com/x:1", "restartPolicy": "Always"}],
        containers=[
            {
                "name": "main",
                "image": "x:latest",
                "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "1000m", "nvidia.com/gpu": 1}},
                "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "livenessProbe": {"httpGet": {"port": 80}},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }
        ],
        volumes=[
            {"name": "v", "configMap": {"name": "c"}},
            {"name": "h", "hostPath": {"path": "/"}},
            {"name": "s", "secret": {"secretName": "s"}},
            {"name": "d", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ],
        hostNetwork=True,
        tolerations=[{"operator": "Exists"}],
    )
    here.see("a rich pod", here.create(here.core("pods"), rich, dryRun="All"))
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    selected = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    for kind in ("deployments", "daemonsets", "replicasets", "statefulsets"):
        obj = {"metadata": {"name": "w"}, "spec": selected}
        here.see(kind, here.create(here.apps(kind), obj, dryRun="All"))
    job = {"template": {"spec": {**template["spec"], "restartPolicy": "Never"}}}
    here.see("jobs", here.create(here.at("batch/v1", "jobs"), {"metadata": {"name": "w"}, "spec": job}, dryRun="All"))
    cron = {"schedule": "0 0 * * *", "jobTemplate": {"spec": job}}
    made = here.create(here.at("batch/v1", "cronjobs"), {"metadata": {"name": "w"}, "spec": cron}, dryRun="All")
    here.see("cronjobs", made)
    service = {"selector": {"a": "b"}, "ports": [{"port": 80}]}
    here.see("services", here.create(here.core("services"), {"metadata": {"name": "w"}, "spec": service}))
    here.see("secrets", here.create(here.core("secrets"), {"metadata": {"name": "w"}, "stringData": {"a": "b"}}))
    here.see("serviceaccounts", here.create(here.core("serviceaccounts"), {"metadata": {"name": "w"}}))
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}
    where = here.at("policy/v1", "poddisruptionbudgets")
    here.see("poddisruptionbudgets", here.create(where, {"metadata": {"name": "w"}, "spec": budget}, dryRun="All"))
    cluster = (
        ("nodes", "/api/v1/nodes", {}),
        ("namespaces", "/api/v1/namespaces", {}),
        ("priorityclasses", "/apis/scheduling.k8s.io/v1/priorityclasses", {"value": 5}),
        ("runtimeclasses", "/apis/node.k8s.io/v1/runtimeclasses", {"handler": "h"}),
    )
    for kind, path, fields in cluster:
        here.see(kind, here.create(path, {"metadata": {"name": here.name("w")}, **fields}, dryRun="All"))


def test_what_is_invalid(here):
    """The findings of validation: which fields, which words."""
    pods = here.core("pods")
    here.see("no containers", here.create(pods, {"metadata": {"name": "w"}, "spec": {}}, dryRun="All"))
    here.see("empty container", here.create(pods, here.pod("w", containers=[{}]), dryRun="All"))
    same = [{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]
    here.see("one name twice", here.create(pods, here.pod("w", containers=same), dryRun="All"))
    wrong = [
        {
            "name": "a",
            "image": "i",
            "imagePullPolicy": "Sometimes",
            "ports": [{"containerPort": 0}],
            "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}},
            "volumeMounts": [{"name": "nosuch", "mountPath": "/x"}],
        }
    ]
    here.see("many things", here.create(pods, here.pod("w", containers=wrong, restartPolicy="Seldom"), dryRun="All"))
    extended = [{"name": "a", "image": "i", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]
    here.see("a GPU requested without a limit", here.create(pods, here.pod("w", containers=extended), dryRun="All"))
    half = [{"name": "a", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "500m"}}}]
    here.see("half a GPU", here.create(pods, here.pod("w", containers=half), dryRun="All"))
    here.see(
        "quantity",
        here.create(pods, here.pod("w", containers=[{**half[0], "resources": {"limits": {"cpu": "x"}}}]), dryRun="All"),
    )
    here.see(
        "toleration", here.create(pods, here.pod("w", tolerations=[{"operator": "Equals", "key": "a"}]), dryRun="All")
    )
    here.see("no such priority class", here.create(pods, here.pod("w", priorityClassName="nosuch"), dryRun="All"))
    here.see("no such runtime class", here.create(pods, here.pod("w", runtimeClassName="nosuch"), dryRun="All"))
    here.see("no such account", here.create(pods, here.pod("w", serviceAccountName="nosuch"), dryRun="All"))
    made = here.made(pods, here.pod("p", schedulerName="nobody"))
    here.see("a pod's spec is fixed", here.patch(f"{pods}/p", {"spec": {"hostNetwork": True}}))
    here.see(
        "its image is not",
        here.patch(f"{pods}/p", {"spec": {"containers": [{"name": "main", "image": "2"}]}}, "strategic")["spec"][
            "containers"
        ][0]["image"],
    )
    here.see("metadata", here.patch(f"{pods}/p", {"metadata": {"uid": "other"}}))
    here.see(
        "its creation",
        here.patch(f"{pods}/p", {"metadata": {"creationTimestamp": None}})["metadata"]["uid"]
        == made["metadata"]["uid"],
    )
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    unlike = {"selector": {"matchLabels": {"a": "c"}}, "template": template}
    for kind in ("deployments", "daemonsets"):
        here.see(
            f"{kind}: selector and labels", here.create(here.apps(kind), {"metadata": {"name": "w"}, "spec": unlike})
        )
        here.see(f"{kind}: nothing", here.create(here.apps(kind), {"metadata": {"name": "w"}, "spec": {}}))
    alike = {"selector": {"matchLabels": {"a": "b"}}, "template": template, "replicas": 0}
    here.made(here.apps("deployments"), {"metadata": {"name": "w"}, "spec": alike})
    moved = {"spec": {"selector": {"matchLabels": {"x": "y"}}, "template": {"metadata": {"labels": {"x": "y"}}}}}
    here.see("a selector is fixed", here.patch(here.apps("deployments/w"), moved))
    here.see("negative", here.patch(here.apps("deployments/w"), {"spec": {"replicas": -1}}))
    job = {"metadata": {"name": "j"}, "spec": {"template": {"spec": template["spec"]}}}
    here.see("a job that restarts always", here.create(here.at("batch/v1", "jobs"), job))
    cron = {"metadata": {"name": "j"}, "spec": {"schedule": "never", "jobTemplate": {"spec": job["spec"]}}}
    here.see("a schedule", here.create(here.at("batch/v1", "cronjobs"), cron))
    here.see(
        "a service", here.create(here.core("services"), {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 0}]}})
    )
    here.see("config data", here.create(here.core("configmaps"), {"metadata": {"name": "c"}, "data": {"a b": "x"}}))
    locked = {"metadata": {"name": "i"}, "immutable": True, "data": {"a": "b"}}
    here.made(here.core("configmaps"), locked)
    here.see("immutable", here.patch(here.core("configmaps/i"), {"data": {"a": "c"}}))
    taint = {"metadata": {"name": here.name("n")}, "spec": {"taints": [{"key": "a", "effect": "Sometimes"}]}}
    here.see("a taint", here.create("/api/v1/nodes", taint))
    role = {"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"]}]}
    here.see("a role without verbs", here.create(here.at("rbac.authorization.k8s.io/v1", "roles"), role))
    binding = {"metadata": {"name": "r"}, "subjects": [{"kind": "User", "name": "a"}], "roleRef": {"kind": "Role"}}
    here.see("a binding", here.create(here.at("rbac.authorization.k8s.io/v1", "rolebindings"), binding))
    lease = {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}}
    here.see("a lease", here.create(here.at("coordination.k8s.io/v1", "leases"), lease))
    budget = {"minAvailable": 1, "maxUnavailable": 1, "selector": {}}
    where = here.at("policy/v1", "poddisruptionbudgets")
    here.see("a budget", here.create(where, {"metadata": {"name": "b"}, "spec": budget}))
    priority = {"metadata": {"name": here.name("p")}, "value": 2000000000}
    here.see("a priority", here.create("/apis/scheduling.k8s.io/v1/priorityclasses", priority))
