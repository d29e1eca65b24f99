"""Pods from the API server to processes and back, on one node."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from gpulab.images import IMAGES
from kubekit.errors import Terminal
from tests.support.until import until
from tinykube.kubelet.containers import Isolation
from tinykube.kubelet.containers.launcher import find_mode
from tinykube.kubelet.podcontainers import lacks_library

SLEEP = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


def shell(script: str, **more: Any) -> dict[str, Any]:
    return {"name": "c", "image": "busybox:1.36", "command": ["sh", "-c", script], **more}


async def test_a_pod_runs_to_its_end_and_its_output_is_kept(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.create_pod(restartPolicy="Never", containers=[shell("echo hello; echo wrong >&2; exit 3")])
    status = await api.phase("Failed")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == 3
    assert ended["reason"] == "Error"
    assert node.log() == "hello\nwrong\n"
    assert {"Pulled", "Created", "Started"} <= api.reasons() or await api.until(lambda: "Started" in api.reasons())


async def test_a_running_pod_is_ready_and_costs_one_write(api: Any, make_node: Any) -> None:
    await make_node()
    writes: list[str] = []
    api.registry.subscribe("pods", lambda kind, obj, old: writes.append(kind))
    await api.create_pod(containers=[shell(SLEEP)])
    status = await api.phase("Running")
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert conditions["Ready"] == conditions["Initialized"] == conditions["ContainersReady"] == "True"
    assert not any(c.get("reason") for c in status["conditions"])
    assert writes == ["ADDED", "MODIFIED"]
    assert status["podIP"].startswith("127.")


@pytest.mark.skipif(
    find_mode().isolation is Isolation.NONE, reason="needs mount namespaces, which the kernel refuses here"
)
async def test_variables_arguments_and_volumes(api: Any, make_node: Any) -> None:
    node = await make_node()
    registry = api.registry
    await registry.create("configmaps", "default", {"metadata": {"name": "cfg"}, "data": {"a": "from-map", "b": "2"}})
    secret = base64.b64encode(b"hidden").decode()
    await registry.create("secrets", "default", {"metadata": {"name": "sec"}, "data": {"pw": secret}})
    (node.root / "opt/data").mkdir()
    (node.root / "opt/data/file").write_text("of the node\n")
    container = {
        "name": "c",
        "image": "ubuntu",
        "command": ["sh", "-c"],
        "args": [
            "echo $(WHO) $PW $CM_a '$$(WHO)'; cat /cfg/renamed /pod/labels /sub /data/file; echo; "
            "ls /var/run/secrets/kubernetes.io/serviceaccount; echo made > /data/made; echo gone > /job/x; cat /job/x"
        ],
        "env": [
            {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "PW", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "pw"}}},
        ],
        "envFrom": [{"prefix": "CM_", "configMapRef": {"name": "cfg"}}],
        "volumeMounts": [
            {"name": "cfg", "mountPath": "/cfg"},
            {"name": "all", "mountPath": "/sub", "subPath": "b"},
            {"name": "down", "mountPath": "/pod"},
            {"name": "host", "mountPath": "/data"},
            {"name": "work", "mountPath": "/job"},
        ],
    }
    volumes = [
        {"name": "cfg", "configMap": {"name": "cfg", "items": [{"key": "a", "path": "renamed"}]}},
        {"name": "all", "configMap": {"name": "cfg"}},
        {"name": "down", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "host", "hostPath": {"path": "/opt/data", "type": "Directory"}},
        {"name": "work", "emptyDir": {}},
    ]
    await api.create_pod(restartPolicy="Never", containers=[container], volumes=volumes)
    await api.phase("Succeeded")
    assert node.log() == 'one hidden from-map $(WHO)\nfrom-mapapp="x"2of the node\n\nca.crt\nnamespace\ntoken\ngone\n'
    assert (node.root / "opt/data/made").read_text() == "made\n"


async def test_init_containers_and_sidecars_come_first_and_sidecars_last(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.create_pod(
        restartPolicy="Never",
        initContainers=[
            shell("echo one > /job/order") | {"name": "first", "volumeMounts": [{"name": "w", "mountPath": "/job"}]},
            shell("echo two >> /job/order; " + SLEEP)
            | {
                "name": "side",
                "restartPolicy": "Always",
                "volumeMounts": [{"name": "w", "mountPath": "/job"}],
                "startupProbe": {"exec": {"command": ["grep", "two", "/job/order"]}, "periodSeconds": 1},
            },
        ],
        containers=[shell("cat /job/order") | {"volumeMounts": [{"name": "w", "mountPath": "/job"}]}],
        volumes=[{"name": "w", "emptyDir": {}}],
    )
    status = await api.phase("Succeeded")
    assert node.log() == "one\ntwo\n"
    assert {s["name"]: "terminated" in s["state"] for s in status["initContainerStatuses"]} == {
        "first": True,
        "side": True,
    }


async def test_a_crashing_container_backs_off(api: Any, make_node: Any, clock: Any) -> None:
    await make_node(clock=clock)
    await api.create_pod(containers=[shell("echo try; exit 1", terminationMessagePolicy="FallbackToLogsOnError")])
    waiting = await api.until(
        lambda: api.container()["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff" and api.container()
    )
    assert waiting["restartCount"] == 1  # the first restart is immediate
    assert waiting["lastState"]["terminated"]["message"] == "try\n"
    clock.jump(11)
    await api.until(lambda: api.container()["restartCount"] == 2)
    await api.until(lambda: "waiting" in api.container()["state"])
    clock.jump(11)  # the next pause is 20 seconds
    clock.jump(10)
    await api.until(lambda: api.container()["restartCount"] == 3)


async def test_an_unknown_image_waits_with_the_reason(api: Any, make_node: Any) -> None:
    await make_node()
    await api.create_pod(containers=[{"name": "c", "image": "example.com/nothing:1"}])
    waiting = await api.until(lambda: api.container()["state"].get("waiting"))
    assert waiting["reason"] in ("ErrImagePull", "ImagePullBackOff")
    assert "example.com/nothing:1" in waiting["message"]


async def test_a_missing_program_is_a_start_error(api: Any, make_node: Any) -> None:
    await make_node()
    await api.create_pod(restartPolicy="Never", containers=[{"name": "c", "image": "busybox", "command": ["no-such"]}])
    status = await api.phase("Failed")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert ended["reason"] == "StartError"
    assert 'exec: "no-such"' in ended["message"]


async def test_a_container_whose_program_is_not_here_says_which_image_lacks_it_and_how_to_map_it(
    api: Any, make_node: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: IMAGES.map({}))
    node = await make_node()
    image = "vllm/vllm-openai:v0.9"
    await api.create_pod("before", restartPolicy="Never", containers=[{"name": "c", "image": image}])
    ended = (await api.phase("Failed", "before"))["containerStatuses"][0]["state"]["terminated"]
    cure = "gpuplane up --image 'vllm/vllm-openai:v0.9=DIR'"
    assert ended["reason"] == "StartError"
    for text in (f'image "{image}" has no files here', 'no "vllm" for it', cure):
        assert text in ended["message"]
    [event] = await api.until(
        lambda: [e for e in api.registry.list("events", "default") if e["reason"] == "Failed"], "the event"
    )
    assert event["type"] == "Warning" and event["message"].endswith(cure)

    program = tmp_path / "venv" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho started $1\n")
    program.chmod(0o755)
    IMAGES.map({"vllm/*": str(tmp_path / "venv")})
    await api.create_pod("after", restartPolicy="Never", containers=[{"name": "c", "image": image}])
    await api.phase("Succeeded", "after")
    assert node.log("after").endswith("started serve\n")


async def test_a_container_that_fails_without_the_libraries_of_its_image_says_so(api: Any, make_node: Any) -> None:
    await make_node()
    image = "tensorflow/tensorflow:latest-gpu"
    imports = {"name": "c", "image": image, "command": ["python"], "args": ["-u", "-c", "import tensorflow"]}
    await api.create_pod(restartPolicy="Never", containers=[imports])
    await api.phase("Failed")
    await api.until(lambda: "StandIn" in api.reasons())
    [event] = [e for e in api.registry.list("events", "default") if e["reason"] == "StandIn"]
    assert event["type"] == "Warning"
    assert event["message"].startswith("Container c ended with 1 on programs of this machine's Python: image ")
    assert event["message"].endswith(f"gpuplane up --image '{image}=DIR'")


@pytest.mark.parametrize(
    ("code", "log_end", "lacks"),
    [
        (1, "ModuleNotFoundError: No module named 'tensorflow'\n", True),
        (1, "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory\n", True),
        (127, "sh: 1: vllm: not found\n", True),
        (0, "warning: ImportError was caught\n", False),
        (1, "ZeroDivisionError: division by zero\n", False),
        (137, "", False),
    ],
)
def test_the_image_is_blamed_only_for_what_it_lacks(code: int, log_end: str, lacks: bool) -> None:
    assert lacks_library(code, log_end) is lacks


async def test_a_container_that_only_waits_says_so(api: Any, make_node: Any) -> None:
    await make_node()
    await api.create_pod(containers=[{"name": "c", "image": "nginx:1.27"}, shell("sleep 60") | {"name": "d"}])
    await api.phase("Running")
    await api.until(lambda: "StandIn" in api.reasons())
    [event] = [e for e in api.registry.list("events", "default") if e["reason"] == "StandIn"]
    assert event["type"] == "Normal"
    assert event["message"].startswith('Container c serves nothing: image "nginx:1.27" has no files here')


async def test_an_image_has_its_directories_and_variables(api: Any, make_node: Any, tmp_path: Path) -> None:
    node = await make_node()
    script = 'cd "$HOME" && pwd && touch made && ls'
    image = "tensorflow/tensorflow:latest-gpu-jupyter"
    await api.create_pod(
        restartPolicy="Never", containers=[{"name": "c", "image": image, "command": ["sh", "-c", script]}]
    )
    await api.phase("Succeeded")
    lines = node.log().splitlines()
    assert [line.rpartition(" ")[2].rpartition("/")[2] for line in lines] == ["tf", "made"]
    assert not Path("/tf").exists()


async def test_a_directory_puts_files_where_its_image_has_them(
    api: Any, make_node: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: IMAGES.map({}))
    node = await make_node()
    program = tmp_path / "app" / "bin" / "app"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho $0 $1\n")
    program.chmod(0o755)
    (tmp_path / "app" / "image.toml").write_text('entrypoint = ["/app"]\nfiles."/app" = "bin/app"\n')
    IMAGES.map({"example.com/app:*": str(tmp_path / "app")})
    await api.create_pod(restartPolicy="Never", containers=[{"name": "c", "image": "example.com/app:1", "args": ["x"]}])
    await api.phase("Succeeded")
    assert node.log().endswith("/app x\n")
    assert not Path("/app").exists()


LISTEN = """
import concurrent.futures, socket, sys, time
four = socket.create_server(("", int(sys.argv[1])))
with concurrent.futures.ThreadPoolExecutor(1) as thread:
    address = ("::", int(sys.argv[2]))
    six = thread.submit(socket.create_server, address, family=socket.AF_INET6, dualstack_ipv6=True).result()
