"""Node pools on the page of `gpuplane status`."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import msgspec

from gpuplane.api.karpenter import DeclaredPool, Provisioner
from gpuplane.api.karpenter_crds import karpenter_crds
from gpuplane.api.nodeclaim import NodeClaim, NodeClaimStatus
from gpuplane.cli.overview import overview
from gpuplane.cli.pools import PoolLimitView, PoolView, pool_views
from gpuplane.cli.pools_reading import PoolFollower, read_pools
from gpuplane.cli.status import to_json
from gpuplane.cli.status_text import nodes_page, progress
from gpuplane.cli.terminal import Console
from gpuplane.operator.installation import resource_of
from kubekit.api.meta import Condition, ObjectMeta
from tests.support.api_client import connected
from tests.support.until import until
from tinykube.apiserver.server import ApiServer

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def claim(name: str, pool: str, *, label: str = "karpenter.sh/nodepool", **conditions: str) -> NodeClaim:
    ending = conditions.pop("ending", None)
    return NodeClaim(
        metadata=ObjectMeta(
            name=name,
            labels={label: pool, "node.kubernetes.io/instance-type": "g4dn.xlarge"},
            deletion_timestamp=ending,
        ),
        status=NodeClaimStatus(
            conditions=tuple(
                Condition(type=kind, status="True" if text == "True" else "False", message=text)
                for kind, text in conditions.items()
            )
        ),
    )


GPU = DeclaredPool("gpu", kind="Provisioner", limits={"cpu": 1000}, used={"cpu": "8"})
CLAIMS = [
    claim("gpu-1", "gpu", label="karpenter.sh/provisioner-name", Launched="True", Initialized="True"),
    claim("gpu-2", "gpu", Launched="True"),
    claim("gpu-3", "gpu", Launched="True", Initialized="True", ending="2026-11-23T00:00:00Z"),
    claim("other-1", "other", Launched="no capacity for g4dn.xlarge"),
]


def test_a_pool_counts_its_nodes_by_where_they_are_in_their_lives() -> None:
    shared, gpu = DeclaredPool("zz"), GPU
    assert pool_views([shared, gpu], CLAIMS) == (
        PoolView("gpu", "Provisioner", 1, 1, 1, {"g4dn.xlarge": 3}, (PoolLimitView("cpu", "8", "1000"),)),
        PoolView("zz", "NodePool"),
    )


def page(*pools: DeclaredPool) -> str:
    seen = msgspec.structs.replace(overview([], [], {}, version="0.1.0"), pools=pool_views(pools, CLAIMS))
    return nodes_page("demo", seen, Console(io.StringIO(), io.StringIO()), NOW)


def test_the_page_has_a_line_for_each_pool() -> None:
    lines = page(GPU, DeclaredPool("idle")).splitlines()
    assert lines[0] == "demo   no GPU nodes   gpuplane 0.1.0"
    assert lines[2:] == [
        " POOL   NODES   JOINING   ENDING   TYPES             LIMITS",
        " gpu        1         1        1   3 × g4dn.xlarge   cpu 8 of 1000",
        " idle       0         0        0",
    ]


def test_a_pool_whose_launches_fail_says_why() -> None:
    text = page(DeclaredPool("other"))
    assert " ! pool other gets no node" in text and "no capacity for g4dn.xlarge" in text


def test_without_pools_the_page_says_that_no_node_carries_a_gpu() -> None:
    assert "no node carries a GPU" in page() and "POOL" not in page()


def test_an_autoscaler_without_a_pool_is_the_cause_and_not_discovery() -> None:
    seen = msgspec.structs.replace(overview([], [], {}), buys_nodes=True)
    screen = Console(io.StringIO(), io.StringIO())
    text = nodes_page("demo", seen, screen, NOW)
    assert "what   the autoscaler has no node pool: it buys no nodes" in text
    assert "cure   kubectl apply -f FILE with a NodePool" in text and "discovery" not in text
    assert progress(seen, screen, NOW).endswith("no GPU node yet: the autoscaler has no node pool")
    bought = msgspec.structs.replace(seen, pools=pool_views([GPU], CLAIMS))
    assert progress(bought, screen, NOW).endswith("no GPU node yet: 1 node bought and on its way")
    idle = msgspec.structs.replace(seen, pools=pool_views([DeclaredPool("idle")], CLAIMS))
    assert progress(idle, screen, NOW).endswith("node pools buy nodes once pods wait for them")


def test_a_pool_that_is_not_ready_says_why_with_the_cure() -> None:
    troubles = {"gpu": ("the pool's condition Ready is False: no subnet has a=b", "tag the subnets")}
    seen = msgspec.structs.replace(overview([], [], {}), pools=pool_views([GPU], CLAIMS, troubles))
    assert nodes_page("demo", seen, Console(io.StringIO(), io.StringIO()), NOW).splitlines()[-3:] == [
        " ! pool gpu gets no node",
        "     what   the pool's condition Ready is False: no subnet has a=b",
        "     cure   tag the subnets",
    ]


def test_json_lists_the_pools() -> None:
    found = to_json(msgspec.structs.replace(overview([], [], {}), pools=pool_views([GPU], CLAIMS)))["pools"]
    assert msgspec.json.decode(msgspec.json.encode(found)) == [
        {
            **{"name": "gpu", "kind": "Provisioner", "nodes": 1, "joining": 1, "ending": 1},
            **{"types": {"g4dn.xlarge": 3}, "trouble": "", "cure": ""},
            "limits": [{"resource": "cpu", "used": "8", "limit": "1000"}],
        }
    ]


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_pools_are_read_where_their_kinds_are_served_and_the_user_may_read_them(server: ApiServer) -> None:
    provider = {"launchTemplate": "gpu", "subnetSelector": {"a": "b"}}
    pool: dict[str, Any] = {
        "apiVersion": Provisioner.RESOURCE.api_version,
        "kind": "Provisioner",
        "metadata": {"name": "gpu"},
        "spec": {"provider": provider, "limits": {"resources": {"cpu": 1000}}},
    }
    async with connected(server) as admin, connected(server, "nobody") as nobody:
        assert await read_pools(admin) == ()
        for definition in karpenter_crds():
            await admin.apply(definition, "test", resource=resource_of(definition))
        follower = PoolFollower(admin, lambda: None)
        await follower.start()
        try:
            assert follower.seen() == ()
            await admin.request("POST", Provisioner.RESOURCE.path(), None, pool)
            limits = (PoolLimitView("cpu", "0", "1000"),)
            assert await read_pools(admin) == (PoolView("gpu", "Provisioner", limits=limits),)
            assert await until(follower.seen, what="the pool") == await read_pools(admin)
            condition = {"type": "Ready", "status": "False", "reason": "No", "message": "no subnet; tag one"}
            await admin.patch(Provisioner, "gpu", {"status": {"conditions": [condition]}}, subresource="status")
            [view] = await read_pools(admin)
            assert (view.trouble, view.cure) == ("the pool's condition Ready is False: no subnet", "tag one")
        finally:
            await follower.aclose()
        assert await read_pools(nobody) == ()
