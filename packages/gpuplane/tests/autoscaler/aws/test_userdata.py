"""User data with which a machine joins the cluster."""

from __future__ import annotations

import base64
import email
import email.policy
import shlex
import tomllib

import msgspec
import pytest
import yaml

from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from gpuplane.autoscaler.providers.aws.userdata import JoinParameters, user_data
from kubekit.errors import InvalidInput

SETTINGS = AwsSettings("demo", api_server="https://api", authority="Q0E=", service_network="10.100.0.0/16")
JOIN = JoinParameters(
    labels={"karpenter.sh/nodepool": "gpu", "a": "b"},
    taints=(("nvidia.com/gpu", "", "NoSchedule"), ("karpenter.sh/unregistered", "", "NoExecute")),
    kubelet={
        "maxPods": 20,
        "clusterDNS": ["10.0.0.10"],
        "kubeReserved": {"cpu": "1"},
        "evictionHard": {"memory.available": "5%"},
        "cpuCFSQuota": False,
    },
)


def decoded(family: str, own: str = "", join: JoinParameters = JOIN) -> str:
    return base64.b64decode(user_data(family, own, join, SETTINGS)).decode()


def parts(text: str) -> list[tuple[str, str]]:
    message = email.message_from_string(text, policy=email.policy.default)
    return [
        (part.get_content_type(), part.get_payload(decode=True).decode())  # type: ignore[union-attr]
        for part in message.iter_parts()
    ]


def test_al2_calls_the_bootstrap_script_with_the_kubelets_flags() -> None:
    [(kind, script)] = parts(decoded("AL2"))
    assert kind == "text/x-shellscript" and script.startswith("#!/bin/bash -xe\n")
    words = shlex.split(script.splitlines()[-1])
    assert words[:4] == ["/etc/eks/bootstrap.sh", "demo", "--apiserver-endpoint", "https://api"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert options["--b64-cluster-ca"] == "Q0E=" and options["--dns-cluster-ip"] == "10.0.0.10"
    assert options["--use-max-pods"] == "false"
    assert options["--kubelet-extra-args"].split() == [
        "--node-labels=a=b,karpenter.sh/nodepool=gpu",
        "--register-with-taints=nvidia.com/gpu=:NoSchedule,karpenter.sh/unregistered=:NoExecute",
        "--max-pods=20",
        "--kube-reserved=cpu=1",
        "--eviction-hard=memory.available<5%",
        "--cpu-cfs-quota=false",
    ]


@pytest.mark.parametrize("family", ["AL2", "AL2023", "Bottlerocket"])
def test_local_disks_are_joined_where_the_class_says_so(family: str) -> None:
    text, plain = decoded(family, join=msgspec.structs.replace(JOIN, local_disks=True)), decoded(family)
    if family == "AL2":
        assert "--local-disks raid0" in text and "local-disks" not in plain
    elif family == "AL2023":
        [(_, config)], [(_, without)] = parts(text), parts(plain)
        assert yaml.safe_load(config)["spec"]["instance"] == {"localStorage": {"strategy": "RAID0"}}
        assert "instance" not in yaml.safe_load(without)["spec"]
    else:
        found = tomllib.loads(text)["settings"]["bootstrap-commands"]["000-mount-instance-storage"]
        assert found["commands"][0] == ["apiclient", "ephemeral-storage", "init"]
        assert found["commands"][1][:4] == ["apiclient", "ephemeral-storage", "bind", "--dirs"]
        assert (found["essential"], found["mode"]) == (True, "always")
        assert "bootstrap-commands" not in tomllib.loads(plain)["settings"]


def test_al2023_has_a_node_config() -> None:
    [(kind, text)] = parts(decoded("AL2023"))
    config = yaml.safe_load(text)
    assert kind == "application/node.eks.aws"
    assert config["spec"]["cluster"] == {
        "name": "demo",
        "apiServerEndpoint": "https://api",
        "certificateAuthority": "Q0E=",
        "cidr": "10.100.0.0/16",
    }
    assert config["spec"]["kubelet"]["flags"] == ["--node-labels=a=b,karpenter.sh/nodepool=gpu"]
    assert config["spec"]["kubelet"]["config"]["maxPods"] == 20
    assert config["spec"]["kubelet"]["config"]["registerWithTaints"][0] == {
        "key": "nvidia.com/gpu",
        "effect": "NoSchedule",
    }


@pytest.mark.parametrize("family", ["AL2", "AL2023"])
def test_own_user_data_comes_first(family: str) -> None:
    assert parts(decoded(family, "#!/bin/sh\necho own"))[0] == ("text/x-shellscript", "#!/bin/sh\necho own\n")
    assert parts(decoded(family, "#cloud-config\nusers: []"))[0][0] == "text/cloud-config"
    archive = (
        'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="X"\n\n--X\nContent-Type: text/x-shellscript\n\n'
        "#!/bin/sh\necho one\n--X\nContent-Type: text/cloud-config\n\n#cloud-config\n--X--\n"
    )
    kinds = [kind for kind, _ in parts(decoded(family, archive))]
    assert kinds[:2] == ["text/x-shellscript", "text/cloud-config"] and len(kinds) == 3
    with pytest.raises(InvalidInput, match="without parts"):
        decoded(family, "MIME-Version: 1.0\nContent-Type: text/plain\n\nx")


def test_bottlerocket_merges_settings() -> None:
    own = '[settings.kubernetes]\nallowed-unsafe-sysctls = ["a"]\nmax-pods = 5\n[settings.motd]\ntext = "a\\"b"\n'
    found = tomllib.loads(decoded("Bottlerocket", own))["settings"]
    kubernetes = found["kubernetes"]
    assert (kubernetes["cluster-name"], kubernetes["api-server"]) == ("demo", "https://api")
    assert kubernetes["max-pods"] == 20 and kubernetes["allowed-unsafe-sysctls"] == ["a"]
    assert kubernetes["node-labels"] == JOIN.labels
    assert kubernetes["node-taints"] == {"nvidia.com/gpu": [":NoSchedule"], "karpenter.sh/unregistered": [":NoExecute"]}
    assert kubernetes["kube-reserved"] == {"cpu": "1"} and found["motd"] == {"text": 'a"b'}
    with pytest.raises(InvalidInput, match="not TOML"):
        decoded("Bottlerocket", "echo own")


def test_custom_images_get_their_own_user_data_alone() -> None:
    assert decoded("Custom", "anything") == "anything"