chosen = socket.create_server(("", 0))
named = socket.create_server(("127.0.0.1", 0))
print(*(each.getsockname()[0] for each in (four, six, chosen, named)), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def own_address(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Return an image of Python whose servers and clients use the address of their pod."""
    request.addfinalizer(lambda: IMAGES.map({}))
    (tmp_path / "app" / "bin").mkdir(parents=True)
    (tmp_path / "app" / "image.toml").write_text('entrypoint = ["{python}"]\nown_address = true\n')
    IMAGES.map({"example.com/app:*": str(tmp_path / "app")})
    return "example.com/app:1"


async def test_servers_of_an_image_listen_on_the_address_of_their_pod(
    api: Any, make_node: Any, own_address: str
) -> None:
    """Two pods of one machine may listen on the same port, since each has its own address."""
    node = await make_node()
    with socket.create_server(("127.0.0.1", 0)) as four, socket.create_server(("127.0.0.1", 0)) as six:
        ports = [str(each.getsockname()[1]) for each in (four, six)]
    args = ["-c", LISTEN, *ports]
    for name in ("one", "two"):
        await api.create_pod(name, containers=[{"name": "c", "image": own_address, "args": args}])
        await api.phase("Running", name)
        await until(lambda name=name: node.log(name).endswith("127.0.0.1\n"), seen=lambda name=name: node.log(name))
        address = api.status(name)["podIP"]
        assert node.log(name).split()[-4:] == [address, f"::ffff:{address}", "0.0.0.0", "127.0.0.1"]


CONNECT = """
import socket, sys
for host, port in (("127.0.0.1", sys.argv[1]), ("127.99.0.5", sys.argv[2])):
    with socket.create_connection((host, int(port))) as connection:
        print(connection.getsockname()[0], flush=True)
"""


async def test_clients_of_an_image_are_seen_at_the_address_of_their_pod(
    api: Any, make_node: Any, own_address: str
) -> None:
    node = await make_node()
    with socket.create_server(("127.0.0.1", 0)) as own, socket.create_server(("127.99.0.5", 0)) as other:
        ports = [str(each.getsockname()[1]) for each in (own, other)]
        args = ["-c", CONNECT, *ports]
        spec = {"name": "c", "image": own_address, "args": args}
        await api.create_pod("one", restartPolicy="Never", containers=[spec])
        await api.phase("Succeeded", "one")
    assert node.log("one").split() == ["127.0.0.1", api.status("one")["podIP"]]


async def test_a_missing_config_map_is_waited_for(api: Any, make_node: Any, clock: Any) -> None:
    await make_node(clock=clock)
    await api.create_pod(
        restartPolicy="Never",
        containers=[shell("cat /cfg/a") | {"volumeMounts": [{"name": "v", "mountPath": "/cfg"}]}],
        volumes=[{"name": "v", "configMap": {"name": "late"}}],
    )
    await api.until(lambda: "FailedMount" in api.reasons())
    await api.registry.create("configmaps", "default", {"metadata": {"name": "late"}, "data": {"a": "x"}})
    while api.status().get("phase") != "Succeeded":
        clock.jump(3)
        await asyncio.sleep(0.01)  # for the watch and the process, which live in real time


async def test_a_mounted_config_map_follows_its_object(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.registry.create("configmaps", "default", {"metadata": {"name": "cfg"}, "data": {"a": "old"}})
    await api.create_pod(
        restartPolicy="Never",
        containers=[
            shell("until grep -q new /cfg/a; do sleep 0.02; done; cat /cfg/a")
            | {"volumeMounts": [{"name": "v", "mountPath": "/cfg"}]}
        ],
        volumes=[{"name": "v", "configMap": {"name": "cfg"}}],
    )
    await api.phase("Running")
    await api.registry.patch("configmaps", "default", "cfg", {"data": {"a": "new"}}, "merge")
    await api.phase("Succeeded")
    assert node.log() == "new\n"


async def test_deletion_asks_first_and_then_kills(api: Any, make_node: Any) -> None:
    node = await make_node()
    polite = shell("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    await api.create_pod("polite", containers=[polite], terminationGracePeriodSeconds=600)
    await api.create_pod("stubborn", containers=[shell("trap '' TERM; while :; do sleep 0.05; done")])
    await api.phase("Running", "stubborn")
    await until(lambda: node.log("polite") == "up\n")  # NB: process 1 does not get a SIGTERM that comes before its trap
    deleted: dict[str, Any] = {}
    api.registry.subscribe(
        "pods", lambda kind, obj, old: deleted.update({obj["metadata"]["name"]: obj}) if kind == "DELETED" else None
    )
    for name in ("polite", "stubborn"):
        await api.registry.delete("pods", "default", name)
    await api.until(lambda: len(deleted) == 2)
    codes = {n: o["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for n, o in deleted.items()}
    assert codes == {"polite": 0, "stubborn": 137}
    assert node.kubelet is not None
    await node.kubelet.idle()
    assert not list((node.directory / "containers").iterdir())
    assert not list((node.root / "var/lib/kubelet/pods").iterdir())


async def test_hooks_run_inside_the_container(api: Any, make_node: Any) -> None:
    node = await make_node()
    container = shell(SLEEP) | {
        "volumeMounts": [{"name": "w", "mountPath": "/job"}],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/job/started"]}, "periodSeconds": 1},
        "lifecycle": {
            "postStart": {"exec": {"command": ["touch", "/job/started"]}},
            "preStop": {"exec": {"command": ["touch", "/job/stopping"]}},
        },
    }
    await api.create_pod(containers=[container], volumes=[{"name": "w", "hostPath": {"path": "/opt"}}])
    await api.until(lambda: api.container().get("ready"))
    await api.registry.delete("pods", "default", "one")
    await api.until(lambda: api.pod() is None)
    assert (node.root / "opt/stopping").exists()


async def test_a_failing_hook_restarts_the_container(api: Any, make_node: Any) -> None:
    await make_node()
    await api.create_pod(containers=[shell(SLEEP) | {"lifecycle": {"postStart": {"exec": {"command": ["false"]}}}}])
    await api.until(lambda: api.container()["restartCount"] >= 1)
    await api.until(lambda: "FailedPostStartHook" in api.reasons())


async def test_liveness_restarts_and_readiness_follows(api: Any, make_node: Any, clock: Any) -> None:
    node = await make_node(clock=clock)
    (node.root / "opt/up").touch()
    container = shell(SLEEP) | {
        "volumeMounts": [{"name": "h", "mountPath": "/opt/h"}],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/opt/h/up"]}, "periodSeconds": 5, "failureThreshold": 1},
        "livenessProbe": {
            "exec": {"command": ["test", "-e", "/opt/h/up"]},
            "initialDelaySeconds": 30,
            "failureThreshold": 1,
        },
    }
    await api.create_pod(containers=[container], volumes=[{"name": "h", "hostPath": {"path": "/opt"}}])
    await api.until(lambda: api.container().get("ready"))
    (node.root / "opt/up").unlink()
    clock.jump(6)
    await api.until(lambda: not api.container().get("ready"))
    assert api.container()["restartCount"] == 0
    clock.jump(30)
    await api.until(lambda: api.container()["restartCount"] == 1)
    await api.until(lambda: "Unhealthy" in api.reasons(), "the event")


async def test_a_killed_kubelet_finds_its_containers_again(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.create_pod(containers=[shell("echo start; " + SLEEP)])
    await api.phase("Running")
    await api.create_pod("first-by-name", containers=[shell(SLEEP)])
    await api.phase("Running", "first-by-name")
    before = api.container()["containerID"]
    addresses = {name: api.status(name)["podIP"] for name in ("one", "first-by-name")}
    await node.stop(leave_containers=True)
    kubelet = await node.start()
    await kubelet.synced()
    worker = next(w for w in kubelet.workers.values() if w.pod.metadata.name == "one")
    record = worker.records["c"]
    assert Path(f"/proc/{record.pid}").exists()
    assert api.container()["containerID"] == before
    os.kill(record.pid, 9)
    await api.until(lambda: api.container()["restartCount"] == 1)
    assert {name: api.status(name)["podIP"] for name in addresses} == addresses
    assert node.log().startswith("start\n")


async def test_stopping_the_kubelet_ends_what_runs(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.create_pod(containers=[shell(SLEEP)])
    await api.phase("Running")
    assert node.kubelet is not None
    record = next(iter(node.kubelet.workers.values())).records["c"]
    await node.stop()
    assert not Path(f"/proc/{record.pid}").exists()


@pytest.mark.parametrize("isolation", [Isolation.NONE])
async def test_without_namespaces_paths_are_rewritten(api: Any, make_node: Any, isolation: Isolation) -> None:
    node = await make_node(isolation=isolation)
    (node.root / "opt/file").write_text("of the node\n")
    await api.create_pod(
        restartPolicy="Never",
        containers=[
            shell(
                "cat /host/opt/file $PLACE; test -e $KUBECONFIG && echo configured; test -d $SIMGPU_DEV && echo devices"
            )
            | {
                "env": [{"name": "PLACE", "value": "/host/opt/file"}],
                "volumeMounts": [{"name": "h", "mountPath": "/host"}],
            }
        ],
        volumes=[{"name": "h", "hostPath": {"path": "/"}}],
    )
    await api.phase("Succeeded")
    assert node.log() == "of the node\nof the node\nconfigured\ndevices\n"


@pytest.mark.parametrize("isolation", [Isolation.USER, Isolation.NONE])
async def test_a_pod_is_told_what_it_does_not_get(api: Any, make_node: Any, isolation: Isolation) -> None:
    try:
        await make_node(isolation=isolation)
    except Terminal as error:
        pytest.skip(f"no {isolation} here: {error.cure}")
    context = {"runAsUser": 65532, "fsGroup": 2000}
    await api.create_pod(
        restartPolicy="Never",
        securityContext=context,
        containers=[shell("echo x > /data/file") | {"volumeMounts": [{"name": "e", "mountPath": "/data"}]}],
        volumes=[{"name": "e", "emptyDir": {}}],
    )
    await api.phase("Succeeded")
    await api.until(lambda: "LessIsolated" in api.reasons(), "the event")
    [text] = [e["message"] for e in api.registry.list("events", "default") if e["reason"] == "LessIsolated"]
    assert "user 65532, group 2000" in text
    assert ("/data" in text) == (isolation is Isolation.NONE)


async def test_logs_and_probes_reach_the_pod_through_its_address(api: Any, make_node: Any) -> None:
    await make_node()
    await api.create_pod(
        containers=[
            {
                "name": "c",
                "image": "python:3.12",
                "command": ["/bin/sh", "-c"],
                "args": ["exec python3 -m http.server 18080 --bind $POD_IP"],
                "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "readinessProbe": {"httpGet": {"port": 18080, "path": "/"}, "periodSeconds": 1},
            }
        ]
    )
    await api.until(lambda: api.container().get("ready"))
