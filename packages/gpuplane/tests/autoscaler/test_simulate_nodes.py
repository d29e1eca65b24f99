"""`gpuplane simulate nodes` as its users see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuplane.cli.main import main

PROVISIONER = """
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata:
  name: gpu-shared
spec:
  ttlSecondsAfterEmpty: 300
  labels:
    nvidia.com/device-plugin.config: shared_gpu
  requirements:
    - key: node.kubernetes.io/instance-type
      operator: In
      values: ["g4dn.xlarge", "g4dn.2xlarge", "g4dn.4xlarge", "g4dn.12xlarge"]
    - key: karpenter.sh/capacity-type
      operator: In
      values: ["spot", "on-demand"]
  taints:
    - key: nvidia.com/gpu-shared
      effect: "NoSchedule"
  limits:
    resources:
      cpu: 1000
  provider:
    launchTemplate: "karpenter-gpu-shared-demo"
  ttlSecondsAfterEmpty: 30
"""
CONFIG = """version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 10
"""
VALUES = "config:\n  map:\n    default: |-\n      version: v1\n    shared_gpu: |-\n" + "".join(
    f"      {line}\n" for line in CONFIG.splitlines()
)
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: test, namespace: ml}
spec:
  replicas: 10
  template:
    metadata: {labels: {app: test}}
    spec:
      tolerations: [{key: nvidia.com/gpu-shared, operator: Exists}]
      nodeSelector: {karpenter.sh/provisioner-name: gpu-shared}
      containers:
      - name: main
        resources: {limits: {nvidia.com/gpu: 1}}
"""
NODE_POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: shares}
spec:
  template:
    metadata: {labels: {nvidia-device-enable: enable}}
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: gpu}
      requirements: [{key: kubernetes.io/arch, operator: In, values: [amd64]}]
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: gpu}
spec: {kubelet: {maxPods: 7}}
status: {subnets: [{id: s-1, zone: here}]}
"""
CSV = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(
    f"p-{at},100,128,1,{(125, 250)[at % 2]},\n" for at in range(5)
)


class Files:
    """Files of one question, and the command about them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys
        self._flags: list[str] = []
        self.err = ""

    def add(self, flag: str, name: str, text: str) -> Files:
        path = self._folder / name
        path.write_text(text)
        if flag in self._flags:
            self._flags.insert(self._flags.index(flag) + 1, str(path))
        else:
            self._flags += [flag, str(path)]
        return self

    def run(self, *more: str, code: int = 0) -> str:
        assert main(["simulate", "nodes", *self._flags, *more]) == code
        found = self._capsys.readouterr()
        self.err = found.err
        return found.out

    def json(self, *more: str) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.run("-o", "json", *more))
        return data


@pytest.fixture
def files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Files:
    return Files(tmp_path, capsys)


def printed(files: Files) -> Files:
    files.add("--pools", "values.yaml", VALUES).add("--pools", "pool.yaml", PROVISIONER)
    return files.add("--pods", "pods.yaml", DEPLOYMENT)


def test_the_printed_example(files: Files) -> None:
    out = printed(files).run()
    assert "nodes    10 pods   1 node pool   prices of 2026-07-20, us-east-1, on-demand" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "1 × g4dn.xlarge gpu-shared 0.526 0.53 10" in lines
    assert "total 0.53 $/h 1 node" in lines
    assert "Karpenter 11.74 $/h 3 nodes: 3 × g4dn.12xlarge" in lines
    assert "saved 11.21 $/h 96%" in lines


def test_an_option_that_is_given_twice_adds_its_files(files: Files, tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text(DEPLOYMENT.replace("name: test,", "name: more,"))
    nodes = printed(files).json("--pods", str(more))["nodes"]
    assert sum(len(node["pods"]) for node in nodes) == 20


def test_the_field_that_stands_twice_is_reported_and_the_last_one_counts(files: Files) -> None:
    printed(files).run()
    assert "pool.yaml:25  spec.ttlSecondsAfterEmpty stands in line 7 already; the last one counts" in files.err


def test_json_has_each_node_with_its_pods(files: Files) -> None:
    data = printed(files).json()
    assert data["kind"] == "NodePurchase" and data["dollars_per_hour"] == 0.526 and data["waiting"] == {}
    (node,) = data["nodes"]
    assert node["pods"] == [f"ml/test-{number}" for number in range(10)]
    assert (node["type"], node["pool"], node["zone"]) == ("g4dn.xlarge", "gpu-shared", "us-east-1a")
    assert data["karpenter"]["dollars_per_hour"] == 11.736
    assert len(data["karpenter"]["nodes"]) == 3


def test_a_cluster_policy_chooses_the_configuration_of_its_configmap(files: Files) -> None:
    policy = """
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: {name: cluster-policy}
spec: {devicePlugin: {config: {name: plugin, default: shared}}}
"""
    config = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: plugin}}\ndata: {{shared: {json.dumps(CONFIG)}}}\n"
    pool = PROVISIONER.replace("    nvidia.com/device-plugin.config: shared_gpu\n", "    team: red\n")
    files.add("--pools", "pool.yaml", pool).add("--pools", "policy.yaml", policy).add("--pods", "pods.yaml", DEPLOYMENT)
    assert "names the ConfigMap plugin, which is not among the files" in (files.run(code=1) or files.err)
    assert files.add("--pools", "config.yaml", config).json()["dollars_per_hour"] == 0.526


