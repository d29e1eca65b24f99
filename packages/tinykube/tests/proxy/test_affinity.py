"""The pod that a client gets, by a clock of the test."""

from __future__ import annotations

from tinykube.proxy.affinity import PodChooser
from tinykube.proxy.routes import ListenAddress, ServiceRoute

PODS = tuple(ListenAddress(f"127.64.0.{last}", 80) for last in (2, 3, 4))


class Clients:
    """Clients that connect, and the seconds since the first one did."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.chooser = PodChooser(lambda: self.seconds)

    def get(self, client: str, route: ServiceRoute) -> str:
        pod = self.chooser.order(route, client)[0]
        self.chooser.took(route, client, pod)
        return pod.host[-1]


def test_pods_take_turns() -> None:
    clients = Clients()
    assert [clients.get("a", ServiceRoute(PODS)) for _ in range(6)] == ["2", "3", "4", "2", "3", "4"]


def test_a_client_gets_its_pod_again_until_it_was_away_for_too_long() -> None:
    clients, route = Clients(), ServiceRoute(PODS, sticky_seconds=10)
    assert [clients.get("a", route), clients.get("b", route), clients.get("a", route)] == ["2", "3", "2"]
    clients.seconds = 9
    assert clients.get("a", route) == "2"
    clients.seconds = 18
    assert clients.get("a", route) == "2"
    clients.seconds = 28
    assert clients.get("a", route) == "4"


def test_a_client_whose_pod_is_gone_gets_another_one_and_keeps_it() -> None:
    clients = Clients()
    assert clients.get("a", ServiceRoute(PODS, sticky_seconds=10)) == "2"
    fewer = ServiceRoute(PODS[1:], sticky_seconds=10)
    other = clients.get("a", fewer)
    assert other in ("3", "4")
    assert [clients.get("a", fewer) for _ in range(3)] == [other] * 3


def test_without_affinity_nothing_is_remembered() -> None:
    clients = Clients()
    clients.get("a", ServiceRoute(PODS, sticky_seconds=10))
    clients.get("a", ServiceRoute(PODS))
    assert clients.get("a", ServiceRoute(PODS, sticky_seconds=10)) == "4"
