"""The driver of each node, and the DaemonSets that follow from it: tables over plain objects."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.api.gpunode import GPUNode, GPUNodeStatus, Stage, StageState
from gpuplane.api.nvidiadriver import NVIDIADriver, NVIDIADriverSpec
from gpuplane.operator.decide import decide
from gpuplane.operator.driver_objects import status_of
from gpuplane.operator.drivers import (
    DriverAssignment,
    DriverGroup,
    assign,
    choices,
    driver_groups,
    image_of,
    owner_of,
    why_none,
)
from gpuplane.operator.observed import ObservedNode
from gpuplane.operator.operands import manifests
from kubekit.api.core import Node
from kubekit.api.meta import ObjectMeta

NOW = "2026-11-20T10:00:00.000000Z"
PUBLISHED = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "570.133.20"}
UBUNTU = ("ubuntu", "22.04", "5.15.0-97-generic")
OLDER = ("ubuntu", "22.04", "5.15.0-91-generic")
ROCKY = ("rocky", "9.4", "5.14.0-427.13.1.el9_4.x86_64")
DEBIAN = ("debian", "12", "6.1.0-18-amd64")


def node(name: str, system: tuple[str, str, str] = UBUNTU, gpu: bool = True, **labels: str) -> Node:
    found = {
        names.OS_ID_LABEL: system[0],
        names.OS_VERSION_LABEL: system[1],
        names.OS_MAJOR_LABEL: system[1].partition(".")[0],
        names.KERNEL_VERSION_LABEL: system[2],
        **({names.PCI_PRESENT_LABELS[0]: "true"} if gpu else {}),
        **labels,
    }
    return Node(metadata=ObjectMeta(name=name, labels=found))


def spec(**driver: Any) -> ClusterPolicySpec:
    return msgspec.convert({"driver": driver}, ClusterPolicySpec)


def pool(name: str, created: str = "2026-01-01T00:00:00Z", **fields: Any) -> NVIDIADriver:
    metadata = ObjectMeta(name=name, creation_timestamp=created)
    return NVIDIADriver(metadata=metadata, spec=msgspec.convert(fields, NVIDIADriverSpec))


def daemonsets(wanted: ClusterPolicySpec, nodes: list[Node], *drivers: NVIDIADriver, **more: Any) -> dict[str, Any]:
    found = choices(wanted, drivers)
    groups = driver_groups(nodes, found, assign(nodes, found))
    made = manifests(wanted, groups, image="ours:1", owner={"uid": "u"}, **more)
    return {m["metadata"]["name"]: m for m in made if m["metadata"]["name"].startswith("nvidia-driver-")}


def env(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


def runs_on(manifest: dict[str, Any], found: Node) -> bool:
    selector = manifest["spec"]["template"]["spec"]["nodeSelector"]
    labels = {**found.metadata.labels, names.DEPLOY_PREFIX + "driver": "true"}
    return all(labels.get(key) == value for key, value in selector.items())


def test_our_own_installer_has_a_daemonset_for_each_system_and_kernel() -> None:
    nodes = [node("a"), node("b", OLDER), node("c", ROCKY), node("d", UBUNTU), node("e", DEBIAN, gpu=False)]
    made = daemonsets(spec(version="570.133.20", kernelModuleType="open"), nodes)
    assert sorted(made) == [
        "nvidia-driver-daemonset-5.14.0-427.13.1.el9-4.x86-64-rocky9.4",
        "nvidia-driver-daemonset-5.15.0-91-generic-ubuntu22.04",
        "nvidia-driver-daemonset-5.15.0-97-generic-ubuntu22.04",
    ]
    for found in nodes:
        assert sum(runs_on(manifest, found) for manifest in made.values()) == (found.metadata.name != "e")
    (container,) = made["nvidia-driver-daemonset-5.15.0-97-generic-ubuntu22.04"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["image"] == "ours:1"
    assert env(container).items() >= {"DRIVER_VERSION": "570.133.20", "KERNEL_MODULE_TYPE": "open"}.items()


def test_a_published_image_runs_under_its_own_entry_point_with_the_systems_tag() -> None:
    nodes = [node("a"), node("b", OLDER), node("c", ROCKY), node("d", DEBIAN)]
    made = daemonsets(spec(**PUBLISHED, args=["-a"], startupProbe={"periodSeconds": 7}), nodes)
    images = {
        name.removeprefix("nvidia-driver-daemonset-"): m["spec"]["template"]["spec"]["containers"][0]["image"]
        for name, m in made.items()
    }
    assert images == {
        "debian12": "nvcr.io/nvidia/driver:570.133.20-debian12",
        "rocky9": "nvcr.io/nvidia/driver:570.133.20-rocky9",
        "ubuntu22.04": "nvcr.io/nvidia/driver:570.133.20-ubuntu22.04",
    }
    for found in nodes:
        assert sum(runs_on(manifest, found) for manifest in made.values()) == 1
    pod = made["nvidia-driver-daemonset-rocky9"]["spec"]["template"]["spec"]
    main, watcher = pod["containers"]
    (before,) = pod["initContainers"]
    assert (main["command"], main["args"]) == (["nvidia-driver"], ["init", "-a"])
    assert (watcher["image"], before["image"]) == ("ours:1", "ours:1")
    assert env(watcher)["GPUPLANE_DRIVER_SOURCE"] == "container"
    assert env(before)["GPUPLANE_DRIVER_SOURCE"] == "before-container"
    assert main["startupProbe"]["periodSeconds"] == 7
    assert main["startupProbe"]["failureThreshold"] == 120
    shared = next(mount for mount in main["volumeMounts"] if mount["name"] == "run-nvidia")
    assert (shared["mountPath"], shared["mountPropagation"]) == ("/run/nvidia", "Bidirectional")
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in (main, watcher, before):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


@pytest.mark.parametrize(
    ("source", "image"),
    [
        ({"version": "570", "usePrecompiled": True}, "nvcr.io/nvidia/driver:570-5.15.0-97-generic-ubuntu22.04"),
        ({"version": "sha256:ab"}, "nvcr.io/nvidia/driver@sha256:ab"),
        ({"repository": "", "version": "", "image": "m.example/d:1"}, "m.example/d:1-ubuntu22.04"),
        ({"repository": "", "image": "", "version": "570.133.20"}, ""),
        ({"repository": "", "image": "", "version": ""}, ""),
    ],
)
def test_the_name_of_the_image(source: dict[str, Any], image: str) -> None:
    (choice,) = choices(spec(**{**PUBLISHED, **source}), ())
    ((group, _),) = driver_groups([node("a")], [choice], assign([node("a")], [choice])).items()
    assert image_of(choice, group) == image


@pytest.mark.parametrize(
    "source",
    [
        {"repository": "nvcr.io/nvidia"},
        {"image": "driver", "version": "570.133.20"},
        {**PUBLISHED, "version": "sha256:ab", "usePrecompiled": True},
        {"image": "m.example/d:1", "usePrecompiled": True},
    ],
)
def test_half_an_image_is_no_daemonset_and_says_so(source: dict[str, Any]) -> None:
    assert daemonsets(spec(**source), [node("a")]) == {}
    found = choices(spec(**source), ())
    reason, message, cure = why_none(owner_of(node("a").metadata.labels, found), found)
    assert reason == "DriverImageInvalid"
    assert "ClusterPolicy spec.driver" in message
    assert cure


def test_files_for_the_image_lie_among_its_own_and_for_us_in_directories() -> None:
    configs = {
        "kernelModuleConfig": {"name": "modules"},
        "repoConfig": {"configMapName": "repos"},
        "certConfig": {"name": "certs"},
        "licensingConfig": {"secretName": "grid"},
        "virtualTopology": {"config": "topology"},
        "secretEnv": "token",
        "rdma": {"enabled": True, "useHostMofed": True},
    }
    keys = {"modules": ("nvidia.conf",), "repos": ("a.list",), "certs": ("ca.crt",)}
    (theirs,) = daemonsets(spec(**PUBLISHED, **configs), [node("a")], keys=keys).values()
    main = theirs["spec"]["template"]["spec"]["containers"][0]
    paths = {mount["mountPath"]: mount.get("subPath") for mount in main["volumeMounts"] if mount.get("subPath")}
    assert paths == {
        "/drivers/nvidia.conf": "nvidia.conf",
        "/etc/apt/sources.list.d/a.list": "a.list",
        "/usr/local/share/ca-certificates/ca.crt": "ca.crt",
        "/drivers/gridd.conf": "gridd.conf",
        "/drivers/ClientConfigToken/client_configuration_token.tok": "client_configuration_token.tok",
        "/etc/nvidia/nvidia-topologyd.conf": "nvidia-topologyd.conf",
    }
    assert main["envFrom"] == [{"secretRef": {"name": "token"}}]
    assert env(main).items() >= {"GPU_DIRECT_RDMA_ENABLED": "true", "USE_HOST_MOFED": "true"}.items()
    (ours,) = daemonsets(spec(version="570.133.20", **configs), [node("a")]).values()
    main = ours["spec"]["template"]["spec"]["containers"][0]
    assert {mount["mountPath"] for mount in main["volumeMounts"]} == {
        "/host",
        "/run/nvidia",
        names.DRIVER_MODULES_DIR,
        names.DRIVER_REPOSITORIES_DIR,
        names.DRIVER_CERTIFICATES_DIR,
    }
    assert env(main)["GPU_DIRECT_RDMA_ENABLED"] == "true"


@pytest.mark.parametrize(("on_host", "sources"), [(False, "/run/mellanox/drivers/usr/src"), (True, "/usr/src")])
def test_peer_memory_is_compiled_against_the_network_driver_of_the_container_or_the_host(
    on_host: bool, sources: str
) -> None:
    rdma = {"enabled": True, "useHostMofed": on_host}
    (made,) = daemonsets(spec(**PUBLISHED, rdma=rdma), [node("a")]).values()
    pod = made["spec"]["template"]["spec"]
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
    assert (paths["run-mellanox-drivers"], paths["mlnx-ofed-usr-src"]) == ("/run/mellanox/drivers", sources)
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["mlnx-ofed-usr-src"] == "/run/mellanox/drivers/usr/src"
    assert ("USE_HOST_MOFED" in env(pod["containers"][0])) is on_host


def test_an_image_for_one_kernel_gets_no_repositories_and_no_certificates() -> None:
    configs = {"kernelModuleConfig": {"name": "m"}, "repoConfig": {"configMapName": "r"}, "certConfig": {"name": "c"}}
    (made,) = daemonsets(spec(**PUBLISHED, **configs, usePrecompiled=True), [node("a")]).values()
    volumes = {volume["name"] for volume in made["spec"]["template"]["spec"]["volumes"]}
    assert volumes & {"kernel-modules", "repositories", "certificates"} == {"kernel-modules"}


def test_installing_switched_off_is_told_to_the_operand() -> None:
    (made,) = daemonsets(spec(enabled=False), [node("a")]).values()
    assert env(made["spec"]["template"]["spec"]["containers"][0])["GPUPLANE_DRIVER_INSTALL"] == "false"


@pytest.mark.parametrize("useNvidiaDriverCRD", [False, True])
def test_a_driver_image_does_not_run_where_installing_is_switched_off(useNvidiaDriverCRD: bool) -> None:
    """NVIDIA's values file names an image, and many clusters add `driver.enabled=false` to it."""
    digest = PUBLISHED | {"version": "sha256:0"}
    wanted = spec(enabled=False, useNvidiaDriverCRD=useNvidiaDriverCRD, **digest)
    (made,) = daemonsets(wanted, [node("a")], pool("default", default=True, **digest)).values()
    pod = made["spec"]["template"]["spec"]
    assert [one["image"] for one in (*pod.get("initContainers", ()), *pod["containers"])] == ["ours:1"]
    variables = env(pod["containers"][0])
    assert variables[names.DRIVER_INSTALL_ENV] == "false"
    assert names.DRIVER_VERSION_ENV not in variables


