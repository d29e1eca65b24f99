"""ResourceQuotas: counted, enforced when something is made, free again when it is gone."""

from __future__ import annotations

import time

import pytest

from tests.support.anycluster.api import PATIENCE_S


def quota(here, name, **spec):
    """The path of one that a controller has counted."""
    path = here.core("resourcequotas")
    here.made(path, {"metadata": {"name": name}, "spec": spec})
    here.until(f"{path}/{name}", lambda found: (found.get("status") or {}).get("used"))
    return f"{path}/{name}"


def until_used(here, path, **wanted):
    """Its status, once so much of these is used."""
    return here.until(path, lambda found: wanted.items() <= found["status"]["used"].items())["status"]


def until_allowed(here, pods, pod):
    """Returns when the quota's new state has reached the API server, which checks with a copy of it."""
    deadline = time.monotonic() + PATIENCE_S
    while here.create(pods, pod, dryRun="All").status == 403 and time.monotonic() < deadline:
        pass


def asking(here, name, more=None, **spec):
    container = {"name": "c", "image": "i", "resources": more or {}}
    return here.pod(name, schedulerName="nobody", containers=[container], **spec)


def gpus(here, name, count):
    return asking(here, name, {"limits": {"nvidia.com/gpu": str(count)}})


def test_gpus(here):
    path = here.core("resourcequotas")
    hard = {"pods": "3", "requests.nvidia.com/gpu": "3"}
    here.see("made", here.create(path, {"metadata": {"name": "q"}, "spec": {"hard": hard}}))
    path, pods = f"{path}/q", here.core("pods")
    here.until(path, lambda found: (found.get("status") or {}).get("used"))
    here.see("counted", here.get(path))
    here.made(pods, gpus(here, "a", 2))
    here.see("used", until_used(here, path, pods="1"))
    here.see("too many", here.create(pods, gpus(here, "b", 2)))
    here.made(pods, gpus(here, "b", 1))
    here.see("nothing asked", here.create(pods, asking(here, "c")).status)
    here.see("all used", until_used(here, path, pods="3"))
    here.see("of everything", here.create(pods, gpus(here, "d", 1)))
    here.see("dry run", here.create(pods, gpus(here, "d", 1), dryRun="All").status)
    here.delete(f"{pods}/a", gracePeriodSeconds=0)
    here.see("free again", until_used(here, path, pods="2"))
    until_allowed(here, pods, gpus(here, "d", 2))
    here.see("so it fits", here.create(pods, gpus(here, "d", 2)).status)
    here.patch(path, {"spec": {"hard": {"pods": "9"}}})
    here.until(path, lambda found: found["status"]["hard"]["pods"] == "9")
    until_allowed(here, pods, asking(here, "e"))
    here.see("more is allowed", here.create(pods, asking(here, "e")).status)


def test_compute(here):
    path = quota(here, "q", hard={"requests.cpu": "1", "limits.memory": "1Gi", "cpu": "2"})
    pods = here.core("pods")
    here.see("unsaid", here.create(pods, asking(here, "a")))
    here.see("half said", here.create(pods, asking(here, "a", {"requests": {"cpu": "1"}})))
    fits = {"requests": {"cpu": "600m"}, "limits": {"memory": "512Mi"}}
    here.made(pods, asking(here, "a", fits))
    here.see("used", until_used(here, path, **{"requests.cpu": "600m"}))
    here.see("too much", here.create(pods, asking(here, "b", fits)))
    here.made(pods, asking(here, "b", {"requests": {"cpu": "0.4"}, "limits": {"memory": "0.5Gi"}}))
    here.see("to the last", until_used(here, path, **{"requests.cpu": "1"}))


def test_what_has_ended_is_free(here):
    here.node("a")
    path = quota(here, "q", hard={"pods": "1"})
    pod = here.pod("p", containers=[{"name": "c", "image": "done"}], restartPolicy="Never")
    here.made(here.core("pods"), pod)
    here.until(here.core("pods/p"), lambda found: found["status"]["phase"] == "Succeeded")
    here.see("used", until_used(here, path, pods="0"))
    until_allowed(here, here.core("pods"), asking(here, "q"))
    here.see("so it fits", here.create(here.core("pods"), asking(here, "q")).status)


def service(name, kind="ClusterIP"):
    ports = [{"name": "a", "port": 80}, {"name": "b", "port": 81}]
    return {"metadata": {"name": name}, "spec": {"type": kind, "ports": ports, "selector": {"a": "b"}}}


