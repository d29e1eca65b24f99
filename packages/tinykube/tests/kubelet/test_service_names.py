"""Pods find Services by variables, and by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tinykube.kubelet.containers import Isolation
from tinykube.kubelet.containers.launcher import find_mode
from tinykube.kubelet.headless import HeadlessSlice, headless_lines
from tinykube.kubelet.servicenames import NamedService, host_lines, service_env


def service(name: str, namespace: str = "default", address: str = "127.200.1.0", *ports: Any) -> NamedService:
    listed = [{"port": port, "name": word} for port, word in ports or ((8080, "web"),)]
    data = {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterIP": address, "ports": listed}}
    return msgspec.convert(data, NamedService)


def test_variables_are_those_that_every_kubelet_sets() -> None:
    both = [service("my-db", "default", "127.200.1.7", (5432, "sql"), (9187, "metrics")), service("web", "other")]
    assert service_env(both, "default") == {
        "MY_DB_SERVICE_HOST": "127.200.1.7",
        "MY_DB_SERVICE_PORT": "5432",
        "MY_DB_SERVICE_PORT_SQL": "5432",
        "MY_DB_SERVICE_PORT_METRICS": "9187",
        "MY_DB_PORT": "tcp://127.200.1.7:5432",
        "MY_DB_PORT_5432_TCP": "tcp://127.200.1.7:5432",
        "MY_DB_PORT_5432_TCP_PROTO": "tcp",
        "MY_DB_PORT_5432_TCP_PORT": "5432",
        "MY_DB_PORT_5432_TCP_ADDR": "127.200.1.7",
        "MY_DB_PORT_9187_TCP": "tcp://127.200.1.7:9187",
        "MY_DB_PORT_9187_TCP_PROTO": "tcp",
        "MY_DB_PORT_9187_TCP_PORT": "9187",
        "MY_DB_PORT_9187_TCP_ADDR": "127.200.1.7",
    }


def test_names_are_those_of_cluster_dns() -> None:
    found = host_lines([service("web", "other"), service("db"), service("headless", address="None")], "default")
    assert found == (
        "127.200.1.0\tdb db.default db.default.svc db.default.svc.cluster.local\n"
        "127.200.1.0\tweb.other web.other.svc web.other.svc.cluster.local\n"
    )


def test_names_of_headless_services_are_those_of_cluster_dns() -> None:
    data = {
        "metadata": {"name": "peers-slice", "namespace": "ml", "labels": {"kubernetes.io/service-name": "peers"}},
        "endpoints": [
            {"addresses": ["127.1.0.1"], "hostname": "web-0", "conditions": {"ready": True}},
            {"addresses": ["127.1.0.2"], "conditions": {"ready": True}},
            {"addresses": ["127.1.0.3"], "hostname": "web-2", "conditions": {"ready": False}},
        ],
    }
    found = headless_lines([msgspec.convert(data, HeadlessSlice)], "ml")
    names = "peers peers.ml peers.ml.svc peers.ml.svc.cluster.local"
    of_pod = "web-0.peers web-0.peers.ml web-0.peers.ml.svc web-0.peers.ml.svc.cluster.local"
    assert found == f"127.1.0.1\t{of_pod} {names}\n127.1.0.2\t{names}\n"
    elsewhere = headless_lines([msgspec.convert(data, HeadlessSlice)], "default")
    assert elsewhere.splitlines()[1] == "127.1.0.2\tpeers.ml peers.ml.svc peers.ml.svc.cluster.local"


@pytest.mark.skipif(
    find_mode().isolation is Isolation.NONE, reason="needs mount namespaces, which the kernel refuses here"
)
async def test_a_running_pod_finds_its_peers_by_name(api: Any, make_node: Any) -> None:
    node = await make_node()
    show = "until grep -q web-0.peers.default.svc.cluster.local /etc/hosts; do sleep 0.05; done; echo found"
    container = {"name": "c", "image": "busybox", "command": ["sh", "-c", show]}
    await api.create_pod(containers=[container], restartPolicy="Never")
    await api.phase("Running")
    labels = {"kubernetes.io/service-name": "peers", "service.kubernetes.io/headless": ""}
    endpoint = {"addresses": ["127.1.0.1"], "hostname": "web-0", "conditions": {"ready": True}}
    body = {"metadata": {"name": "peers-1", "labels": labels}, "addressType": "IPv4", "endpoints": [endpoint]}
    await api.registry.create("endpointslices", "default", {**body, "ports": []})
    await api.phase("Succeeded")
    assert node.log() == "found\n"


@pytest.mark.skipif(
    find_mode().isolation is Isolation.NONE, reason="needs mount namespaces, which the kernel refuses here"
)
async def test_a_running_pod_finds_a_service_that_comes_later(api: Any, make_node: Any) -> None:
    node = await make_node()
    spec = {"ports": [{"port": 8080}]}
    await api.registry.create("services", "default", {"metadata": {"name": "first"}, "spec": spec})
    show = "echo $FIRST_SERVICE_HOST; until grep -q second.default.svc /etc/hosts; do sleep 0.05; done"
    container = {"name": "c", "image": "busybox", "command": ["sh", "-c", show]}
    await api.create_pod(containers=[container], restartPolicy="Never")
    await api.phase("Running")
    await api.registry.create("services", "default", {"metadata": {"name": "second"}, "spec": spec})
    await api.phase("Succeeded")
    assert node.log() == f"{api.registry.get('services', 'default', 'first')['spec']['clusterIP']}\n"


async def test_a_pod_that_wants_no_service_links_gets_no_variables(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.registry.create("services", "default", {"metadata": {"name": "first"}, "spec": {"ports": [{"port": 1}]}})
    container = {"name": "c", "image": "busybox", "command": ["sh", "-c", "echo links:$FIRST_SERVICE_HOST"]}
    await api.create_pod(containers=[container], restartPolicy="Never", enableServiceLinks=False)
    await api.phase("Succeeded")
    assert node.log() == "links:\n"
