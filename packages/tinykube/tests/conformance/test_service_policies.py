"""Traffic policies of Services: what a server fills in, gives out, takes back and refuses."""

from __future__ import annotations

PORTS = [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 80}]


def shape(spec):
    """A spec without the numbers that a server chose."""
    chosen = {"clusterIP", "clusterIPs", "healthCheckNodePort"}
    found = {key: value for key, value in spec.items() if key not in chosen and key != "ports"}
    ports = [{key: "CHOSEN" if key == "nodePort" else value for key, value in port.items()} for port in spec["ports"]]
    return {**found, **dict.fromkeys(sorted(chosen & spec.keys()), "CHOSEN"), "ports": ports}


def made(here, name, **spec):
    return here.made(here.core("services"), {"metadata": {"name": name}, "spec": {"ports": PORTS, **spec}})["spec"]


def test_policies_that_are_filled_in(here):
    here.see("inside", shape(made(here, "inside")))
    here.see("of nodes", shape(made(here, "nodes", type="NodePort")))
    here.see("of a load balancer", shape(made(here, "balancer", type="LoadBalancer")))
    here.see("of an address", shape(made(here, "address", externalIPs=["192.0.2.7"])))
    here.see("with affinity", shape(made(here, "sticky", sessionAffinity="ClientIP")))
    without = made(here, "without", type="LoadBalancer", allocateLoadBalancerNodePorts=False)
    here.see("without node ports", shape(without))


def test_the_port_for_health_checks(here):
    service = here.core("services/local")
    first = made(here, "local", type="LoadBalancer", externalTrafficPolicy="Local")
    here.see("made", shape(first))
    port = first["healthCheckNodePort"]
    again = {"metadata": {"name": "local"}, "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}}
    replaced = here.call("PUT", service, {**again, "spec": {**again["spec"], "ports": PORTS}})
    here.see("kept", replaced.body["spec"]["healthCheckNodePort"] == port)
    changed = here.patch(service, {"spec": {"healthCheckNodePort": 31999 if port != 31999 else 31998}})
    here.see("changed", [changed.status, changed.body["details"]["causes"]])
    for name, more in (("taken", {"healthCheckNodePort": port}), ("out of the range", {"healthCheckNodePort": 80})):
        spec = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": PORTS, **more}
        answer = here.create(here.core("services"), {"metadata": {"name": "second"}, "spec": spec})
        here.see(name, [answer.status, answer.body["reason"], answer.body["message"].replace(str(port), "PORT")])
    here.see("for all nodes", shape(here.patch(service, {"spec": {"externalTrafficPolicy": "Cluster"}}).body["spec"]))
    here.see("inside", shape(here.patch(service, {"spec": {"type": "ClusterIP"}}).body["spec"]))


def test_affinity_that_is_taken_back(here):
    made(here, "sticky", sessionAffinity="ClientIP")
    found = here.patch(here.core("services/sticky"), {"spec": {"sessionAffinity": "None"}}).body
    here.see("none", shape(found["spec"]))
