"""What the node pools of a cluster would buy for a pod that waits, as `gpuplane explain` prints it."""

from __future__ import annotations

import io
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.api.karpenter import DeclaredPool, PoolRequirement, Provisioner
from gpuplane.api.karpenter_crds import karpenter_crds
from gpuplane.autoscaler.options import SharingSettings
from gpuplane.cli.explain_text import page
from gpuplane.cli.terminal import Console
from gpuplane.explain.answer import Explanation, PoolAnswer
from gpuplane.explain.pool_reading import read_pool_facts
from gpuplane.explain.pools import PoolFacts, pool_answers
from gpuplane.operator.installation import resource_of
from kubekit.api.core import Taint
from kubekit.kube import ApiEndpoint, Client
from kubekit.kube.auth import StaticAuth
from tinykube.apiserver.identity import ADMIN, service_account_user
from tinykube.apiserver.server import ApiServer

TEN = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}"
SHARING = SharingSettings(configs={"default": "version: v1", "shared": TEN}, default="default")
TYPES = PoolRequirement(key="node.kubernetes.io/instance-type", operator="In", values=("g4dn.xlarge", "g4dn.12xlarge"))
ON_DEMAND = PoolRequirement(key="karpenter.sh/capacity-type", operator="In", values=("on-demand",))


def pod(gpus: int = 1, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    meta = {"name": "train", "namespace": "ml", "uid": "1", "creationTimestamp": "2026-11-23T00:00:00Z"}
    return {"metadata": meta, "spec": {"containers": [container], **spec}, "status": {}}


def pool(name: str, *taints: Taint, **fields: Any) -> DeclaredPool:
    return DeclaredPool(name, taints=taints, requirements=(TYPES, ON_DEMAND), **fields)


GUARDED = pool("guarded", Taint(key="nvidia.com/gpu", effect="NoSchedule"))


def test_each_pool_says_what_it_would_buy_or_which_rule_says_no() -> None:
    full = pool("full", limits={"cpu": 4}, used={"cpu": "4"})
    heavy = pool("heavy", weight=5)
    found = pool_answers(pod(), PoolFacts([GUARDED, full, pool("plain"), heavy], sharing=SHARING))
    assert [answer.pool for answer in found] == ["heavy", "plain", "full", "guarded"]
    assert found[1] == PoolAnswer("plain", "g4dn.xlarge", "on-demand", 0.526)
    assert "cpu" in found[2].why_not and "limit" in found[2].why_not
    assert found[3].why_not == "the pod does not tolerate the taint nvidia.com/gpu:NoSchedule"


def test_replicas_are_known_before_the_node_exists() -> None:
    shared = pool("shared", labels={"nvidia.com/device-plugin.config": "shared"})
    (whole,) = pool_answers(pod(4), PoolFacts([pool("plain")], sharing=SHARING))
    (replicas,) = pool_answers(pod(4), PoolFacts([shared], sharing=SHARING))
    assert (whole.type, replicas.type) == ("g4dn.12xlarge", "g4dn.xlarge")


def test_the_page_lists_them_also_where_there_is_no_node() -> None:
    found = pool_answers(pod(), PoolFacts([GUARDED, pool("plain")], sharing=SHARING))
    what = Explanation("ml/train", "waiting", asks="1 GPU", pools=found)
    text = page(what, Console(io.StringIO(), io.StringIO()))
    assert text.splitlines()[-4:] == [
        "",
        " POOL      BUYS",
        " plain     g4dn.xlarge on-demand, 0.526 $/h by the built-in list",
        " guarded   ✗ the pod does not tolerate the taint nvidia.com/gpu:NoSchedule",
    ]


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = await ApiServer.start(tmp_path / "pki")
    server.extensions.identity.add("admin", ADMIN)
    server.extensions.identity.add("nobody", service_account_user("ml", "nobody"))
    yield server
    await server.stop()


def connected(server: ApiServer, who: str = "admin") -> Client:
    tls = ssl.create_default_context(cafile=str(server.authority))
    return Client(ApiEndpoint(host="127.0.0.1", port=server.port, auth=StaticAuth(token=who), tls=tls))


async def test_pools_are_read_with_the_daemonsets_that_take_a_part_of_their_nodes(server: ApiServer) -> None:
    labels = {"app": "agent"}
    requests = {"requests": {"cpu": "3500m"}}
    containers = [{"name": "main", "image": "agent", "resources": requests}]
    daemons = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }
    provisioner: dict[str, Any] = {
        "apiVersion": Provisioner.RESOURCE.api_version,
        "kind": "Provisioner",
        "metadata": {"name": "gpu"},
        "spec": {
            "provider": {"launchTemplate": "gpu", "subnetSelector": {"a": "b"}},
            "requirements": [{"key": TYPES.key, "operator": "In", "values": ["g4dn.xlarge"]}],
        },
    }
    async with connected(server) as admin, connected(server, "nobody") as nobody:
        assert await read_pool_facts(admin) is None
        for definition in karpenter_crds():
            await admin.apply(definition, "test", resource=resource_of(definition))
        await admin.request("POST", Provisioner.RESOURCE.path(), None, provisioner)
        facts = await read_pool_facts(admin)
        assert facts is not None and [one.name for one in facts.pools] == ["gpu"]
        assert pool_answers(pod(), facts)[0].type == "g4dn.xlarge"
        await admin.request("POST", "/apis/apps/v1/namespaces/default/daemonsets", None, daemons)
        facts = await read_pool_facts(admin)
        assert facts is not None
        busy = pod()
        busy["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
        assert "g4dn.xlarge" in pool_answers(busy, facts)[0].why_not
        assert await read_pool_facts(nobody) is None
