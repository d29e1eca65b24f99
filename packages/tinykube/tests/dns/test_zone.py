"""Names of the cluster, by Kubernetes' DNS specification, from the objects of a registry."""

from __future__ import annotations

from typing import Any

import pytest

from tinykube.apiserver.registry import Registry
from tinykube.dns.names import RegistryNames
from tinykube.dns.wire import RecordType, Result, parse_name
from tinykube.dns.zone import look_up, look_up_address


class World:
    def __init__(self) -> None:
        self.registry = Registry()
        self.names = RegistryNames(self.registry)

    async def service(self, name: str, namespace: str = "default", **spec: Any) -> dict[str, Any]:
        spec = {"ports": [{"name": "http", "port": 80}], **spec}
        made: dict[str, Any] = await self.registry.create(
            "services", namespace, {"metadata": {"name": name}, "spec": spec}
        )
        return made

    async def endpoints(self, name: str, *endpoints: dict[str, Any], ports: Any = None) -> None:
        labels = {"kubernetes.io/service-name": name, "service.kubernetes.io/headless": ""}
        body = {
            "metadata": {"name": f"{name}-1", "labels": labels},
            "addressType": "IPv4",
            "endpoints": list(endpoints),
            "ports": ports or [{"name": "http", "port": 8080}],
        }
        await self.registry.create("endpointslices", "default", body)

    def ask(self, name: str, kind: RecordType = RecordType.A) -> Any:
        """Return the data of the records, or the result where there is no such name."""
        answer = look_up(self.names, parse_name(name), kind)
        if answer.result is not Result.FINE:
            assert [one.kind for one in answer.authority] == [RecordType.SOA]
            return answer.result
        return [readable(one.data) for one in answer.records]

    def reverse(self, address: str) -> Any:
        name = ".".join(reversed(address.split("."))) + ".in-addr.arpa"
        answer = look_up_address(self.names, parse_name(name))
        return answer and [readable(one.data) for one in answer.records]


def readable(data: Any) -> Any:
    if hasattr(data, "port"):
        return (data.port, ".".join(data.target))
    return ".".join(data) if isinstance(data, tuple) else data


@pytest.fixture
def world() -> World:
    return World()


async def test_a_service_has_its_address_ports_and_a_name_of_its_address(world: World) -> None:
    made = await world.service(
        "web", clusterIP="10.96.0.99", ports=[{"name": "http", "port": 80}, {"name": "x", "port": 5}]
    )
    full = "web.default.svc.cluster.local"
    assert world.ask(full) == ["10.96.0.99"]
    assert world.ask("WEB.Default.svc.Cluster.LOCAL") == ["10.96.0.99"]
    assert world.ask(full, RecordType.AAAA) == []
    assert world.ask(f"_http._tcp.{full}", RecordType.SRV) == [(80, full)]
    assert world.ask(full, RecordType.SRV) == [(80, full), (5, full)]
    assert world.ask(f"_http._udp.{full}", RecordType.SRV) is Result.NO_NAME
    assert world.reverse("10.96.0.99") == [full]
    await world.registry.delete("services", "default", made["metadata"]["name"])
    assert world.ask(full) is Result.NO_NAME
    assert world.reverse("10.96.0.99") is None


async def test_a_headless_service_has_the_addresses_of_its_ready_endpoints(world: World) -> None:
    await world.service("peers", clusterIP="None")
    full = "peers.default.svc.cluster.local"
    assert world.ask(full) is Result.NO_NAME
    await world.endpoints(
        "peers",
        {"addresses": ["127.64.0.2"], "hostname": "web-0", "conditions": {"ready": True}},
        {"addresses": ["127.64.0.3"], "conditions": {"ready": True}},
        {"addresses": ["127.64.0.4"], "hostname": "web-2", "conditions": {"ready": False}},
    )
    assert world.ask(full) == ["127.64.0.2", "127.64.0.3"]
    assert world.ask(f"web-0.{full}") == ["127.64.0.2"]
    assert world.ask(f"127-64-0-3.{full}") == ["127.64.0.3"]
    assert world.ask(f"web-2.{full}") is Result.NO_NAME
    assert world.ask(f"_http._tcp.{full}", RecordType.SRV) == [(8080, f"web-0.{full}"), (8080, f"127-64-0-3.{full}")]
    assert world.reverse("127.64.0.2") == [f"web-0.{full}"]
    assert world.reverse("127.64.0.4") is None
    await world.registry.delete("endpointslices", "default", "peers-1")
    assert world.ask(full) is Result.NO_NAME


async def test_an_external_name_is_another_name(world: World) -> None:
    await world.service("far", type="ExternalName", externalName="www.example.com", ports=[])
    full = "far.default.svc.cluster.local"
    assert world.ask(full) == ["www.example.com"]
    assert world.ask(full, RecordType.CNAME) == ["www.example.com"]
    assert world.ask(f"a.{full}") is Result.NO_NAME


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("10-1-2-3.default.pod.cluster.local", RecordType.A, ["10.1.2.3"]),
        ("10-1-2-3.nowhere.pod.cluster.local", RecordType.A, Result.NO_NAME),
        ("web-0.default.pod.cluster.local", RecordType.A, Result.NO_NAME),
        ("dns-version.cluster.local", RecordType.TXT, ["1.1.0"]),
        ("default.svc.cluster.local", RecordType.A, []),
        ("nowhere.svc.cluster.local", RecordType.A, Result.NO_NAME),
        ("svc.cluster.local", RecordType.A, []),
        ("cluster.local", RecordType.A, []),
        ("missing.default.svc.cluster.local", RecordType.A, Result.NO_NAME),
        ("web.default.svc.cluster.local.default.svc.cluster.local", RecordType.A, Result.NO_NAME),
        ("anything.cluster.local", RecordType.A, Result.NO_NAME),
    ],
)
async def test_other_names_of_the_cluster(world: World, name: str, kind: RecordType, wanted: Any) -> None:
    assert world.ask(name, kind) == wanted


async def test_a_service_that_changes_its_type_changes_its_names(world: World) -> None:
    await world.service("web", type="ExternalName", externalName="a.example.com", ports=[])
    change = {"type": "ClusterIP", "externalName": None, "clusterIP": "10.96.7.7", "ports": [{"port": 80}]}
    await world.registry.patch("services", "default", "web", {"spec": change}, "merge")
    assert world.ask("web.default.svc.cluster.local") == ["10.96.7.7"]
    assert world.reverse("10.96.7.7") == ["web.default.svc.cluster.local"]
