"""Quotas: what their ConfigMaps mean, who uses how much, and that two pods never share the last of one."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.scheduler.quota import (
    ALLOWED,
    NamespaceQuota,
    QuotaCheck,
    QuotaPlace,
    QuotaSettings,
    QuotaUsage,
    parse_quotas,
    parse_settings,
)
from kubekit.api.core import ConfigMap
from kubekit.errors import InvalidInput
from tests.support.extender_world import Running, World, extender, gpu_pod

QUOTA_OF_THE_MANIFEST = """
{
  "A": {"pool": ["public"], "quota": {"M40": 2, "P100": 3}},
  "B": {"pool": ["wx"], "quota": {"M40": 8, "P100": 2}}
}
"""


# -- what is written -----------------------------------------------------------------------------------------------
def test_quotas_are_read_as_gpu_admission_reads_them() -> None:
    assert parse_quotas(QUOTA_OF_THE_MANIFEST) == {
        "A": NamespaceQuota({"M40": 200, "P100": 300}, ("public",)),
        "B": NamespaceQuota({"M40": 800, "P100": 200}, ("wx",)),
    }
    assert parse_quotas('{"a": {"Quota": {"T4": 0.5}}, "b": {"POOL": null}}') == {
        "a": NamespaceQuota({"T4": 50}),
        "b": NamespaceQuota(),
    }


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("", "no JSON object"),
        ("[]", "no JSON object"),
        ('{"a": 3}', "a: 3 is no object with quota and pool"),
        ('{"a": {"qouta": {"T4": 1}}}', "a: qouta is unknown; it knows quota and pool"),
        ('{"a": {"quota": ["T4"]}}', "a.quota: ['T4'] is no object of models"),
        ('{"a": {"quota": {"T4": -1}}}', "a.quota.T4: -1 is no number of GPUs"),
        ('{"a": {"quota": {"T4": "4"}}}', "a.quota.T4: '4' is no number of GPUs"),
        ('{"a": {"quota": {"T4": true}}}', "a.quota.T4: True is no number of GPUs"),
        ('{"a": {"quota": {"T4": 1e300}}}', "a.quota.T4: 1e+300 is no number of GPUs"),
        ('{"a": {"pool": "public"}}', "a.pool: 'public' is no list of names"),
    ],
)
def test_what_is_wrong_is_said(text: str, finding: str) -> None:
    with pytest.raises(InvalidInput, match=finding.split(":", maxsplit=1)[0]) as raised:
        parse_quotas(text)
    assert finding in str(raised.value)


keys = st.sampled_from(["a", "quota", "pool", "T4"])
leaves = st.none() | st.booleans() | st.floats(allow_nan=False) | st.text()


@given(st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=12))
def test_any_json_is_read_or_refused(data: object) -> None:
    for parse in (parse_quotas, parse_settings):
        try:
            parse(json.dumps(data))
        except InvalidInput as error:
            assert error.what


def test_names_are_those_of_gpu_admission_unless_it_says_otherwise() -> None:
    assert parse_settings("{}") == QuotaSettings(
        "gpuquota", "kube-system", "gaia.tencent.com/gpu-model", "gaia.tencent.com/gpu-pool"
    )
    settings = '{"QuotaConfigMapName": "q", "quotaconfigmapnamespace": "n", "GPUModelLabel": "m", "GPUPoolLabel": "p"}'
    assert parse_settings(settings) == QuotaSettings("q", "n", "m", "p")
    with pytest.raises(InvalidInput):
        parse_settings('{"GPUModelLabel": 3}')


# -- who uses what -------------------------------------------------------------------------------------------------
pods, nodes = st.sampled_from("abc"), st.sampled_from(["n1", "n2"])
steps = st.lists(
    st.tuples(st.just("add"), pods, st.sampled_from(["x", "y"]), nodes, st.sampled_from([30, 100]))
    | st.tuples(st.just("remove"), pods)
    | st.tuples(st.just("label"), nodes, st.sampled_from(["T4", "M40", None])),
    max_size=40,
)


@given(steps)
def test_usage_equals_a_count_of_everything(history: list[tuple[object, ...]]) -> None:
    usage = QuotaUsage()
    pods: dict[str, tuple[str, str, int]] = {}
    models: dict[str, str] = {}
    for step in history:
        match step:
            case ("add", str(pod), str(namespace), str(node), int(core)):
                usage.add(pod, namespace, node, core, pod.upper())
                pods[pod] = (namespace, node, core)
            case ("remove", str(pod)):
                usage.remove(pod)
                pods.pop(pod, None)
            case ("label", str(node), model):
                usage.set_place(node, None if model is None else QuotaPlace(str(model)))
                models[node] = str(model or "")
        for namespace in ("x", "y"):
            for model in ("T4", "M40", ""):
                uses = {
                    pod: core
                    for pod, (space, node, core) in pods.items()
                    if space == namespace and models.get(node, "") == model
                }
                assert usage.used(namespace, model) == sum(uses.values())
                assert dict(usage.holders(namespace, model)) == {pod.upper(): core for pod, core in uses.items()}
                assert usage.used(namespace, model, but="a") == sum(core for pod, core in uses.items() if pod != "a")


def test_a_refusal_says_what_is_used_and_by_whom() -> None:
    usage = QuotaUsage()
    usage.set_place("n1", QuotaPlace("M40", "public"))
    usage.set_place("n2", QuotaPlace("T4", "public"))
    usage.set_place("n3", QuotaPlace("M40", "private"))
    for index, core in enumerate((100, 50, 30, 20)):
        usage.add(f"uid-{index}", "ml", "n1", core, f"pod-{index}")
    check = QuotaCheck(NamespaceQuota({"M40": 200}, ("public",)), usage, "ml", "mine", 50)
    assert check("n1").reason == (
        "ExceedsGPUQuota: namespace ml uses 2 of 2 M40 (pod-0 1 + pod-1 0.5 + pod-2 0.3 + 1 more), "
        "and this pod asks 0.5"
    )
    assert check("n1").passes
    assert check("n2").reason == "ExceedsGPUQuota: namespace ml may use M40" and not check("n2").passes
    assert check("n3").reason == "ExceedsGPUQuota: namespace ml may use GPU pool public"
    assert not QuotaCheck(NamespaceQuota({"M40": 200}), usage, "ml", "uid-0", 100)("n1").reason, (
        "its own does not count"
    )
    assert not QuotaCheck(None, usage, "ml", "mine", 50)("n3").reason
    assert QuotaCheck(NamespaceQuota({}), usage, "ml", "mine", 50)("n1").reason.endswith("may use no GPU")


def test_replicas_count_as_the_parts_of_gpus_that_they_are() -> None:
    usage = QuotaUsage()
    usage.set_place("n1", QuotaPlace("T4", part=10))
    usage.set_place("n2", QuotaPlace("T4"))
    for number in range(9):
        usage.add(f"p{number}", "ml", "n1", 100, f"p{number}", by_count=True)
    assert usage.used("ml", "T4") == 90
    quota = NamespaceQuota({"T4": 100})
    check = QuotaCheck(quota, usage, "ml", "new", 100, by_count=True)
    assert check("n1") == ALLOWED
    assert check("n2").reason.endswith("and this pod asks 1") and check("n2").passes
    usage.add("p9", "ml", "n1", 100, "p9", by_count=True)
    full = QuotaCheck(quota, usage, "ml", "new", 100, by_count=True)("n1")
    assert "uses 1 of 1 T4 (p0 0.1 + p1 0.1 + p2 0.1 + 7 more), and this pod asks 0.1" in full.reason
    usage.set_place("n1", QuotaPlace("T4"))  # whole GPUs again
    assert usage.used("ml", "T4") == 1000


# -- over HTTP -----------------------------------------------------------------------------------------------------
async def three_nodes(cluster: World, running: Running, model_label: str, pool_label: str) -> None:
    await cluster.node("m40", 4, labels={model_label: "M40", pool_label: "public"})
    await cluster.node("p100", 4, labels={model_label: "P100", pool_label: "public"})
    await cluster.node("wx", 4, labels={model_label: "M40", pool_label: "wx"})
    await running.until(lambda: sum(1 for _ in running.leader.cluster.ledger.nodes()) == 3)


async def namespaced(cluster: World, *spaces: str) -> None:
    for space in spaces:
        await cluster.client.request("POST", "/api/v1/namespaces", None, {"metadata": {"name": space}})


NODES = ["m40", "p100", "wx"]


async def test_the_manifests_quota_acts(cluster: World, running: Running) -> None:
    await three_nodes(cluster, running, names.QUOTA_MODEL_LABEL, names.QUOTA_POOL_LABEL)
    await namespaced(cluster, "a", "b", "free")
    await cluster.quota(QUOTA_OF_THE_MANIFEST.replace('"A"', '"a"').replace('"B"', '"b"'))
    await running.until(lambda: running.leader.quotas("a"))
    for index in range(2):
        pod = await cluster.pod(gpu_pod(f"p{index}", whole=1, namespace="a"))
        assert (await running.filter(pod, NODES))["NodeNames"] == ["m40", "p100"]
        assert await running.bind(pod, "m40") == ""
    more = await cluster.pod(gpu_pod("more", (10, 1), namespace="a"))
    answer = await running.filter(more, NODES)
    assert answer["NodeNames"] == ["p100"]
    why = "ExceedsGPUQuota: namespace a uses 2 of 2 M40 (p0 1 + p1 1), and this pod asks 0.1"
    assert answer["FailedNodes"] == {"m40": why}
    assert answer["FailedAndUnresolvableNodes"] == {"wx": "ExceedsGPUQuota: namespace a may use GPU pool public"}
    assert why in await running.bind(more, "m40"), "a scheduler that never asked is refused too"
    free = await cluster.pod(gpu_pod("free", (10, 1), namespace="free"))
    assert (await running.filter(free, NODES))["NodeNames"] == NODES
    await cluster.end("p0", "a")
    await running.until(lambda: running.leader.cluster.usage.used("a", "M40") == 100)
    assert (await running.filter(more, NODES))["NodeNames"] == ["m40", "p100"]


async def test_other_names_of_the_manifest_act(cluster: World, running: Running) -> None:
    await three_nodes(cluster, running, "model", "pool")
    await cluster.quota('{"default": {"quota": {"P100": 1}}}', name="mine")
    settings = {"QuotaConfigMapName": "mine", "GPUModelLabel": "model", "GPUPoolLabel": "pool"}
    await cluster.quota(json.dumps(settings), names.QUOTA_SETTINGS_CONFIGMAP, names.QUOTA_SETTINGS_KEY)
    await running.until(lambda: running.leader.quotas("default"))
    pod = await cluster.pod(gpu_pod("p", whole=1))
    assert (await running.filter(pod, NODES))["NodeNames"] == ["p100"]
    two = await cluster.pod(gpu_pod("two", whole=2))
    answer = await running.filter(two, NODES)
    assert "uses 0 of 1 P100, and this pod asks 2" in answer["FailedAndUnresolvableNodes"]["p100"]


async def test_the_last_of_a_quota_goes_to_one_of_many(cluster: World, running: Running) -> None:
    await three_nodes(cluster, running, names.QUOTA_MODEL_LABEL, names.QUOTA_POOL_LABEL)
    await cluster.quota('{"default": {"quota": {"M40": 3}}}')
    await running.until(lambda: running.leader.quotas("default"))
    pods = [await cluster.pod(gpu_pod(f"p{index}", whole=1)) for index in range(8)]
    errors = await asyncio.gather(*(running.bind(pod, ["m40", "wx"][at % 2]) for at, pod in enumerate(pods)))
    assert sum(error == "" for error in errors) == 3
    assert all("ExceedsGPUQuota" in error for error in errors if error)
    assert running.leader.cluster.usage.used("default", "M40") == 300


async def test_what_does_not_parse_keeps_the_last_good_one_and_is_told_on_the_configmap(
    cluster: World, running: Running
) -> None:
    await three_nodes(cluster, running, names.QUOTA_MODEL_LABEL, names.QUOTA_POOL_LABEL)
    await cluster.quota('{"default": {"quota": {"M40": 0}}}')
    await running.until(lambda: running.leader.quotas("default"))
    await cluster.quota('{"default": {"quota": {"M40": 4}}')
    await running.until(lambda: running.leader.quotas.broken)
    pod = await cluster.pod(gpu_pod("p", whole=1))
    assert (await running.filter(pod, NODES))["NodeNames"] == [], "as it was: no M40"
    (event,) = await cluster.events("QuotaNotUnderstood")
    assert event.involved_object.name == "gpuquota" and "the previous quota stays in force" in event.message
    await cluster.quota('{"default": {"quota": {"M40": 4}}}')
    await running.until(lambda: not running.leader.quotas.broken)
    assert (await running.filter(pod, NODES))["NodeNames"] == ["m40", "wx"]
    await cluster.client.delete(ConfigMap, "gpuquota", "kube-system")
    await running.until(lambda: running.leader.quotas("default") is None)
    assert (await running.filter(pod, NODES))["NodeNames"] == NODES


async def test_quotas_that_did_not_parse_at_the_start_let_nobody_through(cluster: World) -> None:
    await cluster.quota("nonsense")
    async with extender(cluster.client) as running:
        await three_nodes(cluster, running, names.QUOTA_MODEL_LABEL, names.QUOTA_POOL_LABEL)
        pod = await cluster.pod(gpu_pod("p", whole=1))
        assert "the GPU quotas cannot be read" in (await running.filter(pod, NODES))["Error"]
        assert "the GPU quotas cannot be read" in await running.bind(pod, "m40")
        (event,) = await cluster.events("QuotaNotUnderstood")
        assert "no pod gets GPUs until it is corrected" in event.message
        await cluster.quota("{}")
        await running.until(lambda: not running.leader.quotas.broken)
        assert (await running.filter(pod, NODES))["NodeNames"] == NODES
