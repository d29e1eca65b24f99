"""kubectl and what runs: controllers, scheduler and a kubelet answer."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest


@pytest.fixture(scope="module")
def runs(cluster):
    """For what has to run on the played node."""
    if cluster.kind == "foreign":
        pytest.skip("other nodes could take its pods")


@pytest.fixture(scope="module")
def web(kubectl_of_file, runs):
    kubectl_of_file("create", "deployment", "web", "--image=nginx", "--replicas=2")
    kubectl_of_file("rollout", "status", "deployment/web", "--timeout=20s")
    return "web"


@pytest.fixture(scope="module")
def shell(kubectl_of_file, runs):
    kubectl_of_file("run", "shell", "--image=busybox", "--restart=Never")
    kubectl_of_file("wait", "--for=condition=Ready", "pod/shell", "--timeout=20s")
    return "shell"


def test_a_deployment_rolls_out_scales_and_restarts(kubectl, web):
    assert "web    2/2     2            2" in kubectl("get", "deploy", web)
    kubectl("scale", "deployment", web, "--replicas=3")
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    kubectl("set", "image", "deployment/web", "nginx=nginx:2")
    kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    assert "REVISION" in kubectl("rollout", "history", "deployment/web")
    kubectl("rollout", "undo", "deployment/web")
    kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    images = kubectl("get", "deploy", web, "-o", "jsonpath={.spec.template.spec.containers[*].image}")
    assert images == "nginx"
    assert "NewReplicaSet" in kubectl("describe", "deployment", web)


def test_delete_with_each_propagation(kubectl, runs):
    for name, how in (("fore", "foreground"), ("orphan", "orphan")):
        kubectl("create", "deployment", name, "--image=nginx")
        kubectl("rollout", "status", f"deployment/{name}", "--timeout=20s")
        kubectl("delete", "deployment", name, f"--cascade={how}", "--timeout=20s")
    assert kubectl("get", "rs,pods", "-l", "app=fore", "-o", "name") == ""
    left = kubectl("get", "rs", "-l", "app=orphan", "-o", "name")
    assert left.startswith("replicaset.apps/orphan-")
    kubectl("delete", "rs", "-l", "app=orphan", "--timeout=20s")


def test_a_job_completes(kubectl, runs):
    kubectl("create", "job", "once", "--image=done", "--", "true")
    kubectl("wait", "--for=condition=Complete", "job/once", "--timeout=20s")
    assert "1/1" in kubectl("get", "job", "once")


def test_logs(kubectl, kubelet, shell):
    assert kubectl("logs", shell) == "first line\nsecond line\n"
    assert kubectl("logs", "-f", shell, "--tail=1") == "second line\n"
    assert "2026-01-01T00:00:00" in kubectl("logs", shell, "--timestamps")
    assert "container nosuch is not valid for pod shell" in kubectl.refused("logs", shell, "-c", "nosuch")


def test_exec_carries_streams_and_the_exit_code(kubectl, kubelet, shell):
    assert kubectl("exec", shell, "--", "echo", "hello there") == "hello there\n"
    assert kubectl("exec", "-i", shell, "--", "cat", stdin="through\n") == "through\n"
    done = kubectl.run("exec", shell, "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert "err" in done.stderr and "exit code 3" in done.stderr


def test_exec_over_spdy(kubectl, kubelet, shell, monkeypatch):
    monkeypatch.setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
    assert kubectl("exec", "-i", shell, "--", "cat", stdin="through spdy\n") == "through spdy\n"
    assert kubectl.run("exec", shell, "--", "sh", "-c", "exit 4").returncode == 4


@pytest.mark.parametrize("websockets", ["true", "false"])
def test_port_forward(kubectl, kubelet, shell, monkeypatch, websockets):
    monkeypatch.setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets)
    with socket.create_server(("127.0.0.1", 0)) as behind:
        forwarding = kubectl.popen("port-forward", "pod/shell", f":{behind.getsockname()[1]}", "--address=127.0.0.1")
        try:
            line = next(line for line in forwarding.stdout if "Forwarding from" in line)
            port = int(line.split("127.0.0.1:")[1].split()[0])
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(b"ping")
                behind.settimeout(10)
                accepted, _ = behind.accept()
                with accepted:
                    assert accepted.recv(4) == b"ping"
                    accepted.sendall(b"pong")
                    assert client.recv(4) == b"pong"
        finally:
            forwarding.terminate()
            forwarding.wait(10)
            forwarding.stdout.close()


def test_cordon_drain_uncordon(kubectl, node, web, shell):
    kubectl("cordon", node)
    assert "Ready,SchedulingDisabled" in kubectl("get", "nodes")
    kubectl("drain", node, "--force", "--ignore-daemonsets", "--timeout=30s")
    phases = kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.phase}")
    assert set(phases.split()) == {"Pending"}
    assert "FailedScheduling" in kubectl("get", "events")
    kubectl("uncordon", node)
    kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    assert "Allocatable" in kubectl("describe", "node", node)


def test_a_namespace_goes_with_what_is_in_it(kubectl):
    brief = f"{kubectl.namespace}-brief"
    kubectl("create", "namespace", brief)
    kubectl("create", "configmap", "x", "-n", brief)
    kubectl("delete", "namespace", brief, "--timeout=20s")
    assert "not found" in kubectl.refused("create", "configmap", "y", "-n", brief)


@pytest.fixture
def hanging_up(api, kubectl, kubelet):
    """A pod on a node whose kubelet says yes and then nothing more."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = listener.accept()
                with accepted:
                    request = accepted.recv(65536)
                    log = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nhe"
                    exec_ = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
                    accepted.sendall(log if b"containerLogs" in request else exec_)

    thread = threading.Thread(target=serve)
    thread.start()
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": listener.getsockname()[1]}},
    }
    pods = f"/api/v1/namespaces/{kubectl.namespace}/pods"
    api.create("/api/v1/nodes", {"metadata": {"name": "gone"}, "status": status})
    spec = {"nodeName": "gone", "containers": [{"name": "c", "image": "i"}]}
    api.create(pods, {"metadata": {"name": "gone"}, "spec": spec})
    yield "gone"
    api.delete(f"{pods}/gone", gracePeriodSeconds=0)
    api.delete("/api/v1/nodes/gone")
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def test_a_kubelet_that_hangs_up_is_told_to_the_client(kubectl, hanging_up):
    assert "the kubelet hung up" in kubectl.refused("exec", hanging_up, "--", "true")
    assert kubectl("logs", "-f", hanging_up) == "hellohe"  # all that came
