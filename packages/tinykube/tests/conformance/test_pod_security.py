"""PodSecurity: what a namespace's labels refuse and warn about, check by check."""

from __future__ import annotations

import pytest

KEY = "pod-security.kubernetes.io"
STRICT = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
PODS = {
    "plain": {},
    "privileged": {"containers": [{"securityContext": {"privileged": True}}]},
    "host": {"hostNetwork": True, "hostPID": True, "hostIPC": True},
    "host volumes": {
        "volumes": [
            {"name": "a", "hostPath": {"path": "/a"}},
            {"name": "b", "hostPath": {"path": "/b"}},
            {"name": "n", "nfs": {"server": "s", "path": "/"}},
            {"name": "e", "emptyDir": {}},
        ]
    },
    "host ports": {
        "containers": [
            {"ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 443, "hostPort": 443}]},
            {"ports": [{"containerPort": 81, "hostPort": 81}]},
        ]
    },
    "capabilities": {
        "containers": [
            {"securityContext": {"capabilities": {"add": ["NET_ADMIN", "CHOWN"]}}},
            {"securityContext": {"capabilities": {"add": ["SYS_TIME"], "drop": ["ALL"]}}},
        ]
    },
    "proc": {"hostUsers": False, "containers": [{"securityContext": {"procMount": "Unmasked"}}]},
    "labels of SELinux": {
        "securityContext": {"seLinuxOptions": {"type": "spc_t", "user": "u"}},
        "containers": [{"securityContext": {"seLinuxOptions": {"role": "r"}}}],
    },
    "profiles": {
        "securityContext": {"seccompProfile": {"type": "Unconfined"}, "appArmorProfile": {"type": "Unconfined"}},
        "containers": [{"securityContext": {"seccompProfile": {"type": "Unconfined"}}}],
    },
    "sysctls": {
        "securityContext": {
            "sysctls": [
                {"name": "kernel.msgmax", "value": "1"},
                {"name": "net.ipv4.tcp_rmem", "value": "1 1 1"},
                {"name": "net.core.somaxconn", "value": "1"},
            ]
        }
    },
    "root": {
        "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
        "containers": [{"securityContext": {"runAsUser": 0, "runAsNonRoot": False}}],
    },
    "hosts of probes": {
        "containers": [{"livenessProbe": {"httpGet": {"port": 80, "host": "10.0.0.1"}}}],
    },
    "init": {
        "initContainers": [{"name": "i", "image": "i", "securityContext": {"privileged": True}}],
        "containers": [{"securityContext": STRICT}, {"securityContext": STRICT}],
    },
    "strict": {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}},
            {"securityContext": {**STRICT, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}},
        ],
    },
    "windows": {
        "os": {"name": "windows"},
        "hostNetwork": True,
        "securityContext": {"windowsOptions": {"hostProcess": True}},
    },
    "users of its own": {"hostUsers": False, "securityContext": {"runAsUser": 0}},
}


def labelled(here, base, **labels):
    name = here.name(base)
    marks = {f"{KEY}/{key.replace('_', '-')}": value for key, value in labels.items()}
    return here.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": marks}})


def pod(here, name, **spec):
    containers = [{"name": f"c{at}", "image": "i", **more} for at, more in enumerate(spec.pop("containers", [{}]))]
    spec = {"schedulerName": "nobody", "automountServiceAccountToken": False, "containers": containers, **spec}
    return {"metadata": {"name": name}, "spec": spec}


def told(answer):
    return [answer.status, answer.warnings, (answer.body or {}).get("message")]


def settled(here, namespace):
    """Pods are refused until a namespace has its account."""
    here.until(f"/api/v1/namespaces/{namespace}/serviceaccounts/default", lambda found: found)


@pytest.mark.parametrize("level", ["privileged", "baseline", "restricted"])
def test_enforced(here, level):
    space = here.name("ps")
    assert labelled(here, "ps", enforce=level).status == 201
    try:
        settled(here, space)
        for name, spec in PODS.items():
            body = pod(here, "p", **spec)
            here.see(name, told(here.create(f"/api/v1/namespaces/{space}/pods", body, dryRun="All")))
    finally:
        here.delete(f"/api/v1/namespaces/{space}")


def test_warned(here):
    space = here.name("pw")
    assert labelled(here, "pw", warn="restricted", warn_version="v1.22", enforce="baseline").status == 201
    try:
        settled(here, space)
        at = f"/api/v1/namespaces/{space}/pods"
        for name in ("plain", "host", "sysctls", "root", "strict"):
            here.see(name, told(here.create(at, pod(here, "p", **PODS[name]), dryRun="All")))
        template = pod(here, "", **PODS["privileged"])["spec"]
        labels = {"app": "x"}
        spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": template}}
        made = here.create(f"/apis/apps/v1/namespaces/{space}/deployments", {"metadata": {"name": "d"}, "spec": spec})
        here.see("a Deployment", [made.status, made.warnings])
        again = here.patch(f"/apis/apps/v1/namespaces/{space}/deployments/d", {"spec": {"paused": True}})
        here.see("a Deployment changed", [again.status, again.warnings])
    finally:
        here.delete(f"/api/v1/namespaces/{space}")


def test_labels(here):
    for name, labels in {
        "level": {"enforce": "none"},
        "version": {"enforce": "baseline", "enforce_version": "1.20"},
        "two": {"warn": "x", "audit_version": "y"},
        "later": {"enforce": "baseline", "enforce_version": "v1.99"},
    }.items():
        here.see(name, told(labelled(here, "pl", **labels)))
    here.delete(f"/api/v1/namespaces/{here.name('pl')}")


def test_what_is_there_already(here):
    space = here.name("pt")
    assert labelled(here, "pt").status == 201
    at, pods = f"/api/v1/namespaces/{space}", f"/api/v1/namespaces/{space}/pods"
    try:
        settled(here, space)
        for name in ("a", "b"):
            here.made(pods, pod(here, name))
        here.made(pods, pod(here, "h", **PODS["host"]))
        here.made(pods, pod(here, "s", **PODS["strict"]))
        enforce = {"metadata": {"labels": {f"{KEY}/enforce": "restricted"}}}
        here.see("tightened", told(here.patch(at, enforce)))
        here.see("again", told(here.patch(at, enforce)))
        here.see("labels of a pod", told(here.patch(f"{pods}/h", {"metadata": {"labels": {"a": "b"}}})))
        image = {"spec": {"containers": [{"name": "c0", "image": "j"}]}}
        here.see("image of a pod", told(here.patch(f"{pods}/h", image, "strategic")))
        debugger = {"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}}
        here.see("a debugger", told(here.patch(f"{pods}/s/ephemeralcontainers", debugger, "strategic")))
        here.see("loosened", told(here.patch(at, {"metadata": {"labels": {f"{KEY}/enforce": "privileged"}}})))
        here.see("wrong", told(here.patch(at, {"metadata": {"labels": {f"{KEY}/enforce": "x"}}})))
    finally:
        here.delete(at)
