"""The addresses and node ports that a Service may have."""

from __future__ import annotations

from typing import Any

import pytest

SERVICES = "/api/v1/namespaces/default/services"
OTHERS = "/api/v1/namespaces/kube-system/services"
Object = dict[str, Any]


def service(name: str, node_port: int | None = None, **spec: Any) -> Object:
    port: Object = {"port": 80} if node_port is None else {"port": 80, "nodePort": node_port}
    kind = {} if node_port is None else {"type": "NodePort"}
    return {"metadata": {"name": name}, "spec": {"ports": [port], **kind, **spec}}


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "10.97.0.1", "10.96.0.0", "10.96.255.255", "::1"])
async def test_an_address_outside_of_the_clusters_range_is_refused(api, address):
    answer = await api("POST", SERVICES, service("a", clusterIP=address))
    assert answer.status == 422
    assert answer.message == (
        f'Service "a" is invalid: spec.clusterIPs: Invalid value: ["{address}"]: failed to allocate IP {address}: '
        f"the provided IP ({address}) is not in the valid range. The range of valid IPs is 10.96.0.0/16"
    )


async def test_a_name_is_no_address(api):
    answer = await api("POST", SERVICES, service("a", clusterIP="localhost"))
    assert answer.status == 422
    assert answer.message == (
        'Service "a" is invalid: spec.clusterIPs[0]: Invalid value: "localhost": '
        "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
    )


async def test_the_address_of_another_tenants_service_is_refused_until_that_is_deleted(api):
    first = await api.create(OTHERS, service("a"))
    address = first["spec"]["clusterIP"]
    answer = await api("POST", SERVICES, service("b", clusterIP=address))
    assert answer.status == 422
    assert answer.message.endswith(f"failed to allocate IP {address}: provided IP is already allocated")
    await api("DELETE", f"{OTHERS}/a")
    assert (await api.create(SERVICES, service("b", clusterIP=address)))["spec"]["clusterIP"] == address


@pytest.mark.parametrize("port", [22, 29999, 32768])
async def test_a_node_port_outside_of_the_range_is_refused(api, port):
    answer = await api("POST", SERVICES, service("a", port))
    assert answer.status == 422
    assert answer.message == (
        f'Service "a" is invalid: spec.ports[0].nodePort: Invalid value: {port}: '
        "provided port is not in the valid range. The range of valid ports is 30000-32767"
    )


async def test_a_node_port_of_another_tenants_service_is_refused_until_that_is_deleted(api):
    await api.create(OTHERS, service("a", 30080))
    answer = await api("POST", SERVICES, service("b", 30080))
    assert answer.status == 422
    assert answer.message == (
        'Service "b" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated'
    )
    await api("DELETE", f"{OTHERS}/a")
    await api.create(SERVICES, service("b", 30080))


