"""Which addresses the proxy serves for a Service, as a table."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tinykube.proxy.routes import ListenAddress, ServiceRoute, not_carried, routes, why_not_served

PODS = (ListenAddress("127.64.0.2", 8000), ListenAddress("127.64.0.3", 8000))
ENDPOINTS = {
    "subsets": [
        {
            "addresses": [{"ip": "127.64.0.2"}, {"ip": "127.64.0.3"}],
            "notReadyAddresses": [{"ip": "127.64.0.4"}],
            "ports": [{"name": "web", "port": 8000}],
        }
    ]
}


def service(**spec: Any) -> dict[str, Any]:
    return {"spec": {"clusterIP": "127.200.1.0", "ports": [{"name": "web", "port": 80, "targetPort": 8000}], **spec}}


def test_a_cluster_ip_leads_to_the_ready_pods() -> None:
    assert routes(service(), ENDPOINTS) == {ListenAddress("127.200.1.0", 80): ServiceRoute(PODS)}


def test_a_node_port_is_on_the_nodes_address() -> None:
    ports = [{"name": "web", "port": 80, "nodePort": 30080}]
    found = routes(service(type="NodePort", ports=ports), ENDPOINTS)
    assert found.keys() == {ListenAddress("127.200.1.0", 80), ListenAddress("127.0.0.1", 30080)}


def test_a_headless_service_has_a_node_port_at_most() -> None:
    assert routes(service(clusterIP="None"), ENDPOINTS) == {}


@pytest.mark.parametrize("endpoints", [None, {}, {"subsets": [{"notReadyAddresses": [{"ip": "127.64.0.4"}]}]}])
def test_without_a_ready_pod_nothing_listens(endpoints: Any) -> None:
    assert routes(service(), endpoints) == {}


def test_a_service_with_affinity_is_sticky() -> None:
    (route,) = routes(service(sessionAffinity="ClientIP"), ENDPOINTS).values()
    assert route.sticky


def test_what_is_not_carried_is_named() -> None:
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "web", "port": 80, "protocol": "TCP"}]
    assert not_carried(service(ports=ports)) == ["port 53: UDP is not carried to pods here, only TCP is"]
    assert routes(service(ports=ports), ENDPOINTS).keys() == {ListenAddress("127.200.1.0", 80)}


def test_an_ordinary_user_is_told_what_reaches_a_port_below_1024() -> None:
    assert why_not_served(OSError(errno.EACCES, ""), ListenAddress("127.200.1.0", 80)) == (
        "port 80 of 127.200.1.0 needs root on this machine: "
        "use kubectl port-forward, a node port, or a port from 1024 on"
    )
