"""Discovery and the schemas of what is served."""

from __future__ import annotations

import pytest

OTHERS = ".conformance.gpuplane.dev"  # groups that other tests have made meanwhile, on a real cluster
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
GROUPS = [
    "admissionregistration.k8s.io/v1",
    "apiextensions.k8s.io/v1",
    "apiregistration.k8s.io/v1",
    "apps/v1",
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "autoscaling/v1",
    "autoscaling/v2",
    "batch/v1",
    "certificates.k8s.io/v1",
    "coordination.k8s.io/v1",
    "discovery.k8s.io/v1",
    "events.k8s.io/v1",
    "flowcontrol.apiserver.k8s.io/v1",
    "networking.k8s.io/v1",
    "node.k8s.io/v1",
    "policy/v1",
    "rbac.authorization.k8s.io/v1",
    "resource.k8s.io/v1",
    "scheduling.k8s.io/v1",
    "storage.k8s.io/v1",
]


@pytest.mark.alone
def test_groups(here):
    here.see("versions", {**here.get("/api").body, "serverAddressByClientCIDRs": []})
    groups = [g for g in here.get("/apis")["groups"] if not g["name"].endswith(OTHERS)]
    here.see("groups", [(g["name"], [v["version"] for v in g["versions"]]) for g in groups])
    here.see("one group", here.get("/apis/apps"))
    here.see("no such group", here.get("/apis/nosuch"))
    here.see("no such version", here.get("/apis/apps/v9"))
    here.see("version", sorted(here.get("/version").body))
    here.see("its number", [here.get("/version")[k] for k in ("major", "minor")])
    for path in ("/healthz", "/readyz", "/livez", "/readyz/ping"):
        here.see(path, here.get(path))


def test_resources(here):
    for group in ("v1", *GROUPS):
        found = here.get(f"/api/{group}" if group == "v1" else f"/apis/{group}")
        if found.status != 200:
            here.see(group, found)
            continue
        here.see(f"{group} list", {k: v for k, v in found.body.items() if k != "resources"})
        for resource in found["resources"]:
            here.see(f"{group} {resource['name']}", {k: v for k, v in resource.items() if k != "storageVersionHash"})


def test_aggregated(here):
    core = here.get("/api", accept=AGGREGATED)
    here.see("kind", {k: core.body[k] for k in ("kind", "apiVersion", "metadata")})
    resources = {r["resource"]: r for r in core["items"][0]["versions"][0]["resources"]}
    for name in ("configmaps", "pods", "namespaces"):
        here.see(name, resources[name])
    here.see("freshness", core["items"][0]["versions"][0]["freshness"])
    groups = here.get("/apis", accept=AGGREGATED)
    apps = next(item for item in groups["items"] if item["metadata"]["name"] == "apps")
    here.see("apps", {**apps, "versions": [v["version"] for v in apps["versions"]]})
    here.see("media type", groups.headers["content-type"])


def test_schemas(here):
    index = here.get("/openapi/v3")
    here.see("paths", [path for path in ("api/v1", "apis/apps/v1", "version") if path in index["paths"]])
    core = here.get("/openapi/v3/api/v1")["components"]["schemas"]
    pod = core["io.k8s.api.core.v1.Pod"]
    here.see("pod", {"properties": sorted(pod["properties"]), "kind": pod["x-kubernetes-group-version-kind"]})
    spec = core["io.k8s.api.core.v1.PodSpec"]
    here.see("pod spec", {"required": spec["required"], "properties": sorted(spec["properties"])})
    containers = spec["properties"]["containers"]
    here.see("containers", {k: v for k, v in containers.items() if k != "description"})
    here.see("v2", here.get("/openapi/v2")["swagger"])
    here.see("no such group", here.get("/openapi/v3/apis/nosuch/v1"))