async def test_an_update_cannot_take_a_node_port_either(api):
    await api.create(OTHERS, service("a", 30080))
    await api.create(SERVICES, service("b"))
    for port, why in ((30080, "provided port is already allocated"), (22, "provided port is not in the valid range")):
        change = {"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}}
        answer = await api.patch(f"{SERVICES}/b", change)
        assert answer.status == 422 and why in answer.message
    answer = await api.patch(f"{SERVICES}/b", {"spec": {"ports": [{"port": 80, "nodePort": 22}]}})
    assert answer.status == 422
    assert answer.message.endswith("spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'")


async def test_one_service_cannot_have_a_node_port_twice(api):
    ports = [{"name": name, "port": port, "nodePort": 30080} for name, port in (("a", 80), ("b", 81))]
    answer = await api("POST", SERVICES, service("a", type="NodePort", ports=ports))
    assert answer.status == 422
    assert answer.message == 'Service "a" is invalid: spec.ports[1].nodePort: Duplicate value: 30080'
    ports[1]["protocol"] = "UDP"
    await api.create(SERVICES, service("a", type="NodePort", ports=ports))


async def test_an_update_keeps_what_the_service_has(api):
    made = await api.create(SERVICES, service("a", type="NodePort"))
    answer = await api("PUT", f"{SERVICES}/a", made)
    assert answer.status == 200
    answer = await api("PUT", f"{SERVICES}/a", service("a", type="NodePort", clusterIP=""))
    assert answer.status == 200
    for field in ("clusterIP", "clusterIPs", "ports"):
        assert answer.json["spec"][field] == made["spec"][field]


async def test_a_service_that_becomes_an_external_name_gives_its_address_and_node_port_back(api):
    made = await api.create(SERVICES, service("a", 30080))
    answer = await api.patch(f"{SERVICES}/a", {"spec": {"type": "ExternalName", "externalName": "example.com"}})
    assert answer.status == 200
    assert "clusterIP" not in answer.json["spec"] and "nodePort" not in answer.json["spec"]["ports"][0]
    await api.create(OTHERS, service("b", 30080, clusterIP=made["spec"]["clusterIP"]))


async def test_an_address_cannot_come_in_by_way_of_an_external_name(api):
    spec = {"type": "ExternalName", "externalName": "example.com", "clusterIP": "127.0.0.1"}
    answer = await api("POST", SERVICES, {"metadata": {"name": "a"}, "spec": spec})
    assert answer.status == 422 and "may not be set for ExternalName services" in answer.message


async def test_both_fields_of_the_address_agree(api):
    answer = await api("POST", SERVICES, service("a", clusterIP="10.96.3.1", clusterIPs=["10.96.3.2"]))
    assert answer.status == 422 and answer.message.endswith('["10.96.3.2"]: first value must match `clusterIP`')
    answer = await api("POST", SERVICES, service("a", clusterIPs=["10.96.3.2"]))
    assert answer.status == 422 and answer.message.endswith("must be empty when `clusterIP` is not specified")


async def test_headless_services_and_empty_addresses_stay(api):
    for name in ("a", "b"):
        assert (await api.create(SERVICES, service(name, clusterIP="None")))["spec"]["clusterIP"] == "None"
    assert (await api.create(SERVICES, service("c", clusterIP="")))["spec"]["clusterIP"].startswith("10.96.")


def balanced(name: str, **spec: Any) -> Object:
    return service(name, type="LoadBalancer", externalTrafficPolicy="Local", **spec)


async def test_services_that_are_reached_from_outside_have_a_policy_for_it(api):
    for kind in ("NodePort", "LoadBalancer"):
        made = await api.create(SERVICES, service(kind.lower(), type=kind))
        assert made["spec"]["externalTrafficPolicy"] == "Cluster"
        assert ("allocateLoadBalancerNodePorts" in made["spec"]) == (kind == "LoadBalancer")
    made = await api.create(SERVICES, service("a", externalIPs=["192.0.2.7"]))
    assert made["spec"]["externalTrafficPolicy"] == "Cluster"
    assert "externalTrafficPolicy" not in (await api.create(SERVICES, service("b")))["spec"]
    answer = await api.patch(f"{SERVICES}/loadbalancer", {"spec": {"type": "ClusterIP"}})
    assert answer.status == 200
    assert not {"externalTrafficPolicy", "allocateLoadBalancerNodePorts"} & answer.json["spec"].keys()


async def test_a_load_balancer_whose_traffic_stays_on_its_node_has_a_port_to_ask_the_node(api):
    made = await api.create(SERVICES, balanced("a"))
    port = made["spec"]["healthCheckNodePort"]
    assert 30000 <= port < 32768 and port != made["spec"]["ports"][0]["nodePort"]
    answer = await api("PUT", f"{SERVICES}/a", balanced("a"))
    assert answer.json["spec"]["healthCheckNodePort"] == port
    answer = await api.patch(f"{SERVICES}/a", {"spec": {"healthCheckNodePort": port + 1}})
    assert answer.status == 422 and answer.message.endswith("spec.healthCheckNodePort: Forbidden: field is immutable")
    for other, status in ((service("b", port), 422), (balanced("b", healthCheckNodePort=port), 500)):
        answer = await api("POST", OTHERS, other)
        assert answer.status == status and answer.message.endswith("provided port is already allocated")
    answer = await api.patch(f"{SERVICES}/a", {"spec": {"externalTrafficPolicy": "Cluster"}})
    assert answer.status == 200 and "healthCheckNodePort" not in answer.json["spec"]
    await api.create(OTHERS, balanced("b", healthCheckNodePort=port))


async def test_other_services_have_no_port_to_ask_a_node(api):
    answer = await api("POST", SERVICES, service("a", type="NodePort", healthCheckNodePort=30090))
    assert answer.status == 422
    assert answer.message.endswith(
        "spec.healthCheckNodePort: Invalid value: 30090: "
        "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
    )
    answer = await api("POST", SERVICES, balanced("a", healthCheckNodePort=80))
    assert answer.status == 500 and "not in the valid range" in answer.message


async def test_a_load_balancer_need_not_have_node_ports(api):
    made = await api.create(SERVICES, service("a", type="LoadBalancer", allocateLoadBalancerNodePorts=False))
    assert "nodePort" not in made["spec"]["ports"][0]
    answer = await api("POST", SERVICES, service("b", allocateLoadBalancerNodePorts=True))
    assert answer.status == 422
    text = "spec.allocateLoadBalancerNodePorts: Forbidden: may only be used when `type` is 'LoadBalancer'"
    assert answer.message.endswith(text)


async def test_affinity_has_a_time_and_no_affinity_has_none(api):
    made = await api.create(SERVICES, service("a", sessionAffinity="ClientIP"))
    assert made["spec"]["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10800}}
    answer = await api.patch(f"{SERVICES}/a", {"spec": {"sessionAffinity": "None"}})
    assert answer.status == 200 and "sessionAffinityConfig" not in answer.json["spec"]
