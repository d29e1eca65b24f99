"""Resizes of pods in place, as the API server judges them: the kubelet is not asked."""

from __future__ import annotations


def resources(cpu, memory="64Mi", **limits):
    found = {"requests": {"cpu": cpu, "memory": memory}}
    return {**found, "limits": limits} if limits else found


def resizing(here, name, pod, *containers):
    patch = {"spec": {"containers": list(containers)}}
    here.see(name, here.patch(f"{here.core('pods')}/{pod}/resize", patch, "strategic"))


def made(here, name, **more):
    containers = [
        {"name": "a", "image": "i", "resources": resources("100m")},
        {"name": "b", "image": "i", "resources": {**resources("100m"), "limits": {"cpu": "1", "nvidia.com/gpu": "1"}}},
    ]
    here.made(here.core("pods"), here.pod(name, containers=containers, **{"schedulerName": "nobody", **more}))


def test_what_a_resize_changes(here):
    made(here, "p")
    resizing(here, "more", "p", {"name": "a", "resources": resources("200m")})
    resizing(here, "the same", "p", {"name": "a", "resources": resources("200m")})
    resizing(here, "an image too", "p", {"name": "a", "image": "other", "resources": resources("300m")})
    resizing(here, "less", "p", {"name": "b", "resources": {"limits": {"cpu": "500m"}}})
    here.see("read", here.get(f"{here.core('pods')}/p/resize"))


def test_what_a_resize_may_not_do(here):
    made(here, "p")
    resizing(here, "no request", "p", {"name": "a", "resources": {"requests": {"cpu": None}}})
    resizing(here, "no limit", "p", {"name": "b", "resources": {"limits": {"cpu": None}}})
    resizing(here, "GPUs", "p", {"name": "b", "resources": {"limits": {"nvidia.com/gpu": "2"}}})
    resizing(here, "another container", "p", {"name": "c", "image": "i"})
    resizing(here, "negative", "p", {"name": "a", "resources": resources("-1")})
    resizing(here, "above its limit", "p", {"name": "b", "resources": resources("2")})
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    resizing(here, "another policy", "p", {"name": "a", "resizePolicy": policy})
    one = {"cpu": "1", "memory": "64Mi"}
    best = [{"name": "a", "image": "i", "resources": {"requests": one, "limits": one}}]
    here.made(here.core("pods"), here.pod("guaranteed", schedulerName="nobody", containers=best))
    resizing(here, "another class", "guaranteed", {"name": "a", "resources": {"limits": {"cpu": "2"}}})


def test_a_resize_within_quotas_and_ranges(here):
    made(here, "p")
    path = here.core("resourcequotas")
    here.made(path, {"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "500m"}}})
    here.until(f"{path}/q", lambda found: (found.get("status") or {}).get("used"))
    resizing(here, "beyond the quota", "p", {"name": "a", "resources": resources("450m")})
    resizing(here, "within it", "p", {"name": "a", "resources": resources("400m")})
    here.until(f"{path}/q", lambda found: found["status"]["used"].get("requests.cpu") == "500m")
    limits = [{"type": "Container", "max": {"memory": "100Mi"}}]
    here.made(here.core("limitranges"), {"metadata": {"name": "l"}, "spec": {"limits": limits}})
    resizing(here, "beyond the range", "p", {"name": "b", "resources": {"limits": {"memory": "200Mi"}}})


def test_resize_policies(here):
    def creating(name, restarts, *policies):
        rows = [{"resourceName": what, "restartPolicy": policy} for what, policy in policies]
        containers = [{"name": "a", "image": "i", "resizePolicy": rows}]
        pod = here.pod("p", schedulerName="nobody", restartPolicy=restarts, containers=containers)
        here.see(name, here.create(here.core("pods"), pod, dryRun="All"))

    creating("twice", "Always", ("cpu", "NotRequired"), ("cpu", "NotRequired"))
    creating("another resource", "Always", ("nvidia.com/gpu", "NotRequired"))
    creating("another policy", "Always", ("cpu", "Perhaps"))
    creating("restarts of a pod that never does", "Never", ("cpu", "RestartContainer"))
    creating("both", "OnFailure", ("cpu", "NotRequired"), ("memory", "RestartContainer"))