def test_nvidiadrivers_have_the_nodes_that_they_select_and_the_default_the_others() -> None:
    nodes = [node("a", tier="train"), node("b"), node("c", ROCKY, tier="train")]
    drivers = [
        pool("train", nodeSelector={"tier": "train"}, version="580.65.06", priorityClassName="mine"),
        pool("rest", default=True, **PUBLISHED),
    ]
    wanted = spec(useNvidiaDriverCRD=True)
    found = choices(wanted, drivers)
    owners = assign(nodes, found).owners
    assert owners == {"a": "train", "b": "rest", "c": "train"}
    made = daemonsets(wanted, nodes, *drivers)
    assert len(made) == 3
    labelled = [
        Node(
            metadata=ObjectMeta(
                name=n.metadata.name,
                labels={**n.metadata.labels, names.DRIVER_OWNER_LABEL: owners[n.metadata.name]},
            )
        )
        for n in nodes
    ]
    for found_node in labelled:
        (only,) = [manifest for manifest in made.values() if runs_on(manifest, found_node)]
        pod = only["spec"]["template"]["spec"]
        trains = owners[found_node.metadata.name] == "train"
        assert pod["priorityClassName"] == ("mine" if trains else "system-node-critical")
        assert pod["containers"][0]["name"] == ("driver" if trains else "nvidia-driver-ctr")
    # No DaemonSet of the ClusterPolicy's own driver is left, and a node without a driver reports so.
    assert daemonsets(wanted, nodes) == {}
    assert why_none(owner_of(nodes[0].metadata.labels, []), [])[0] == "NoDriverForNode"


