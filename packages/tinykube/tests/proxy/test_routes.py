"""Addresses that the proxy serves for a Service, as a table."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.proxy.routes import (
    ListenAddress,
    ServiceRoute,
    health_checks,
    host_port_routes,
    node_address,
    not_carried,
    routes,
    why_not_served,
)

PODS = (ListenAddress("127.64.0.2", 8000), ListenAddress("127.64.0.3", 8000))
READY = {"ready": True, "serving": True, "terminating": False}
ENDING = {"ready": False, "serving": True, "terminating": True}
UNREADY = {"ready": False, "serving": False, "terminating": False}


def piece(*endpoints: tuple[str, dict[str, bool]], name: str = "web", node: str = "", **port: Any) -> dict[str, Any]:
    """An EndpointSlice with (address, conditions) of each endpoint."""
    on = {"nodeName": node} if node else {}
    return {
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": conditions, **on} for address, conditions in endpoints],
        "ports": [{"name": name, "port": 8000, "protocol": "TCP", **port}],
    }


ENDPOINTS = [
    piece(("127.64.0.2", READY), ("127.64.0.4", UNREADY)),
    piece(("127.64.0.3", READY), ("127.64.0.5", ENDING)),
]


def service(**spec: Any) -> dict[str, Any]:
    return {"spec": {"clusterIP": "127.200.1.0", "ports": [{"name": "web", "port": 80, "targetPort": 8000}], **spec}}


def test_a_cluster_ip_leads_to_the_ready_pods() -> None:
    assert routes(service(), ENDPOINTS) == {ListenAddress("127.200.1.0", 80): ServiceRoute(PODS)}


def test_a_node_port_is_on_the_addresses_of_all_nodes() -> None:
    ports = [{"name": "web", "port": 80, "nodePort": 30080}]
    found = routes(service(type="NodePort", ports=ports), ENDPOINTS, {"n1": "127.64.0.1", "n2": "127.65.0.1"})
    nodes = ("127.0.0.1", "127.64.0.1", "127.65.0.1")
    assert found.keys() == {ListenAddress("127.200.1.0", 80), *(ListenAddress(node, 30080) for node in nodes)}


NODES = {"n1": "127.64.0.1", "n2": "127.65.0.1", "n3": "127.66.0.1"}
ON_NODES = [
    piece(("127.64.0.2", READY), ("127.64.0.3", READY), ("127.64.0.4", ENDING), node="n1"),
    piece(("127.65.0.2", UNREADY), ("127.65.0.3", ENDING), node="n2"),
    piece(("127.66.0.2", UNREADY), node="n3"),
]
FIRST = (ListenAddress("127.64.0.2", 8000), ListenAddress("127.64.0.3", 8000))
SECOND = (ListenAddress("127.65.0.3", 8000),)
OUTSIDE = {
    "type": "NodePort",
    "ports": [{"name": "web", "port": 80, "nodePort": 30080}],
    "externalIPs": ["192.0.2.7", "127.65.0.1"],
}


def test_connections_from_outside_that_stay_on_their_node_get_its_pods_only() -> None:
    found = routes(service(externalTrafficPolicy="Local", **OUTSIDE), ON_NODES, NODES)
    assert {(place.host, place.port): route.pods for place, route in found.items()} == {
        ("127.200.1.0", 80): FIRST,
        ("127.64.0.1", 30080): FIRST,
        ("127.65.0.1", 30080): SECOND,  # its ready pods are elsewhere
        ("127.65.0.1", 80): SECOND,
        ("192.0.2.7", 80): FIRST,  # the machine's own addresses are those of no node
        ("127.0.0.1", 30080): FIRST,
    }
    assert all(route.by_node is None for route in found.values())


def test_connections_from_outside_get_the_pods_of_all_nodes_by_default() -> None:
    found = routes(service(externalTrafficPolicy="Cluster", **OUTSIDE), ON_NODES, NODES)
    assert {route.pods for route in found.values()} == {FIRST}
    assert {place.host for place in found if place.port == 30080} == {"127.0.0.1", *NODES.values()}


def test_connections_from_inside_that_stay_on_their_node_get_its_pods_only() -> None:
    found = routes(service(internalTrafficPolicy="Local", **OUTSIDE), ON_NODES, NODES)
    inside = found.pop(ListenAddress("127.200.1.0", 80))
    assert [inside.of_node(name).pods for name in ("n1", "n2", "n3", "")] == [FIRST, SECOND, (), ()]
    assert {route.pods for route in found.values()} == {FIRST}
    sticky = routes(service(internalTrafficPolicy="Local", sessionAffinity="ClientIP"), ON_NODES, NODES)
    assert sticky[ListenAddress("127.200.1.0", 80)].of_node("n2") == ServiceRoute(SECOND, 10800)


def test_without_pods_of_any_node_a_service_is_refused_and_endpoints_without_a_node_are_on_none() -> None:
    assert routes(service(internalTrafficPolicy="Local"), [piece(("127.64.0.2", UNREADY), node="n1")], NODES) == {}
    (route,) = routes(service(internalTrafficPolicy="Local"), [piece(("127.64.0.2", READY))], NODES).values()
    assert route.of_node("").pods == route.of_node("n1").pods == ()


CONDITIONS = st.sampled_from([READY, ENDING, UNREADY])
PLACED = st.lists(st.tuples(st.sampled_from(["", *NODES]), CONDITIONS), max_size=8)


@given(PLACED, st.sampled_from(["Cluster", "Local"]), st.sampled_from(["Cluster", "Local"]))
def test_no_policy_ever_leads_to_a_pod_of_another_node(placed: Any, inside: str, outside: str) -> None:
    nodes = {f"127.70.0.{at + 2}": node for at, (node, _) in enumerate(placed)}
    conditions = {f"127.70.0.{at + 2}": found for at, (_, found) in enumerate(placed)}
    slices = [piece((address, conditions[address]), node=nodes[address]) for address in nodes]
    made = service(internalTrafficPolicy=inside, externalTrafficPolicy=outside, **OUTSIDE)
    found = routes(made, slices, NODES)

    def best(among: list[str]) -> set[str]:
        """The pods to choose from, by the rule of kube-proxy: those that are ready, else those that serve."""
        ready = {address for address in among if conditions[address] is READY}
        return ready or {address for address in among if conditions[address] is ENDING}

    for name, address in NODES.items():
        own = [pod for pod, node in nodes.items() if node == name]
        at_node = found.get(ListenAddress(address, 30080), ServiceRoute(()))
        assert {pod.host for pod in at_node.pods} == best(own if outside == "Local" else list(nodes))
        to_cluster = found.get(ListenAddress("127.200.1.0", 80), ServiceRoute(()))
        local = to_cluster.of_node(name) if to_cluster.by_node is not None else to_cluster
        assert {pod.host for pod in local.pods} == best(own if inside == "Local" else list(nodes))
    everywhere = found.get(ListenAddress("127.0.0.1", 30080), ServiceRoute(()))
    assert {pod.host for pod in everywhere.pods} == best(list(nodes))


def test_load_balancers_are_answered_on_each_node_how_many_ready_pods_the_node_has() -> None:
    made = {**service(healthCheckNodePort=30090), "metadata": {"namespace": "default", "name": "web"}}
    found = health_checks(made, ON_NODES, {**NODES, "light": "127.0.0.1"})
    assert {place.host: (place.port, health.ready) for place, health in found.items()} == {
        "127.64.0.1": (30090, 2),
        "127.65.0.1": (30090, 0),
        "127.66.0.1": (30090, 0),
    }
    assert health_checks({**made, **service()}, ON_NODES, NODES) == {}


def test_a_headless_service_has_a_node_port_at_most() -> None:
    assert routes(service(clusterIP="None"), ENDPOINTS) == {}


@pytest.mark.parametrize(
    "slices", [[], [piece()], [piece(("127.64.0.4", UNREADY))], [piece(("127.64.0.2", READY), name="x")]]
)
def test_without_a_ready_pod_nothing_listens(slices: Any) -> None:
    assert routes(service(), slices) == {}


def test_pods_that_are_to_end_get_connections_while_no_other_is_ready() -> None:
    (route,) = routes(service(), [piece(("127.64.0.5", ENDING), ("127.64.0.4", UNREADY))]).values()
    assert route.pods == (ListenAddress("127.64.0.5", 8000),)


def test_an_external_address_leads_to_the_pods_too() -> None:
    found = routes(service(externalIPs=["192.0.2.7"]), ENDPOINTS)
    assert found.keys() == {ListenAddress("127.200.1.0", 80), ListenAddress("192.0.2.7", 80)}


def test_a_program_at_the_address_of_its_service_needs_no_proxy() -> None:
    assert routes(service(clusterIP="127.64.0.2", ports=[{"name": "web", "port": 8000}]), ENDPOINTS) == {}


def test_a_service_with_affinity_is_sticky() -> None:
    (route,) = routes(service(sessionAffinity="ClientIP"), ENDPOINTS).values()
    assert route.sticky_seconds == 10800
    config = {"clientIP": {"timeoutSeconds": 60}}
    (route,) = routes(service(sessionAffinity="ClientIP", sessionAffinityConfig=config), ENDPOINTS).values()
    assert route.sticky_seconds == 60


def test_what_is_not_carried_is_named() -> None:
    ports = [{"name": "sig", "port": 53, "protocol": "SCTP"}, {"name": "web", "port": 80, "protocol": "TCP"}]
    assert not_carried(ports) == ["port 53: SCTP is not carried to pods here, only TCP and UDP are"]
    assert routes(service(ports=ports), ENDPOINTS).keys() == {ListenAddress("127.200.1.0", 80)}


def test_a_port_of_udp_is_another_one_than_that_of_tcp() -> None:
    ports = [{"name": "u", "port": 80, "protocol": "UDP"}, {"name": "web", "port": 80, "protocol": "TCP"}]
    slices = [*ENDPOINTS, piece(("127.64.0.2", READY), name="u", port=9000, protocol="UDP")]
    found = routes(service(ports=ports), slices)
    assert found[ListenAddress("127.200.1.0", 80, "UDP")].pods == (ListenAddress("127.64.0.2", 9000, "UDP"),)
    assert found[ListenAddress("127.200.1.0", 80)].pods == PODS


def test_an_ordinary_user_is_told_what_reaches_a_port_below_1024() -> None:
    assert why_not_served(OSError(errno.EACCES, ""), ListenAddress("127.200.1.0", 80)) == (
        "port 80 of 127.200.1.0 needs root on this machine: "
        "use kubectl port-forward, a node port, or a port from 1024 on"
    )


def test_an_external_address_of_another_machine_is_named_with_the_cure() -> None:
    text = why_not_served(OSError(errno.EADDRNOTAVAIL, ""), ListenAddress("192.0.2.7", 80))
    assert text == "192.0.2.7 is no address of this machine: add it to an interface, or take it out of externalIPs"


def pod(*ports: dict[str, Any], ready: str = "True", **spec: Any) -> dict[str, Any]:
    status = {"hostIP": "127.64.0.1", "podIP": "127.64.0.2", "conditions": [{"type": "Ready", "status": ready}]}
    return {"spec": {"containers": [{"name": "m", "ports": list(ports)}], **spec}, "status": status}


def test_a_host_port_leads_to_the_port_of_the_container_while_the_pod_is_ready() -> None:
    ports = ({"containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.9"}, {"containerPort": 81})
    target = ServiceRoute((ListenAddress("127.64.0.2", 80),))
    assert host_port_routes(pod(*ports)) == {ListenAddress("127.0.0.9", 8080): target}
    assert host_port_routes(pod(*ports, ready="False")) == {}
    assert host_port_routes(pod(*ports, hostNetwork=True)) == {}
    udp = {"containerPort": 80, "hostPort": 8080, "protocol": "UDP", "hostIP": "0.0.0.0"}
    assert host_port_routes(pod(udp)).keys() == {ListenAddress("127.64.0.1", 8080, "UDP")}
    sctp = {"containerPort": 80, "hostPort": 8080, "protocol": "SCTP"}
    assert host_port_routes(pod(sctp)) == {}


@pytest.mark.parametrize("host", ["slow.example.com", "a..b", "0", "127.1", "x\0", "a" * 300])
def test_a_host_address_that_is_a_name_is_not_looked_up(host: str) -> None:
    """The API server takes any text as hostIP, and the proxy serves one Service or pod after the other."""
    port = {"containerPort": 80, "hostPort": 8080, "hostIP": host}
    assert host_port_routes(pod(port)) == {}
    (text,) = not_carried([port], "hostPort")
    assert text.startswith("port 8080: hostIP ") and text.endswith("is no IP address") and len(text) < 200


def test_an_address_of_all_interfaces_is_that_of_the_node_in_any_spelling() -> None:
    port = {"containerPort": 80, "hostPort": 8080, "hostIP": "0:0::0"}
    assert host_port_routes(pod(port)).keys() == {ListenAddress("127.64.0.1", 8080)}


@pytest.mark.parametrize("address", ["slow.example.com", "0.0.0.0", "::", "a..b"])
def test_a_kubelet_cannot_make_the_proxy_listen_on_every_interface(address: str) -> None:
    listed = [{"type": "InternalIP", "address": address}]
    assert node_address({"status": {"addresses": listed}}) == ""
    listed[0]["address"] = "127.64.0.1"
    assert node_address({"status": {"addresses": listed}}) == "127.64.0.1"