def test_services(here):
    hard = {"services": "3", "services.nodeports": "3", "services.loadbalancers": "0"}
    path, services = quota(here, "q", hard=hard), here.core("services")
    here.made(services, service("plain"))
    here.made(services, service("ports", "NodePort"))
    here.see("used", until_used(here, path, services="2", **{"services.nodeports": "2"}))
    here.see("too many ports", here.create(services, service("more", "NodePort")))
    here.see("a load balancer", here.create(services, service("more", "LoadBalancer")))
    here.see("a change", here.patch(f"{services}/plain", {"spec": {"type": "NodePort"}}))
    here.patch(f"{services}/ports", {"spec": {"type": "ClusterIP"}})
    here.see("free again", until_used(here, path, **{"services.nodeports": "0"}))


def claim(name, storage, of_class=None):
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}}
    return {"metadata": {"name": name}, "spec": {**spec, "storageClassName": of_class or ""}}


def test_claims(here):
    of_class = "fast.storageclass.storage.k8s.io"
    hard = {"persistentvolumeclaims": "3", "requests.storage": "3Gi", f"{of_class}/requests.storage": "1Gi"}
    hard |= {f"{of_class}/persistentvolumeclaims": "1"}
    path, claims = quota(here, "q", hard=hard), here.core("persistentvolumeclaims")
    here.made(claims, claim("a", "1Gi"))
    here.made(claims, claim("b", "512Mi", "fast"))
    here.see("used", until_used(here, path, persistentvolumeclaims="2"))
    here.see("too much", here.create(claims, claim("c", "2Gi")))
    here.see("too much of a class", here.create(claims, claim("c", "1Gi", "fast")))


def test_counts(here):
    here.until(here.core("configmaps/kube-root-ca.crt"), lambda found: found)
    path = quota(here, "q", hard={"count/configmaps": "2", "secrets": "0", "count/deployments.apps": "0"})
    here.see("counted", here.get(path)["status"])
    configmaps = here.core("configmaps")
    here.made(configmaps, {"metadata": {"name": "a"}})
    until_used(here, path, **{"count/configmaps": "2"})
    here.see("one more", here.create(configmaps, {"metadata": {"name": "b"}}))
    here.see("changes are free", here.patch(f"{configmaps}/a", {"data": {"k": "v"}}).status)
    here.see("a secret", here.create(here.core("secrets"), {"metadata": {"name": "s"}}))
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}, "spec": asking(here, "x")["spec"]}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    here.see("a deployment", here.create(here.apps("deployments"), {"metadata": {"name": "d"}, "spec": spec}))
    here.delete(f"{configmaps}/a")
    here.see("free again", until_used(here, path, **{"count/configmaps": "1"}))


@pytest.mark.parametrize("operator", ["In", "Exists"])
def test_scopes(here, operator):
    """Only pods of a priority class are counted and held back."""
    name = here.name("high")
    here.made("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": 1000})
    chosen = {"scopeName": "PriorityClass", "operator": operator, **({"values": [name]} if operator == "In" else {})}
    path = quota(here, "q", hard={"pods": "1"}, scopeSelector={"matchExpressions": [chosen]})
    pods = here.core("pods")
    here.made(pods, asking(here, "plain"))
    here.made(pods, asking(here, "a", priorityClassName=name))
    here.see("used", until_used(here, path, pods="1"))
    here.see("another", here.create(pods, asking(here, "b", priorityClassName=name)))
    here.see("another plain one", here.create(pods, asking(here, "c")).status)
    other = {"metadata": {"name": "other"}, "spec": {"hard": {"pods": "0"}, "scopes": ["BestEffort"]}}
    here.made(here.core("resourcequotas"), other)
    here.until(here.core("resourcequotas/other"), lambda found: (found.get("status") or {}).get("used"))
    here.see("best effort", here.create(pods, asking(here, "d")))
    burstable = {"requests": {"cpu": "1m"}}
    here.see("not best effort", here.create(pods, asking(here, "d", burstable)).status)


WRONG = {
    "an unknown scope": {"scopes": ["Nonsense"]},
    "scopes that exclude each other": {"scopes": ["BestEffort", "NotBestEffort"]},
    "no quantity": {"hard": {"pods": "many"}},
    "less than nothing": {"hard": {"pods": "-1"}},
    "half a pod": {"hard": {"pods": "500m"}},
    "a name": {"hard": {"thing": "1"}},
    "a GPU that is not requested": {"hard": {"nvidia.com/gpu": "1"}},
    "a limit on GPUs": {"hard": {"limits.nvidia.com/gpu": "1"}},
}


def test_wrong_ones(here):
    for what, spec in WRONG.items():
        made = {"metadata": {"name": "q"}, "spec": spec}
        here.see(what, here.create(here.core("resourcequotas"), made, dryRun="All"))
