"""The webhook in the path of an API server: what is refused, what passes, and what happens while it is away."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gpuplane import names
from kubekit.kube import ApiError
from tinykube.apiserver.hooks import User


async def test_what_can_never_run_is_refused_with_the_reason(world, make_pod):
    await world.install()
    await world.start()
    said = await world.refused(make_pod(vcuda_core=150))
    assert 'admission webhook "pods.validate.gpuplane.dev" denied the request: GP201' in said
    assert "spec.containers[0].resources.limits.tencent.com/vcuda-core: 150 can never be met" in said
    assert "gpuplane explain GP201" in said
    said = await world.refused(make_pod(vcuda_memory=4))
    assert "GP204" in said
    stored = await world.create(make_pod(vcuda_core=50, vcuda_memory=4))
    assert names.TRANSLATED_ANNOTATION not in stored["metadata"].get("annotations", {})


async def test_every_reason_is_told_at_once(world, make_pod):
    await world.install()
    await world.start()
    bad = make_pod(vcuda_core=250)
    bad["spec"]["initContainers"] = [{**make_pod(vcuda_memory=1)["spec"]["containers"][0], "name": "first"}]
    bad["metadata"]["annotations"] = {names.GPU_POLICY_ANNOTATION: "best"}
    said = await world.refused(bad)
    assert said.index("GP206") < said.index("spec.initContainers[0]") < said.index("spec.containers[0]")


async def test_a_workload_is_admitted_with_a_warning(world, make_pod, caplog):
    await world.install()
    await world.start()
    template = {"metadata": {"labels": {"a": "b"}}, "spec": make_pod(vcuda_core=150)["spec"]}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}
    await world.create(deployment)
    assert "its pods can never run: GP201 spec.template.spec.containers[0]" in caplog.text


async def test_pods_of_the_system_and_without_gpus_never_come(world, make_pod):
    await world.install("closed")  # without a webhook's server: a request fails
    await world.create(make_pod("plain"))
    for namespace in ("kube-system", names.OPERATOR_NAMESPACE):
        system = make_pod(f"in-{namespace}", gpu=1)
        system["metadata"]["namespace"] = namespace
        await world.create(system)
    said = await world.refused(make_pod("gpus", gpu=1))
    assert "failed calling webhook" in said and "no endpoints available" in said


@pytest.mark.parametrize("admission", ["open", "closed"])
async def test_while_it_is_away_pods_pass_or_are_refused_as_chosen(world, make_pod, admission):
    await world.install(admission)
    port = await world.start()
    await world.refused(make_pod("before", vcuda_core=150))
    await world.stop(port, gone=False)
    if admission == "open":
        await world.create(make_pod("never", vcuda_core=150))
    else:
        assert "connection refused" in await world.refused(make_pod("good", gpu=1))
    # Nothing else is held up.
    await world.create(make_pod("plain"))


async def test_one_of_two_replicas_is_enough(world, make_pod):
    await world.install("closed")
    first = await world.start()
    await world.start()
    await world.stop(first)
    assert "GP201" in await world.refused(make_pod(vcuda_core=150))


async def test_the_api_server_away_changes_nothing_and_is_waited_for(world, make_pod, ask):
    await world.install("closed")
    port = await world.start()
    # A replica that starts while the API server cannot be asked lives, and is not ready.
    world.server.extensions.identity.add("admission", User("nobody", ()))
    other = await world.start(ready=False)
    assert await ask(other, "/healthz") == 200 and await ask(other, "/readyz") == 503
    assert await ask(port, "/readyz") == 200
    assert "GP201" in await world.refused(make_pod(vcuda_core=150))


BROKEN = [b"", b"{", b"[]", b"null", b'{"request": {}}', b'{"request": {"uid": 1}}', b"[" * 100_000, b"\xff\xfe"]
ODD: list[Any] = [
    {},
    {"spec": None},
    {"spec": {"containers": None}},
    {"spec": {"containers": [None]}},
    {"spec": {"containers": [{"resources": 7}]}},
    {"spec": {"containers": [{"resources": {"limits": [1]}}]}},
    {"metadata": None, "spec": {"containers": [{"name": "c", "resources": {"limits": {names.ALPHA_GPU: {}}}}]}},
    {"metadata": {"annotations": 3}, "spec": {"volumes": 1, "containers": [
        {"name": "c", "resources": {"limits": {names.ALPHA_GPU: 1}}}
    ]}},
]  # fmt: skip


async def test_malformed_reviews_get_400_and_the_server_lives(world, ask):
    await world.install()
    port = await world.start()
    for body in BROKEN:
        for path in ("/mutate", "/validate"):
            assert await ask(port, path, body) == 400, body[:30]
        assert await ask(port, "/healthz") == 200


async def test_objects_without_a_pods_shape_are_left_to_the_api_server(world, ask):
    await world.install()
    port = await world.start()
    for odd in ODD:
        review = {"request": {"uid": "u", "kind": {"kind": "Pod"}, "operation": "CREATE", "object": odd}}
        for path in ("/mutate", "/validate"):
            assert await ask(port, path, json.dumps(review).encode()) == 200, odd


async def test_metrics_count_reviews_by_verdict(world, make_pod):
    await world.install()
    port = await world.start()
    await world.refused(make_pod(vcuda_core=150))
    await world.create(make_pod("old", alpha=1))
    text = await world.text(port, "/metrics")
    assert 'gpuplane_admission_reviews_total{webhook="validate",verdict="refused"} 1' in text
    assert 'gpuplane_admission_reviews_total{webhook="mutate",verdict="changed"} 1' in text


async def test_it_has_no_right_but_those_it_needs(world):
    await world.install()
    async with world.client("admission") as client:
        for method, path in (
            ("GET", f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/secrets"),
            ("GET", f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/secrets/other"),
            ("POST", f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/secrets"),
            ("GET", "/api/v1/pods"),
            ("PATCH", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/other"),
        ):
            with pytest.raises(ApiError) as error:
                await client.request(method, path, None, {} if method != "GET" else None)
            assert error.value.status == 403, path


@pytest.mark.parametrize("admission", ["open", "closed"])
async def test_a_webhook_that_hangs_costs_its_time_out_and_no_more(world, make_pod, admission):
    await world.install(admission)
    port = await world.start()
    await world.stop(port, gone=False)
    await world.time_out(1)
    held: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda reader, writer: held.append(writer), "127.0.0.1", port)
    try:
        async with asyncio.timeout(4):
            if admission == "open":
                await world.create(make_pod("passes", gpu=1))
            else:
                assert "failed calling webhook" in await world.refused(make_pod("refused", gpu=1))
    finally:
        silent.close()
        for writer in held:
            writer.close()