def test_a_trace_asks_for_shares_on_nodes_of_the_pools_class(files: Files) -> None:
    files.add("--pools", "pool.yaml", NODE_POOL).add("--pods", "pods.csv", CSV)
    (node,) = files.json()["nodes"]
    assert (node["type"], node["zone"], len(node["pods"])) == ("g4dn.xlarge", "here", 5)


def test_daemons_take_room_and_bound_pods_do_not_wait(files: Files) -> None:
    daemon = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: kube-system}
spec: {template: {spec: {containers: [{name: main, resources: {requests: {cpu: 3900m}}}]}}}
"""
    bound = "kind: Pod\napiVersion: v1\nmetadata: {name: bound}\nspec: {nodeName: n, containers: [{name: main}]}\n"
    files.add("--pools", "pool.yaml", NODE_POOL).add("--pools", "daemon.yaml", daemon)
    files.add("--pods", "bound.yaml", bound).add("--pods", "pods.csv", CSV)
    data = files.json()
    assert len(data["nodes"]) == 1 and data["nodes"][0]["type"] == "g4dn.2xlarge"
    assert len(data["nodes"][0]["pods"]) == 5


def test_types_of_a_file_replace_the_built_in_ones(files: Files) -> None:
    head = "type,vcpu,memory_mib,max_pods,on_demand,spot,gpus,gpu,gpu_memory_mib"
    types = f"{head}\nmine,4,16384,20,2.5,1.25,1,Tesla T4,15360\n"
    files.add("--pools", "pool.yaml", NODE_POOL).add("--pods", "pods.csv", CSV).add("--types", "types.csv", types)
    out = files.run()
    assert "1 × mine spot" in out and "prices of types.csv" in out and "1.25" in out


@pytest.mark.parametrize(
    "types, message",
    [
        ("type,vcpu\nx,1\n", "has no column memory_mib, max_pods, on_demand"),
        ("type,vcpu,memory_mib,max_pods,on_demand\nx,1,1,1,cheap\n", "on_demand is 'cheap', which is no price above 0"),
        ("type,vcpu,memory_mib,max_pods,on_demand\nx,1,1,1,nan\n", "which is no price above 0"),
        ("type,vcpu,memory_mib,max_pods,on_demand\nx,1,1,1,1\nx,1,1,1,1\n", "type x is listed already"),
        ("type,vcpu,memory_mib,max_pods,on_demand,gpus\nx,1,1,1,1,1\n", "has no name"),
        ("type,vcpu,memory_mib,max_pods,on_demand\nx,-1,1,1,1\n", "vcpu is '-1'"),
    ],
)
def test_a_wrong_file_of_types_is_refused_with_its_place(files: Files, types: str, message: str) -> None:
    files.add("--pools", "pool.yaml", NODE_POOL).add("--pods", "pods.csv", CSV).add("--types", "types.csv", types)
    files.run(code=1)
    assert message in files.err and "types.csv:" in files.err


def test_pods_without_a_node_are_listed_together_with_their_reason(files: Files) -> None:
    refused = DEPLOYMENT.replace("tolerations: [{key: nvidia.com/gpu-shared, operator: Exists}]", "tolerations: []")
    out = (
        files.add("--pools", "pool.yaml", PROVISIONER)
        .add("--pools", "values.yaml", VALUES)
        .add("--pods", "pods.yaml", refused)
        .run()
    )
    assert "10 pods without a node" in out
    assert "ml/test-0 and 9 pods more" in out
    assert "gpu-shared: the pod does not tolerate the taint nvidia.com/gpu-shared:NoSchedule" in out
    assert "saved" not in out


def test_preferences_that_no_bought_node_keeps_are_listed(files: Files) -> None:
    wanted = "{weight: 1, preference: {matchExpressions: [{key: team, operator: In, values: [red]}]}}"
    affinity = f"affinity: {{nodeAffinity: {{preferredDuringSchedulingIgnoredDuringExecution: [{wanted}]}}}}"
    preferring = DEPLOYMENT.replace("tolerations:", f"{affinity}\n      tolerations:")
    files.add("--pools", "pool.yaml", PROVISIONER).add("--pools", "values.yaml", VALUES)
    out = files.add("--pods", "pods.yaml", preferring).run()
    assert "! 10 pods without something that they prefer" in out
    assert "ml/test-0 and 9 pods more" in out and "node affinity: team In red" in out
    assert files.json()["given_up"]["ml/test-3"] == ["node affinity: team In red"]


@pytest.mark.parametrize(
    "pools, pods, message",
    [
        (DEPLOYMENT, DEPLOYMENT, "no file has a node pool"),
        (PROVISIONER, "kind: Service\napiVersion: v1\n", "no file has a pod that waits"),
        (PROVISIONER.replace("provider:", "other:"), DEPLOYMENT, "exactly one of provider and providerRef"),
        (PROVISIONER, DEPLOYMENT.replace("replicas: 10", "replicas: -1"), "-1 is no number of pods"),
        (PROVISIONER, DEPLOYMENT.replace("containers:", "container:"), "has no pod with containers"),
        (PROVISIONER, DEPLOYMENT.replace("replicas: 10", "replicas: 1000000"), "more than 100,000 pods"),
        (PROVISIONER + "---" + PROVISIONER, DEPLOYMENT, "two pools of this name"),
        ("a: [", DEPLOYMENT, "while parsing"),
    ],
)
def test_a_wrong_question_is_refused(files: Files, pools: str, pods: str, message: str) -> None:
    files.add("--pools", "pools.yaml", pools).add("--pods", "pods.yaml", pods).run(code=1)
    assert message in files.err


def test_objects_that_say_nothing_here_are_named(files: Files) -> None:
    printed(files).add("--pods", "more.yaml", "kind: Service\napiVersion: v1\nmetadata: {name: x}\n").run()
    assert "not part of the question: Service" in files.err


@pytest.mark.parametrize(
    "workload, pods",
    [
        ("kind: Job\nspec: {parallelism: 4, completions: 3, template: %s}", 3),
        ("kind: CronJob\nspec: {jobTemplate: {spec: {parallelism: 2, template: %s}}}", 2),
        ("kind: StatefulSet\nspec: {replicas: 2, template: %s}", 2),
        ("kind: List\nitems: [{kind: ReplicaSet, metadata: {name: a}, spec: {template: %s}}]", 1),
    ],
)
def test_workloads_of_every_kind_are_counted(files: Files, workload: str, pods: int) -> None:
    template = "{spec: {containers: [{name: main, resources: {limits: {tencent.com/vcuda-core: 10}}}]}}"
    manifest = f"metadata: {{name: w}}\n{workload % template}\n"
    files.add("--pools", "pool.yaml", NODE_POOL).add("--pods", "w.yaml", manifest)
    assert sum(len(node["pods"]) for node in files.json()["nodes"]) == pods


POD = "kind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: a}], tolerations: [{operator: Exists}], %s}\n"
TERM = "nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: Gt, values: [%s]}]}]"
NODE_AFFINITY = "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {%s}}}"
WRONG_PODS = {
    "kind: Pod\nmetadata: []\nspec: {containers: [{name: a}]}\n": ("metadata is list instead of fields", "Pod/"),
    "kind: Pod\nmetadata: {name: x}\nspec: {containers: all}\n": ("at `$.spec.containers`", "Pod/x"),
    "kind: Pod\nmetadata: {name: x}\nspec: {containers: [a]}\n": ("at `$.spec.containers[0]`", "Pod/x"),
    POD % "nodeSelector: [a]": ("at `$.spec.nodeSelector`", "Pod/x"),
    "kind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: a, resources: {requests: {cpu: lots}}}]}\n": (
        "'lots' is not a quantity",
        "Pod/x",
    ),
    "kind: Deployment\nmetadata: {name: x}\nspec: []\n": ("spec is list instead of fields", "Deployment/x"),
    "kind: Deployment\nmetadata: {name: x}\nspec: {replicas: 2, template: {spec: {containers: 3}}}\n": (
        "at `$.spec.containers`",
        "Deployment/x",
    ),
    "kind: CronJob\nmetadata: {name: x}\nspec: {jobTemplate: 3}\n": ("jobTemplate is int instead", "CronJob/x"),
    "kind: ConfigMap\nmetadata: {name: x}\ndata: all\n": ("data is str instead of fields", "ConfigMap/x"),
    "kind: List\nitems: all\n": ("items is no list", "List"),
    "- a\n": ("document 1 is no object of Kubernetes", "pods.yaml"),
    "kind: [a\n": ("is no YAML", "pods.yaml:2:1"),
}


@pytest.mark.parametrize("pods", WRONG_PODS)
def test_a_file_that_cannot_be_read_is_one_error_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pods: str
) -> None:
    (tmp_path / "pools.yaml").write_text(PROVISIONER)
    (tmp_path / "pods.yaml").write_text(pods)
    files = ["--pools", str(tmp_path / "pools.yaml"), "--pods", str(tmp_path / "pods.yaml")]
    assert main(["simulate", "nodes", *files]) == 1
    printed = capsys.readouterr()
    what, where = WRONG_PODS[pods]
    lines = [line.strip() for line in printed.err.splitlines()]
    assert printed.out == "" and sum(line.startswith("✗") for line in lines) == 1
    [at] = [number for number, line in enumerate(lines) if line.startswith("✗")]
    assert what in lines[at] and lines[at + 1].startswith("where") and lines[at + 1].endswith(where)
    assert lines[at + 2].startswith("cure ")


@pytest.mark.parametrize("values", ["fast", "", "1, 2"])
def test_a_comparison_with_no_number_admits_no_node_as_kube_scheduler_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: str
) -> None:
    (tmp_path / "pools.yaml").write_text(PROVISIONER)
    (tmp_path / "values.yaml").write_text(VALUES)
    (tmp_path / "pods.yaml").write_text(POD % (NODE_AFFINITY % (TERM % values)))
    files = [
        "--pools",
        str(tmp_path / "pools.yaml"),
        str(tmp_path / "values.yaml"),
        "--pods",
        str(tmp_path / "pods.yaml"),
    ]
    assert main(["simulate", "nodes", *files]) == 0
    assert "the pod wants a value that no node can have" in capsys.readouterr().out.replace("\n", " ")


def test_zones_and_types_without_a_meaning_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pools.yaml").write_text(PROVISIONER)
    (tmp_path / "pods.yaml").write_text(DEPLOYMENT)
    (tmp_path / "types.csv").write_text("type,vcpu,memory_mib,max_pods,on_demand\nx,0,1,1,1\n")
    files = ["--pools", str(tmp_path / "pools.yaml"), "--pods", str(tmp_path / "pods.yaml")]
    assert main(["simulate", "nodes", *files, "--zones", "a, "]) == 1
    assert "'a, ' has an empty name" in capsys.readouterr().err
    assert main(["simulate", "nodes", *files, "--types", str(tmp_path / "types.csv")]) == 1
    assert "vcpu is 0" in capsys.readouterr().err


OVERLAY = """
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: NAME}
spec:
  requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [g4dn.xlarge]}]
  price: "PRICE"
