"""Resizes of pods in place: what a client may change, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest

PODS = "/api/v1/namespaces/default/pods"
QUOTAS = "/api/v1/namespaces/default/resourcequotas"


def amounts(cpu: str, memory: str = "64Mi") -> dict[str, Any]:
    return {"requests": {"cpu": cpu, "memory": memory}}


async def made(api: Any, **spec: Any) -> dict[str, Any]:
    containers = [
        {"name": "a", "image": "i", "resources": amounts("100m")},
        {"name": "b", "image": "i", "resources": {**amounts("100m"), "limits": {"cpu": "1", "example.com/x": "1"}}},
    ]
    spec = {"containers": containers, **spec}
    return await api.create(PODS, {"metadata": {"name": "p"}, "spec": spec})


def part(name: str, **fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": name, **fields}]}}


async def resize(api: Any, body: dict[str, Any]) -> Any:
    return await api.patch(f"{PODS}/p/resize", body, "strategic")


async def test_a_resize_changes_resources_and_nothing_else(api: Any) -> None:
    await made(api)
    body = part("a", image="other", resources=amounts("200m"))
    body["metadata"] = {"labels": {"x": "y"}}
    answer = await resize(api, body)
    assert answer.status == 200
    (first, _) = answer.json["spec"]["containers"]
    assert (first["image"], first["resources"]["requests"]["cpu"]) == ("i", "200m")
    assert "labels" not in answer.json["metadata"] and answer.json["metadata"]["generation"] == 2
    assert (await api.get(f"{PODS}/p/resize")) == (await api.get(f"{PODS}/p"))
    again = await resize(api, part("a", resources=amounts("200m")))
    assert again.json["metadata"]["generation"] == 2


async def test_a_replace_resizes_and_sidecars_are_resized_too(api: Any) -> None:
    sidecar = {"name": "s", "image": "i", "restartPolicy": "Always", "resources": amounts("10m")}
    pod = await made(api, initContainers=[sidecar])
    pod["spec"]["initContainers"][0]["resources"] = amounts("20m")
    pod["spec"]["containers"][0]["resources"] = amounts("300m")
    answer = await api("PUT", f"{PODS}/p/resize", pod)
    assert answer.status == 200
    spec = answer.json["spec"]
    assert spec["initContainers"][0]["resources"] == amounts("20m")
    assert spec["containers"][0]["resources"] == amounts("300m")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (part("a", resources={"requests": {"cpu": None}}), "resource requests cannot be removed"),
        (part("b", resources={"limits": {"cpu": None}}), "resource limits cannot be removed"),
        (part("b", resources={"limits": {"example.com/x": "2"}}), "only cpu and memory resources are mutable"),
        (part("a", resizePolicy=[{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]), "are mutable"),
        (part("new", image="i"), "containers may not be added or removed on resize"),
        (part("a", resources={"requests": {"cpu": "-1"}}), "must be greater than or equal to 0"),
    ],
)
async def test_what_a_resize_may_not_do(api: Any, body: dict[str, Any], words: str) -> None:
    before = await made(api)
    answer = await resize(api, body)
    assert answer.status == 422 and words in answer.json["message"], answer.json["message"]
    assert (await api.get(f"{PODS}/p"))["spec"] == before["spec"]


async def test_the_qos_class_stays(api: Any) -> None:
    same = {"cpu": "1", "memory": "64Mi"}
    guaranteed = {"name": "a", "image": "i", "resources": {"requests": same, "limits": same}}
    await made(api, containers=[guaranteed])
    answer = await resize(api, part("a", resources={"limits": {"cpu": "2"}}))
    assert answer.status == 422
    assert "Pod QOS Class may not change as a result of resizing" in answer.json["message"]


async def test_a_pod_whose_kubelet_does_not_say_what_it_has_is_not_resized(api: Any) -> None:
    await made(api)
    running = {"name": "a", "image": "i", "imageID": "", "ready": True, "restartCount": 0}
    running["state"] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    await api.patch(f"{PODS}/p/status", {"status": {"containerStatuses": [running]}})
    answer = await resize(api, part("a", resources=amounts("200m")))
    assert answer.status == 422 and "Pod running on node without support for resize" in answer.json["message"]


async def test_restart_policies_of_resizes_are_checked(api: Any) -> None:
    policies = [{"resourceName": name, "restartPolicy": "RestartContainer"} for name in ("cpu", "cpu", "example.com/x")]
    body = {"metadata": {"name": "p"}, "spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "i"}]}}
    body["spec"]["containers"][0]["resizePolicy"] = policies
    answer = await api("POST", PODS, body)
    assert answer.status == 422
    for words in ("Duplicate value", 'supported values: "cpu", "memory"', "must be 'NotRequired' when pod"):
        assert words in answer.json["message"]
