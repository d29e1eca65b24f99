"""The distribution of endpoints over EndpointSlices."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tinykube.controllers.endpoints.decide import EndpointGroup
from tinykube.controllers.endpoints.packing import MOST, plan_slices


def endpoint(number: int) -> dict[str, Any]:
    return {"addresses": [f"10.0.{number // 250}.{number % 250}"], "targetRef": {"uid": str(number)}}


def group(port: int, numbers: Any) -> EndpointGroup:
    return EndpointGroup([{"name": "", "port": port, "protocol": "TCP"}], [endpoint(number) for number in numbers])


class Slices:
    """The slices of a Service, as they are after each plan."""

    def __init__(self) -> None:
        self.standing: dict[str, dict[str, Any]] = {}
        self.made = 0

    def follow(self, groups: list[EndpointGroup]) -> int:
        """Carry out a plan; how many slices it wrote."""
        plan = plan_slices(groups, list(self.standing.values()))
        writes = len(plan.create) + len(plan.delete)
        for one in plan.delete:
            del self.standing[one["metadata"]["name"]]
        for one, body in plan.update:
            new = {**one, "ports": body.ports, "endpoints": body.endpoints}
            writes += new != one
            self.standing[one["metadata"]["name"]] = new
        for body in plan.create:
            self.made += 1
            meta = {"name": f"web-{self.made:05}"}
            self.standing[meta["name"]] = {"metadata": meta, "ports": body.ports, "endpoints": body.endpoints}
        return writes

    def held(self) -> dict[tuple[int, str], int]:
        """Return how often each endpoint is listed, by port and address."""
        found: dict[tuple[int, str], int] = {}
        for one in self.standing.values():
            assert len(one["endpoints"]) <= MOST
            for listed in one["endpoints"]:
                key = one["ports"][0]["port"], listed["addresses"][0]
                found[key] = found.get(key, 0) + 1
        return found


SETS = st.sets(st.integers(0, 400))


@given(st.lists(st.dictionaries(st.sampled_from([80, 81, 82]), SETS, max_size=3), max_size=6))
def test_each_endpoint_is_in_one_slice_of_its_ports_whatever_was_before(history: list[dict[int, set[int]]]) -> None:
    slices = Slices()
    for wanted in history:
        groups = [group(port, sorted(numbers)) for port, numbers in wanted.items() if numbers]
        slices.follow(groups)
        assert slices.held() == {
            (port, endpoint(number)["addresses"][0]): 1 for port, numbers in wanted.items() for number in numbers
        }
        assert slices.standing, "a Service without endpoints has a slice that says so"
        assert slices.follow(groups) == 0


def test_a_pod_that_ends_changes_one_slice() -> None:
    slices = Slices()
    assert slices.follow([group(80, range(350))]) == 4
    assert slices.follow([group(80, range(1, 350))]) == 1
    assert slices.follow([group(80, range(1, 351))]) == 1
    assert slices.follow([group(81, range(1, 351))]) == 4
