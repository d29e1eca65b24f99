"""lightkube, the official client and kopf, unmodified."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import threading
import warnings
from collections.abc import Iterator

import pytest

from kubekit.kube.certificates import CLIENT, Validity, issue, load

pytestmark = [
    # Of the clients and what they stand on; ours are errors elsewhere.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def sockets_of_others() -> Iterator[None]:
    """These clients leave connections to the garbage collector, whose warning would meet some later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_lightkube(cluster, node, namespace):
    from lightkube import ApiError, Client, KubeConfig
    from lightkube.models.core_v1 import ConfigMap as _  # noqa: F401
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import ConfigMap, Node
    from lightkube.types import PatchType

    client = Client(config=KubeConfig.from_file(cluster.kubeconfig), namespace=namespace, field_manager="lightkube")
    assert node in [found.metadata.name for found in client.list(Node)]
    made = client.create(ConfigMap(metadata=ObjectMeta(name="lk"), data={"a": "1"}))
    with pytest.raises(ApiError) as refused:
        client.create(ConfigMap(metadata=ObjectMeta(name="lk")))
    assert refused.value.status.reason == "AlreadyExists"
    for kind, patch in (
        (PatchType.MERGE, {"data": {"merge": "1"}}),
        (PatchType.STRATEGIC, {"data": {"strategic": "1"}}),
        (PatchType.JSON, [{"op": "add", "path": "/data/json", "value": "1"}]),
    ):
        made = client.patch(ConfigMap, "lk", patch, patch_type=kind)
    made = client.apply(
        ConfigMap(apiVersion="v1", kind="ConfigMap", metadata=ObjectMeta(name="lk"), data={"apply": "1"})
    )
    assert made.data.keys() == {"a", "merge", "strategic", "json", "apply"}
    event, seen = next(client.watch(ConfigMap, fields={"metadata.name": "lk"}))
    assert (event, seen.data["a"]) == ("ADDED", "1")
    client.delete(ConfigMap, "lk")
    assert [c.metadata.name for c in client.list(ConfigMap, labels={"no": "such"})] == []


def test_the_official_client(cluster, namespace):
    kubernetes = pytest.importorskip("kubernetes")
    from kubernetes import dynamic, watch
    from kubernetes.stream import stream

    api_client = kubernetes.config.new_client_from_config(str(cluster.kubeconfig))
    core = kubernetes.client.CoreV1Api(api_client)
    spec = {"containers": [{"name": "c", "image": "busybox"}], "terminationGracePeriodSeconds": 1}
    core.create_namespaced_pod(namespace, {"metadata": {"name": "official"}, "spec": spec})
    for event in watch.Watch().stream(core.list_namespaced_pod, namespace, timeout_seconds=20):
        if event["object"].metadata.name == "official" and event["object"].status.phase == "Running":
            break
    else:
        pytest.fail("the pod never ran")
    if cluster.kubelet:
        assert core.read_namespaced_pod_log("official", namespace).startswith("first line")
        output = stream(
            core.connect_get_namespaced_pod_exec, "official", namespace,
            command=["echo", "hi"], stdout=True, stderr=True, stdin=False, tty=False,
        )  # fmt: skip
        assert output == "hi\n"
    core.patch_namespaced_pod("official", namespace, {"metadata": {"labels": {"a": "b"}}})
    assert core.list_namespaced_pod(namespace, label_selector="a=b").items[0].metadata.name == "official"
    with pytest.raises(kubernetes.client.ApiException) as missing:
        core.read_namespaced_pod("nosuch", namespace)
    assert missing.value.status == 404
    core.delete_namespaced_pod("official", namespace)
    deployments = dynamic.DynamicClient(api_client).resources.get(api_version="apps/v1", kind="Deployment")
    assert deployments.get(namespace=namespace).items == []
    api_client.close()


CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.kopf.test"},
    "spec": {
        "group": "kopf.test",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def test_kopf(cluster, api, namespace, monkeypatch):
    """An operator sees creation, change and deletion, patches the object and lets it go."""
    kopf = pytest.importorskip("kopf")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    registry = kopf.OperatorRegistry()
    told: list[str] = []
    deleted = threading.Event()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = True

    @kopf.on.login(registry=registry)
    def login(**kwargs):
        return kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.create("kopf.test", "v1", "things", registry=registry)
    def created(spec, patch, **_):
        told.append(f"created {spec['size']}")
        patch.metadata.annotations["seen"] = "yes"

    @kopf.on.update("kopf.test", "v1", "things", registry=registry)
    def updated(spec, **_):
        told.append(f"updated {spec['size']}")

    @kopf.on.delete("kopf.test", "v1", "things", registry=registry)
    def removed(**_):
        told.append("deleted")
        deleted.set()

    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    api.create(crds, CRD)
    conditions = {"type": "Established", "status": "True"}
    api.until(
        f"{crds}/things.kopf.test",
        lambda found: any(conditions.items() <= c.items() for c in (found.get("status") or {}).get("conditions") or ()),
    )
    things = f"/apis/kopf.test/v1/namespaces/{namespace}/things"

    async def operate() -> None:
        stop, ready = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(
            kopf.operator(registry=registry, namespaces=[namespace], stop_flag=stop, ready_flag=ready)
        )
        await asyncio.wait_for(ready.wait(), 20)
        await asyncio.to_thread(scenario)
        stop.set()
        await asyncio.wait_for(running, 20)

    def until(condition) -> None:
        for _ in range(400):
            if condition():
                return
            threading.Event().wait(0.05)
        pytest.fail(f"kopf was told {told}")

    def scenario() -> None:
        obj = {"apiVersion": "kopf.test/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"size": 1}}
        made = api.create(things, obj)
        assert made.status == 201, made.body
        api.until(f"{things}/t", lambda found: (found["metadata"].get("annotations") or {}).get("seen") == "yes")
        api.patch(f"{things}/t", {"spec": {"size": 2}})
        until(lambda: "updated 2" in told)
        api.delete(f"{things}/t")
        assert deleted.wait(20)
        api.until(f"{things}/t", lambda found: not found)
        api.delete(f"{crds}/things.kopf.test")

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(operate())
    assert (told[0], told[-1]) == ("created 1", "deleted")
    assert "updated 2" in told


def test_a_client_certificate_says_who_asks(cluster, tmp_path):
    """The official client with a certificate of the cluster's authority instead of a token."""
    kubernetes = pytest.importorskip("kubernetes")
    if cluster.signing_key is None:
        pytest.skip("the authority's key is not ours")
    certificate, key = client_certificate(cluster.signing_key, "carol", "system:masters", tmp_path)
    configuration = kubernetes.client.Configuration(host=cluster.url)
    configuration.ssl_ca_cert = str(cluster.authority)
    configuration.cert_file, configuration.key_file = str(certificate), str(key)
    api_client = kubernetes.client.ApiClient(configuration)
    review = kubernetes.client.AuthenticationV1Api(api_client).create_self_subject_review({})
    assert review.status.user_info.username == "carol"
    assert review.status.user_info.groups == ["system:masters", "system:authenticated"]
    assert kubernetes.client.CoreV1Api(api_client).list_node().items
    api_client.close()


def client_certificate(signing_key, name, group, directory):
    now = datetime.datetime.now(datetime.UTC)
    validity = Validity(now - datetime.timedelta(minutes=1), now + datetime.timedelta(hours=1))
    authority = load(signing_key.with_name("ca.crt").read_bytes(), signing_key.read_bytes())
    made = issue(authority, name, validity, group=group, usages=(CLIENT,))
    paths = directory / "client.crt", directory / "client.key"
    paths[0].write_bytes(made.certificate_pem)
    paths[1].write_bytes(made.key_pem)
    return paths
