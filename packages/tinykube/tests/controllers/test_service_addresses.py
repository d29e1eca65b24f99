"""IPAddresses of Services, and ServiceCIDRs."""

from __future__ import annotations

import pytest

from tinykube.apiserver.failure import ApiFailure


def addresses(cluster):
    return {
        one["metadata"]["name"]: (parent.get("namespace"), parent["name"])
        for one in cluster.registry.list("ipaddresses")
        if (parent := one["spec"]["parentRef"])
    }


async def test_each_address_of_a_service_has_an_object_that_names_it(cluster):
    spec = {"clusterIP": "10.96.0.99", "ports": [{"port": 80}]}
    await cluster.create("services", {"metadata": {"name": "web"}, "spec": spec})
    await cluster.create("services", {"metadata": {"name": "peers"}, "spec": {**spec, "clusterIP": "None"}})
    await cluster.settle()
    assert addresses(cluster) == {"10.96.0.99": ("default", "web")}
    labels = cluster.registry.get("ipaddresses", "", "10.96.0.99")["metadata"]["labels"]
    assert labels == {
        "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
        "ipaddress.kubernetes.io/ip-family": "IPv4",
    }
    await cluster.registry.delete("services", "default", "web")
    await cluster.create("services", {"metadata": {"name": "next"}, "spec": spec})
    await cluster.settle()
    assert addresses(cluster) == {"10.96.0.99": ("default", "next")}
    await cluster.registry.delete("services", "default", "next")
    await cluster.settle()
    assert addresses(cluster) == {}


async def test_the_object_of_an_address_is_made_again(cluster):
    spec = {"clusterIP": "10.96.0.99", "ports": [{"port": 80}]}
    await cluster.create("services", {"metadata": {"name": "web"}, "spec": spec})
    await cluster.settle()
    await cluster.registry.delete("ipaddresses", "", "10.96.0.99")
    await cluster.settle()
    assert addresses(cluster) == {"10.96.0.99": ("default", "web")}


async def test_an_address_of_a_user_is_left_alone_and_no_service_gets_it(cluster):
    parent = {"group": "example.com", "resource": "gateways", "name": "edge"}
    await cluster.create("ipaddresses", {"metadata": {"name": "10.96.0.99"}, "spec": {"parentRef": parent}})
    await cluster.settle()
    spec = {"clusterIP": "10.96.0.99", "ports": [{"port": 80}]}
    with pytest.raises(ApiFailure, match="provided IP is already allocated"):
        await cluster.create("services", {"metadata": {"name": "web"}, "spec": spec})
    assert addresses(cluster) == {"10.96.0.99": (None, "edge")}


async def test_the_range_of_the_cluster_is_ready_and_others_say_that_they_are_not(cluster):
    await cluster.create("servicecidrs", {"metadata": {"name": "more"}, "spec": {"cidrs": ["203.0.113.0/24"]}})
    await cluster.settle()
    found = {
        one["metadata"]["name"]: (one["spec"]["cidrs"], one["status"]["conditions"][0]["status"])
        for one in cluster.registry.list("servicecidrs")
    }
    assert found == {"kubernetes": (["10.96.0.0/16"], "True"), "more": (["203.0.113.0/24"], "False")}
    await cluster.registry.delete("servicecidrs", "", "kubernetes")
    await cluster.settle()
    assert cluster.registry.get("servicecidrs", "", "kubernetes")["status"]["conditions"][0]["status"] == "True"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("10.96.0", "must be a valid IP address"),
        ("FE80::1", 'must be in canonical form ("fe80::1")'),
        ("fe80:0:0::1", 'must be in canonical form ("fe80::1")'),
    ],
)
async def test_a_name_that_is_no_address_is_refused(cluster, name, message):
    body = {"metadata": {"name": name}, "spec": {"parentRef": {"resource": "services", "name": "web"}}}
    with pytest.raises(ApiFailure) as caught:
        await cluster.create("ipaddresses", body)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("cidrs", "message"),
    [
        ([], "at least one CIDR required"),
        (["10.0.0.0/8", "10.1.0.0/16"], "no more than one IP for each IP family"),
        (["10.0.0.0"], "must be a valid CIDR value"),
    ],
)
async def test_wrong_ranges_are_refused(cluster, cidrs, message):
    with pytest.raises(ApiFailure) as caught:
        await cluster.create("servicecidrs", {"metadata": {"name": "more"}, "spec": {"cidrs": cidrs}})
    assert message in str(caught.value)


async def test_ranges_and_parents_do_not_change(cluster):
    await cluster.create("servicecidrs", {"metadata": {"name": "more"}, "spec": {"cidrs": ["203.0.113.0/24"]}})
    with pytest.raises(ApiFailure, match="field is immutable"):
        await cluster.registry.patch("servicecidrs", "", "more", {"spec": {"cidrs": ["203.0.112.0/24"]}}, "merge")
    both = {"spec": {"cidrs": ["203.0.113.0/24", "2001:db8::/64"]}}
    assert (await cluster.registry.patch("servicecidrs", "", "more", both, "merge"))["spec"] == both["spec"]
    parent = {"resource": "gateways", "name": "edge"}
    await cluster.create("ipaddresses", {"metadata": {"name": "192.0.2.1"}, "spec": {"parentRef": parent}})
    change = {"spec": {"parentRef": {"name": "other"}}}
    with pytest.raises(ApiFailure, match="field is immutable"):
        await cluster.registry.patch("ipaddresses", "", "192.0.2.1", change, "merge")
