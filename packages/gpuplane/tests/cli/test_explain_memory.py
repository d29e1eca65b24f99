"""Memory of the operator's process that reads a cluster for an explanation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from gpuplane.explain.reading import decode_pod, listed

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "n", "labels": {"a": "b"}, "managedFields": [{"manager": "kubelet"}]},
    "spec": {
        "nodeName": "n1",
        "containers": [{"name": "c", "env": [{"name": "E"}], "command": ["x"], "resources": {"limits": {"cpu": "1"}}}],
        "initContainers": [{"name": "i", "restartPolicy": "Always", "volumeMounts": [{"name": "v"}]}],
    },
    "status": {"phase": "Running"},
}
NODE = {"metadata": {"name": "n1"}, "status": {"images": [{"names": ["i"]}], "allocatable": {"cpu": "4"}}}


class Pages:
    """An API server with one object on each of two pages."""

    async def request(self, method: str, path: str, params: Mapping[str, str]) -> bytes:
        if "continue" in params:
            return msgspec.json.encode({"metadata": {}, "items": [NODE]})
        return msgspec.json.encode({"metadata": {"continue": "next"}, "items": [POD]})


async def test_what_no_explanation_reads_is_not_kept() -> None:
    client: Any = Pages()
    pod, node = await listed(client, "/api/v1/any")
    assert pod == {
        "metadata": {"name": "p", "namespace": "n", "labels": {"a": "b"}},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}],
            "initContainers": [{"name": "i", "restartPolicy": "Always"}],
        },
        "status": {"phase": "Running"},
    }
    assert node == {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "4"}}}


def test_of_a_bound_pod_only_what_it_takes_up_is_read() -> None:
    spec = {**POD["spec"], "volumes": [{"name": "v"}], "serviceAccountName": "a"}
    stored = {**POD, "spec": spec, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
    item = msgspec.Raw(msgspec.json.encode(stored))
    limits = {"name": "c", "resources": {"limits": {"cpu": "1"}}}
    assert decode_pod(item) == {
        "metadata": {"name": "p", "namespace": "n", "labels": {"a": "b"}},
        "spec": {
            "nodeName": "n1",
            "containers": [limits],
            "initContainers": [{"name": "i", "restartPolicy": "Always"}],
        },
        "status": {"phase": "Running"},
    }
    own = decode_pod(item, whole="n")
    assert own["spec"]["volumes"] == [{"name": "v"}] and own["status"]["podIP"] == "10.0.0.1"
    waiting = {**stored, "spec": {**spec, "nodeName": ""}}
    assert decode_pod(msgspec.Raw(msgspec.json.encode(waiting)))["spec"]["serviceAccountName"] == "a"
    strange = {**stored, "spec": {"nodeName": "n1", "containers": None}}
    assert decode_pod(msgspec.Raw(msgspec.json.encode(strange)))["spec"]["containers"] is None


def test_a_cluster_that_is_too_large_ends_the_process_and_not_the_machine() -> None:
    code = """
from gpuplane.explain import serve

async def _large(*_):
    return bytearray(2 << 30)

serve.MEMORY_BYTES = 1 << 30
serve._answer = _large
serve.main([])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        input='{"namespace": "n", "pods": []}',
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "the objects of the cluster need more than 1 GiB of memory\n")