def test_a_node_that_two_select_stays_with_the_one_that_it_has_and_the_other_says_so() -> None:
    old, new = pool("old", nodeSelector={"x": "1"}), pool("new", "2026-02-01T00:00:00Z", nodeSelector={"y": "1"})
    nodes = [node("both", x="1", y="1"), node("mine", y="1")]
    found = choices(spec(useNvidiaDriverCRD=True), [new, old])
    told = assign(nodes, found)
    assert told.owners == {"both": "old", "mine": "new"}
    assert told.refused == {"new": "NVIDIADriver old has node both"}
    status = status_of(new, found[1], told, {}, NOW)
    assert status["state"] == "notReady"
    error = next(one for one in status["conditions"] if one["type"] == "Error")
    assert (error["status"], error["reason"]) == ("True", "ConflictingNodeSelector")
    assert "node both" in error["message"]
    assert status_of(old, found[0], told, {}, NOW)["conditions"][1]["status"] == "False"
    # The first driver of the node stays, at any age of the objects.
    kept = assign([node("both", x="1", y="1", **{names.DRIVER_OWNER_LABEL: "new"})], found)
    assert kept.owners == {"both": "new"}
    assert list(kept.refused) == ["old"]


def test_the_status_of_an_nvidiadriver() -> None:
    driver = pool("d", nodeSelector={"x": "1"})
    (choice,) = choices(spec(useNvidiaDriverCRD=True), [driver])
    told = DriverAssignment({"a": "d", "b": "d", "c": "other"})
    done = GPUNodeStatus(stages={"driver": Stage(state=StageState.DONE)})
    ready = {name: GPUNode(metadata=ObjectMeta(name=name), status=done) for name in "ab"}
    assert status_of(driver, choice, told, ready, NOW)["state"] == "ready"
    waiting = status_of(driver, choice, told, {"a": ready["a"]}, NOW)
    assert waiting["state"] == "notReady"
    assert "b of 2 nodes" in waiting["conditions"][0]["message"]
    assert status_of(driver, None, told, ready, NOW)["state"] == "disabled"
    assert status_of(driver, choice, DriverAssignment(), {}, NOW)["conditions"][0]["reason"] == "NoGPUNodes"
    half = pool("h", image="driver", version="1")
    (choice,) = choices(spec(useNvidiaDriverCRD=True), [half])
    assert status_of(half, choice, DriverAssignment(), {}, NOW)["conditions"][1]["reason"] == "DriverImageInvalid"


