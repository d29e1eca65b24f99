"""The four kinds of patch, and what server-side apply keeps of who owns what."""

from __future__ import annotations

import pytest

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}}


def briefly(answer):
    """Without the words: they have the whole object in them, as Go writes it."""
    return [answer.status, answer["reason"], [c["field"] for c in answer.body.get("details", {}).get("causes", ())]]


def test_merge_patches(here):
    path = here.core("configmaps")
    here.made(path, {**CONFIG, "metadata": {"name": "a", "labels": {"x": "1", "y": "2"}}})
    here.see(
        "set and remove", here.patch(f"{path}/a", {"metadata": {"labels": {"x": None, "z": "3"}}, "data": {"n": "1"}})
    )
    here.see(
        "with a stale version", here.patch(f"{path}/a", {"metadata": {"resourceVersion": "1"}, "data": {"n": "2"}})
    )
    here.see("another name", here.patch(f"{path}/a", {"metadata": {"name": "b"}}))
    here.see("no object", here.patch(f"{path}/a", [1]))
    here.see("no JSON", here.patch(f"{path}/a", b"{"))
    here.see("a wrong type", briefly(here.patch(f"{path}/a", {"data": {"k": 1}})))
    here.see("nothing", here.patch(f"{path}/a", {}).status)
    here.see("data away", here.patch(f"{path}/a", {"data": None}))


def test_json_patches(here):
    path = here.core("configmaps/a")
    here.made(here.core("configmaps"), CONFIG)
    here.see("add", here.patch(path, [{"op": "add", "path": "/data/x~1y", "value": "1"}], "json"))
    here.see("test that holds", here.patch(path, [{"op": "test", "path": "/data/k", "value": "v"}], "json").status)
    here.see("test that fails", here.patch(path, [{"op": "test", "path": "/data/k", "value": "w"}], "json"))
    here.see("remove what is not there", here.patch(path, [{"op": "remove", "path": "/data/none"}], "json"))
    here.see(
        "replace what is not there", here.patch(path, [{"op": "replace", "path": "/data/none", "value": "1"}], "json")
    )
    here.see("move", here.patch(path, [{"op": "move", "from": "/data/k", "path": "/data/m"}], "json"))
    here.see("copy", here.patch(path, [{"op": "copy", "from": "/data/m", "path": "/data/c"}], "json"))
    here.see("an unknown operation", here.patch(path, [{"op": "nonsense", "path": "/data/c"}], "json"))
    here.see("no list", here.patch(path, {"op": "add"}, "json"))
    here.see("below what is not there", here.patch(path, [{"op": "add", "path": "/none/x", "value": "1"}], "json"))
    here.see("invalid afterwards", here.patch(path, [{"op": "add", "path": "/data/a b", "value": "1"}], "json"))


def test_strategic_patches(here):
    pods = here.core("pods")
    spec = {
        "containers": [
            {"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
            {"name": "b", "image": "1"},
        ],
        "tolerations": [{"key": "t", "operator": "Exists"}],
        "schedulerName": "nobody",
    }
    template = {"metadata": {"labels": {"a": "b"}}, "spec": spec}
    deployment = {"selector": {"matchLabels": {"a": "b"}}, "template": template, "replicas": 0}
    here.made(here.apps("deployments"), {"metadata": {"name": "d"}, "spec": deployment})
    path = here.apps("deployments/d")

    def change(step, spec):
        answer = here.patch(path, {"spec": {"template": {"spec": spec}}}, "strategic")
        here.see(step, answer["spec"]["template"]["spec"] if answer.status == 200 else answer)

    change("one container of two", {"containers": [{"name": "b", "image": "2"}]})
    change("one variable", {"containers": [{"name": "a", "env": [{"name": "Y", "value": "3"}]}]})
    change("a variable less", {"containers": [{"name": "a", "env": [{"name": "X", "$patch": "delete"}]}]})
    change("a container more", {"containers": [{"name": "c", "image": "1"}]})
    change(
        "in another order",
        {"$setElementOrder/containers": [{"name": n} for n in "cab"], "containers": [{"name": "a", "image": "9"}]},
    )
    change("a container less", {"containers": [{"name": "c", "$patch": "delete"}]})
    change("a list that is replaced", {"tolerations": [{"key": "u", "operator": "Exists"}]})
    change("the whole list", {"containers": [{"$patch": "replace"}, {"name": "z", "image": "1"}]})
    change("a map that is replaced", {"securityContext": {"$patch": "replace", "runAsUser": 1}})
    change("no key", {"containers": [{"image": "1"}]})
    change("volumes", {"volumes": [{"name": "v", "emptyDir": {}}]})
    change(
        "a volume of another kind",
        {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]},
    )
    here.made(pods, {"metadata": {"name": "p", "finalizers": ["a.example.com/x"]}, "spec": spec})
    account = here.get(here.core("serviceaccounts/default"))["metadata"]
    owner = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "default", "uid": account["uid"]}
    one = {"metadata": {"finalizers": ["b.example.com/y"], "ownerReferences": [owner]}}
    here.see("finalizers merge", here.patch(f"{pods}/p", one, "strategic")["metadata"]["finalizers"])
    away = {
        "metadata": {
            "$deleteFromPrimitiveList/finalizers": ["a.example.com/x", "b.example.com/y"],
            "ownerReferences": [{"uid": account["uid"], "$patch": "delete"}],
        }
    }
    here.see("and go", here.patch(f"{pods}/p", away, "strategic")["metadata"].get("finalizers"))
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    here.see("conditions merge", here.patch(f"{pods}/p/status", ready, "strategic")["status"])
    again = {"status": {"conditions": [{"type": "Mine", "status": "True"}]}}
    here.see("by type", here.patch(f"{pods}/p/status", again, "strategic")["status"]["conditions"])