---
"""


def overlays(*pairs: tuple[str, str]) -> str:
    return "".join(OVERLAY.replace("NAME", name).replace("PRICE", price) for name, price in pairs)


def test_overlays_of_the_files_change_prices(files: Files) -> None:
    found = printed(files).add("--pools", "overlays.yaml", overlays(("dear", "5.0"))).json()
    assert [(node["type"], node["dollars_per_hour"]) for node in found["nodes"]] == [("g4dn.2xlarge", 0.752)]
    assert found["prices"].endswith("on-demand, with NodeOverlays")


def test_an_overlay_in_conflict_is_named_and_not_applied(files: Files) -> None:
    out = printed(files).add("--pools", "overlays.yaml", overlays(("a", "9"), ("b", "0.25"))).run()
    assert "the NodeOverlay a is not applied: conflict with the overlay b, which sets the price of g4dn" in files.err
    assert "total 0.25 $/h 1 node" in [" ".join(line.split()) for line in out.splitlines()]


def test_an_overlay_that_breaks_a_rule_is_refused_with_the_rule(files: Files) -> None:
    printed(files).add("--pools", "overlays.yaml", overlays(("a", "-1"))).run(code=1)
    assert "NodeOverlay/a" in files.err and "spec.price: '-1' is no price such as 0.5" in files.err
