"""An API server with an installation's objects, the webhook as itself behind its Service, and tenants."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplane import names
from gpuplane.admission.server import run
from gpuplane.operator.installation import installation, resource_of
from kubekit.kube import ApiError, Client
from tests.support.until import until
from tinykube.apiserver.hooks import User
from tinykube.apiserver.server import ApiServer

NAMESPACE = names.OPERATOR_NAMESPACE
ACCOUNTS = {"admission": "gpuplane-admission", "scheduler": "gpuplane-scheduler"}


class World:
    """`admin` is the cluster's owner; `tenant` has a role with all rights, but an ordinary account."""

    def __init__(self, server: ApiServer, directory: Path) -> None:
        self.server = server
        self.directory = directory
        identity = server.extensions.identity
        identity.add("admin", User("admin", ("system:masters", "system:authenticated")))
        identity.add("tenant", User("jane", ("system:authenticated",)))
        for token, account in ACCOUNTS.items():
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")
            identity.add(token, User(f"system:serviceaccount:{NAMESPACE}:{account}", groups))
        self.admin = self.client("admin")
        self.tenant = self.client("tenant")
        self.scheduler_name = ""
        self.replicas: dict[int, asyncio.Task[None]] = {}

    def kubeconfig(self, token: str) -> Path:
        path = self.directory / f"{token}.kubeconfig"
        cluster = {"server": self.server.url, "certificate-authority": str(self.server.authority)}
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(config))
        return path

    def client(self, token: str) -> Client:
        return Client.connect(self.kubeconfig(token))

    async def install(self, admission: str = "closed", *, pod_scheduler: bool = False) -> None:
        """Create the objects of an installation with admission; the tenants have a role with all rights.

        `pod_scheduler`: with the pod scheduler, which pods may name, and the kind ClusterPolicy.
        """
        self.scheduler_name = names.SCHEDULER_NAME if pod_scheduler else ""
        left_out = ["Deployment", "ClusterPolicy", *([] if pod_scheduler else ["CustomResourceDefinition"])]
        for manifest in installation(admission=admission, scheduler=pod_scheduler, pod_scheduler=pod_scheduler):
            if manifest["kind"] not in left_out:
                await self.admin.apply(manifest, "test", resource=resource_of(manifest))
        for name, user in (("tenants", "jane"), ("scheduler", f"system:serviceaccount:{NAMESPACE}:gpuplane-scheduler")):
            await self.server.registry.create(
                "clusterrolebindings",
                None,
                {
                    "metadata": {"name": name},
                    "roleRef": {
                        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"
                    },
                    "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
                },
            )  # fmt: skip

    async def start(self, *, ready: bool = True) -> int:
        """Another replica; its port. `ready`: the cluster takes it for ready, and the API server trusts it."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port: int = taken.getsockname()[1]
        options = Namespace(
            kubeconfig=self.kubeconfig("admission"), context=None, port=port, scheduler_name=self.scheduler_name
        )
        self.replicas[port] = asyncio.create_task(run(options))
        if not ready:
            return port
        while await asked(port, "/readyz") != 200:  # noqa: ASYNC110 - the kubelet asks again and again, too
            await asyncio.sleep(0.02)
        name = f"replica-{port}"
        await self.server.registry.create(
            "pods",
            NAMESPACE,
            {
                "metadata": {"name": name, "labels": {"app.kubernetes.io/name": names.ADMISSION_NAME}},
                "spec": {"containers": [
                    {"name": "c", "image": "i", "ports": [{"name": "https", "containerPort": port}]}
                ]},
            },
        )  # fmt: skip
        status = {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        await self.server.registry.patch("pods", NAMESPACE, name, {"status": status}, "merge", subresource="status")
        await self.until(lambda: self.bundles() and all(self.bundles()), "the configurations have a bundle")
        return port

    async def stop(self, port: int, *, gone: bool = True) -> None:
        """End a replica; `gone`: the cluster knows."""
        task = self.replicas.pop(port)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if gone:
            await self.server.registry.delete("pods", NAMESPACE, f"replica-{port}", grace=0)

    async def time_out(self, seconds: int) -> None:
        """Let the API server wait so long for the webhook's answers."""
        for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            found = self.server.registry.get(plural, None, names.ADMISSION_NAME) or {}
            patch = [
                {"op": "replace", "path": f"/webhooks/{number}/timeoutSeconds", "value": seconds}
                for number in range(len(found["webhooks"]))
            ]
            await self.server.registry.patch(plural, None, names.ADMISSION_NAME, patch, "json")

    def bundles(self) -> list[str]:
        """caBundle of every webhook."""
        found = []
        for plural, name in (
            ("mutatingwebhookconfigurations", names.ADMISSION_NAME),
            ("mutatingwebhookconfigurations", names.SCHEDULER_NAME_WEBHOOK),
            ("validatingwebhookconfigurations", names.ADMISSION_NAME),
        ):
            configuration = self.server.registry.get(plural, None, name)
            found += [w["clientConfig"].get("caBundle", "") for w in (configuration or {}).get("webhooks", ())]
        return found

    async def until(self, holds: Callable[[], Any], what: str) -> Any:
        """The first true value of `holds`, looked at after each write."""
        changed = asyncio.Event()
        for resource in ("pods", "secrets", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            self.server.registry.subscribe(resource, lambda *_: changed.set())
        return await until(holds, changed=changed, what=what)

    async def text(self, port: int, path: str) -> str:
        return await asyncio.to_thread(read, port, path)

    async def create(self, manifest: dict[str, Any], who: Client | None = None) -> dict[str, Any]:
        """Create an object as a tenant; it as it is stored."""
        kind = manifest["kind"]
        plural = {"Pod": "api/v1/namespaces/{}/pods", "Deployment": "apis/apps/v1/namespaces/{}/deployments"}[kind]
        path = "/" + plural.format(manifest["metadata"].get("namespace", "default"))
        body = await (who or self.tenant).request("POST", path, None, manifest)
        stored: dict[str, Any] = json.loads(body)
        return stored

    async def refused(self, manifest: dict[str, Any], who: Client | None = None) -> str:
        """Why an object is refused."""
        with pytest.raises(ApiError) as error:
            await self.create(manifest, who)
        return str(error.value)

    async def close(self) -> None:
        for port in list(self.replicas):
            await self.stop(port, gone=False)
        await self.admin.aclose()
        await self.tenant.aclose()
        await self.server.stop()


def read(port: int, path: str, body: bytes | None = None) -> str:
    """Return the answer of a replica; the certificate is not verified."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(f"https://localhost:{port}{path}", data=body, context=context) as answer:
        return str(answer.read().decode())


async def asked(port: int, path: str, body: bytes | None = None) -> int:
    """The status of an answer; tried until the replica listens."""
    while True:
        try:
            await asyncio.to_thread(read, port, path, body)
            return 200
        except urllib.error.HTTPError as error:
            error.close()
            return int(error.code)
        except urllib.error.URLError:
            await asyncio.sleep(0.02)


@pytest.fixture
def ask() -> Callable[..., Awaitable[int]]:
    return asked


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """An API server with nothing of ours on it."""
    made = World(await ApiServer.start(tmp_path / "pki"), tmp_path)
    try:
        yield made
    finally:
        await made.close()


def pod(name: str = "p", *, annotations: dict[str, str] | None = None, **limits: Any) -> dict[str, Any]:
    """A pod of one container; `limits` by the last part of the resource's name, as vcuda_core=30."""
    full = {"gpu": names.GPU_RESOURCE, "vcuda_core": names.VCUDA_CORE, "vcuda_memory": names.VCUDA_MEMORY}
    full["alpha"] = names.ALPHA_GPU
    asked = {full[key]: str(value) for key, value in limits.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": asked}}]},
    }


@pytest.fixture
def make_pod() -> Callable[..., dict[str, Any]]:
    return pod