def owned(answer):
    return (
        {"data": answer.body.get("data"), "managers": answer["metadata"]["managedFields"]}
        if answer.status < 300
        else answer
    )


def apply(here, path, manager, data, force=None, **more):
    name = path.rpartition("/")[2]
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    query = {"fieldManager": manager, **({"force": force} if force else {})}
    return here.patch(path, obj, "apply", **query, **more)


def test_apply(here):
    path = here.core("configmaps/a")

    def see(step, answer):
        here.see(step, owned(answer), managed=True)

    see("creates", apply(here, path, "one", {"a": "1", "b": "1"}))
    see("the same again", apply(here, path, "one", {"a": "1", "b": "1"}))
    see("shared", apply(here, path, "two", {"a": "1"}))
    see("conflict", apply(here, path, "two", {"a": "2", "b": "2"}))
    see("forced", apply(here, path, "two", {"a": "2"}, force="true"))
    see("what one no longer says goes", apply(here, path, "one", {"c": "1"}))
    see("an update takes over", here.patch(path, {"data": {"a": "3"}}))
    see("and conflicts with apply", apply(here, path, "two", {"a": "2"}))
    see("the same value does not", apply(here, path, "two", {"a": "3"}))
    see("nothing", apply(here, path, "two", {}))
    here.see("no manager", here.patch(path, CONFIG, "apply"))
    here.see("force where it means nothing", here.patch(path, {}, "merge", force="true"))
    here.see("a name that is too long", apply(here, path, "m" * 129, {}))
    named = {**CONFIG, "metadata": {"name": "other"}}
    here.see("another name", here.patch(path, named, "apply", fieldManager="one"))
    here.see("no kind", here.patch(path, {"metadata": {"name": "a"}}, "apply", fieldManager="one"))
    kept = {**CONFIG, "metadata": {"name": "a", "managedFields": []}}
    here.see(
        "managedFields in the body",
        here.patch(path, {**kept, "metadata": {"name": "a", "managedFields": [{}]}}, "apply", fieldManager="one"),
    )
    gone = {**CONFIG, "metadata": {"name": "a", "resourceVersion": "1"}}
    here.see("a stale version", here.patch(path, gone, "apply", fieldManager="one"))
    here.see("dry", apply(here, here.core("configmaps/dry"), "one", {"a": "1"}, dryRun="All"))
    here.see("managers away", here.patch(path, {"metadata": {"managedFields": [{}]}}), managed=True)


@pytest.mark.parametrize("what", ["containers", "ports", "status"])
def test_apply_to_lists(here, what):
    path = here.apps("deployments/d")
    spec = {"selector": {"matchLabels": {"a": "b"}}, "replicas": 0}

    def container(name, **more):
        return {"name": name, "image": "i", **more}

    def put(manager, containers, sub="", **more):
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}}
        obj = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d"},
            "spec": {**spec, "template": template},
        }
        return here.patch(path + sub, obj, "apply", fieldManager=manager, **more)

    def see(step, answer):
        if answer.status < 300:
            here.see(
                step,
                {
                    "containers": answer["spec"]["template"]["spec"]["containers"],
                    "managers": answer["metadata"]["managedFields"],
                },
                managed=True,
            )
        else:
            here.see(step, answer)

    if what == "containers":
        see("one", put("one", [container("a"), container("b")]))
        see("two adds", put("two", [container("c")]))
        see("two conflicts", put("two", [{"name": "a", "image": "j"}]))
        see("one leaves", put("one", [container("b")]))
        see("twice the same", put("one", [container("b"), container("b")]))
        see("order", put("one", [container("z"), container("b")]))
    elif what == "ports":
        see("one", put("one", [container("a", ports=[{"containerPort": 80}])]))
        see("two", put("two", [{"name": "a", "ports": [{"containerPort": 80, "protocol": "UDP"}]}]))
        see("args are one", put("three", [{"name": "a", "args": ["x"]}]))
        see("and conflict as one", put("four", [{"name": "a", "args": ["y"]}]))
    else:
        see("one", put("one", [container("a")]))
        condition = {"type": "Mine", "status": "True", "lastUpdateTime": "2026-01-01T00:00:00Z"}
        obj = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d"},
            "status": {"conditions": [condition]},
        }
        answer = here.patch(f"{path}/status", obj, "apply", fieldManager="status")
        mine = [entry for entry in answer["metadata"]["managedFields"] if entry["manager"] == "status"]
        here.see("status has managers of its own", mine, managed=True)
        scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 0}}
        here.see("scale", here.patch(f"{path}/scale", scale, "apply", fieldManager="scaler"))
        here.see(
            "scale conflicts",
            here.patch(f"{path}/scale", {**scale, "spec": {"replicas": 1}}, "apply", fieldManager="scaler"),
        )
        kept = here.get(path)["metadata"]["managedFields"]
        here.see("the scaler's", [entry for entry in kept if entry["manager"] == "scaler"], managed=True)
