"""ConfigMaps and Secrets that a kubelet watches: those of pods that have not ended."""

from __future__ import annotations

from typing import Any

SLEEP = "while :; do sleep 0.05; done"


def mounts(script: str) -> dict[str, Any]:
    """Return the fields of a pod that mounts the ConfigMap `cfg` and has a variable from the Secret `key`."""
    variable = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "key"}}}
    container = {"name": "c", "image": "debian", "command": ["sh", "-c", script], "env": [variable]}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container | {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "configMap": {"name": "cfg"}}],
    }


async def make_objects(api: Any) -> None:
    await api.registry.create("configmaps", "default", {"metadata": {"name": "cfg"}, "data": {"a": "old"}})
    await api.registry.create("secrets", "default", {"metadata": {"name": "key"}, "stringData": {"key": "1"}})


def watched(node: Any) -> set[str]:
    return {name for _, _, name in node.kubelet.machine.objects.watched}


async def test_an_object_is_watched_until_the_last_of_its_pods_has_ended(api: Any, make_node: Any) -> None:
    node = await make_node()
    await make_objects(api)
    await api.create_pod("stays", **mounts("until grep -q new /v/a; do sleep 0.02; done; cat /v/a"))
    await api.phase("Running", "stays")
    await api.create_pod("short", **mounts("true"))
    await api.phase("Succeeded", "short")
    assert {"cfg", "key"} <= watched(node)
    await api.registry.patch("configmaps", "default", "cfg", {"data": {"a": "new"}}, "merge")
    await api.phase("Succeeded", "stays")
    assert node.log("stays") == "new\n"
    assert watched(node) == set()


async def test_an_object_is_no_longer_watched_once_its_pod_is_deleted(api: Any, make_node: Any) -> None:
    node = await make_node()
    await make_objects(api)
    for _ in range(2):  # the second pod finds objects that were watched before
        await api.create_pod(**mounts(SLEEP))
        await api.phase("Running")
        assert {"cfg", "key"} <= watched(node)
        await api.registry.delete("pods", "default", "one")
        await node.kubelet.idle()
        assert watched(node) == set()


async def test_an_object_that_never_comes_is_no_longer_watched_either(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.create_pod(**mounts("true"))
    await api.until(lambda: "FailedMount" in api.reasons())
    assert {"cfg", "key"} <= watched(node)
    await api.registry.delete("pods", "default", "one")
    await node.kubelet.idle()
    assert watched(node) == set()
