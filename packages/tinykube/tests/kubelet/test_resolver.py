"""A pod's /etc/resolv.conf."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tinykube.kubelet.containers import Isolation
from tinykube.kubelet.containers.launcher import find_mode
from tinykube.kubelet.pod import KubeletPod
from tinykube.kubelet.resolver import read_resolver, resolver_file, write_resolver

NODE = "# made by the network\nnameserver 10.0.0.53\nsearch old\nsearch lan.example\noptions edns0 timeout:1\n"
DNS = "127.200.0.10"
CLUSTER = "search ml.svc.cluster.local svc.cluster.local cluster.local"


def text(dns: str = DNS, node: str = NODE, **spec: Any) -> str:
    body = {"metadata": {"name": "p", "namespace": "ml"}, "spec": spec}
    return resolver_file(msgspec.convert(body, KubeletPod), dns, node)


def test_the_cluster_is_asked_first() -> None:
    assert text() == f"{CLUSTER} lan.example\nnameserver {DNS}\noptions ndots:5\n"
    assert text(dnsPolicy="ClusterFirst", hostNetwork=True) == text(dnsPolicy="Default")
    assert text(dnsPolicy="ClusterFirstWithHostNet", hostNetwork=True) == text()


def test_default_is_the_nodes() -> None:
    wanted = "search lan.example\nnameserver 10.0.0.53\noptions edns0 timeout:1\n"
    assert text(dnsPolicy="Default") == wanted
    assert text(dns="") == wanted  # as on a kubelet without --cluster-dns
    assert text(dnsPolicy="Default", node="") == ""


def test_the_pods_own_settings_are_added_and_options_of_one_name_are_replaced() -> None:
    config = {
        "nameservers": ["1.1.1.1", DNS],
        "searches": ["resolv.conf.local", "cluster.local"],
        "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
    }
    assert text(dnsConfig=config) == (
        f"{CLUSTER} lan.example resolv.conf.local\nnameserver {DNS}\nnameserver 1.1.1.1\noptions ndots:2 edns0\n"
    )
    assert text(dnsPolicy="None", dnsConfig=config) == (
        f"search resolv.conf.local cluster.local\nnameserver 1.1.1.1\nnameserver {DNS}\noptions ndots:2 edns0\n"
    )


def test_more_than_the_resolver_takes_is_left_out() -> None:
    many = {"nameservers": [f"10.0.0.{n}" for n in range(5)], "searches": [f"{n}.{'a' * 120}" for n in range(40)]}
    settings = read_resolver(text(dnsPolicy="None", dnsConfig=many))
    assert len(settings.servers) == 3
    assert len(" ".join(settings.searches)) <= 2048
    assert settings.searches[:2] == tuple(many["searches"][:2])


def test_a_file_is_read_as_it_is_written() -> None:
    assert write_resolver(read_resolver(text())) == text()


@pytest.mark.skipif(
    find_mode().isolation is Isolation.NONE, reason="needs mount namespaces, which the kernel refuses here"
)
async def test_names_are_found_by_dns_where_the_cluster_serves_them(api: Any, make_node: Any) -> None:
    node = await make_node()
    for name, address in (("kube-dns", "10.96.0.10"), ("web", "10.96.0.99")):
        spec = {"clusterIP": address, "ports": [{"port": 80}]}
        space = "kube-system" if name == "kube-dns" else "default"
        await api.registry.create("services", space, {"metadata": {"name": name}, "spec": spec})
    show = "cat /etc/resolv.conf; grep -c web /etc/hosts"
    container = {"name": "c", "image": "busybox", "command": ["sh", "-c", show]}
    await api.create_pod(
        containers=[container], restartPolicy="Never", dnsPolicy="None", dnsConfig={"nameservers": ["10.96.0.10"]}
    )
    await api.phase("Failed")
    assert node.log() == "nameserver 10.96.0.10\n0\n"