def seen(**changes: object) -> ObservedNode:
    base = ObservedNode(
        name="n1",
        labels=node("n1").metadata.labels,
        offered=0,
        held=0,
        os="ubuntu22.04",
        kernel="6.8.0",
        runtime="containerd",
        arch="amd64",
        tainted=False,
        status=None,
        pods={},
        enabled=frozenset({"driver"}),
    )
    return msgspec.structs.replace(base, **changes)


def test_the_owner_is_a_label_that_comes_and_goes_and_a_node_without_one_says_why() -> None:
    assert decide(seen(driver_owner="train"), NOW).labels[names.DRIVER_OWNER_LABEL] == "train"
    had = {**seen().labels, names.DRIVER_OWNER_LABEL: "train", names.GPU_PRESENT_LABEL: "true"}
    assert decide(seen(labels=had, driver_owner="train"), NOW).labels.get(names.DRIVER_OWNER_LABEL, "kept") == "kept"
    assert decide(seen(labels=had), NOW).labels[names.DRIVER_OWNER_LABEL] is None
    assert decide(seen(labels=had, enabled=frozenset()), NOW).labels[names.DRIVER_OWNER_LABEL] is None
    why = ("NoDriverForNode", "no NVIDIADriver selects this node", "an NVIDIADriver with default: true")
    status = decide(seen(no_driver=why), NOW).status
    assert status is not None
    assert status.summary.waits_for == "NoDriverForNode"
    assert status.stages["driver"].cure == why[2]
    after = decide(seen(status=status), NOW).status
    assert after is not None
    assert "driver" not in after.stages


def test_names_of_groups_are_names_and_differ() -> None:
    groups = [
        DriverGroup("ubuntu", "22.04", "6.8.0-1015-A_Very+long-flavour-of-a-kernel-" + str(i), owner)
        for i in range(3)
        for owner in ("", "pool", "x" * 60)
    ]
    found = {group.name for group in groups}
    assert len(found) == len(groups)
    assert all(
        len(f"nvidia-driver-daemonset-{name}") <= 63 and name.strip("-.") == name and name == name.lower()
        for name in found
    )
