"""The user data with which a machine joins the cluster, in the form of each family of images. Pure.

The class' own user data is part of it: as a part before ours for AL2 and AL2023, merged for Bottlerocket; for Custom it
is all there is.

Source: EKS' bootstrap.sh, nodeadm's NodeConfig v1alpha1, and Bottlerocket's settings.kubernetes.
"""

from __future__ import annotations

import base64
import email
import email.message
import email.policy
import json
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import yaml

from gpuplane.autoscaler.providers.aws.images import CUSTOM
from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from kubekit.errors import InvalidInput

_BOUNDARY: Final = "//"
_LOGGED: Final = "exec > >(tee /var/log/user-data.log | logger -t user-data -s 2>/dev/console) 2>&1"
_SHELL: Final = "x-shellscript"
_NODE_CONFIG: Final = "node.eks.aws"

# Field of Karpenter's kubelet settings -> flag of the kubelet, for images that take flags.
_FLAGS: Final = {
    "maxPods": "max-pods",
    "podsPerCore": "pods-per-core",
    "systemReserved": "system-reserved",
    "kubeReserved": "kube-reserved",
    "evictionHard": "eviction-hard",
    "evictionSoft": "eviction-soft",
    "evictionSoftGracePeriod": "eviction-soft-grace-period",
    "evictionMaxPodGracePeriod": "eviction-max-pod-grace-period",
    "imageGCHighThresholdPercent": "image-gc-high-threshold",
    "imageGCLowThresholdPercent": "image-gc-low-threshold",
    "cpuCFSQuota": "cpu-cfs-quota",
}
_THRESHOLDS: Final = frozenset({"evictionHard", "evictionSoft"})
# The same -> Bottlerocket's setting.
_BOTTLEROCKET: Final = {
    "maxPods": "max-pods",
    "systemReserved": "system-reserved",
    "kubeReserved": "kube-reserved",
    "evictionHard": "eviction-hard",
    "evictionSoft": "eviction-soft",
    "evictionSoftGracePeriod": "eviction-soft-grace-period",
    "evictionMaxPodGracePeriod": "eviction-max-pod-grace-period",
    "imageGCHighThresholdPercent": "image-gc-high-threshold-percent",
    "imageGCLowThresholdPercent": "image-gc-low-threshold-percent",
    "cpuCFSQuota": "cpu-cfs-quota-enforced",
}


_DISK_COMMAND: Final = "000-mount-instance-storage"
_JOIN_DISKS: Final = [
    ["apiclient", "ephemeral-storage", "init"],
    ["apiclient", "ephemeral-storage", "bind", "--dirs", "/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"],
]


class JoinParameters(msgspec.Struct, frozen=True):
    """Settings that a kubelet registers with: labels, taints (key, value, effect) and Karpenter's kubelet settings.

    `local_disks`: the disks of the instance are joined to one, on which pods write.
    """

    labels: dict[str, str] = {}
    taints: tuple[tuple[str, str, str], ...] = ()
    kubelet: dict[str, Any] = {}
    local_disks: bool = False


def user_data(family: str, own: str, join: JoinParameters, settings: AwsSettings) -> str:
    """Return user data, base64 as EC2 takes it. Raises InvalidInput for own user data of a wrong form."""
    if family == CUSTOM:
        text = own
    elif family == "AL2":
        text = _multipart([*_own_parts(own), (_SHELL, _bootstrap(join, settings))])
    elif family == "AL2023":
        text = _multipart([*_own_parts(own), (_NODE_CONFIG, _node_config(join, settings))])
    else:
        text = _bottlerocket(own, join, settings)
    return base64.b64encode(text.encode()).decode()


def _bootstrap(join: JoinParameters, settings: AwsSettings) -> str:
    kubelet = join.kubelet
    flags = [f"--node-labels={_pairs(join.labels)}"] if join.labels else []
    if join.taints:
        flags.append("--register-with-taints=" + ",".join(_taint(taint) for taint in join.taints))
    for field, flag in _FLAGS.items():
        if kubelet.get(field) is not None:
            flags.append(f"--{flag}={_flag_value(field, kubelet[field])}")
    words = ["/etc/eks/bootstrap.sh", shlex.quote(settings.cluster)]
    words += ["--apiserver-endpoint", shlex.quote(settings.api_server)] if settings.api_server else []
    words += ["--b64-cluster-ca", shlex.quote(settings.authority)] if settings.authority else []
    if kubelet.get("clusterDNS"):
        words += ["--dns-cluster-ip", shlex.quote(kubelet["clusterDNS"][0])]
    if kubelet.get("maxPods") is not None:
        words += ["--use-max-pods", "false"]
    words += ["--local-disks", "raid0"] if join.local_disks else []
    words += ["--kubelet-extra-args", shlex.quote(" ".join(flags))] if flags else []
    return f"#!/bin/bash -xe\n{_LOGGED}\n{' '.join(words)}\n"


def _node_config(join: JoinParameters, settings: AwsSettings) -> str:
    config = dict(join.kubelet)
    if join.taints:
        config["registerWithTaints"] = [
            {"key": key, "effect": effect} | ({"value": value} if value else {}) for key, value, effect in join.taints
        ]
    kubelet: dict[str, Any] = {"config": config} if config else {}
    if join.labels:
        kubelet["flags"] = [f"--node-labels={_pairs(join.labels)}"]
    cluster = {
        "name": settings.cluster,
        "apiServerEndpoint": settings.api_server,
        "certificateAuthority": settings.authority,
        "cidr": settings.service_network,
    }
    spec: dict[str, Any] = {"cluster": cluster} | ({"kubelet": kubelet} if kubelet else {})
    spec |= {"instance": {"localStorage": {"strategy": "RAID0"}}} if join.local_disks else {}
    node = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}
    return yaml.safe_dump(node, sort_keys=False)


def _own_parts(own: str) -> list[tuple[str, str]]:
    """Return the parts of the class' own user data: a MIME archive's, a NodeConfig, or one script."""
    if not own.strip():
        return []
    if own.lstrip().lower().startswith(("mime-version:", "content-type:")):
        message = email.message_from_string(own.lstrip(), policy=email.policy.default)
        if not message.is_multipart():
            raise InvalidInput("userData is a MIME archive without parts", cure="close its boundary")
        return [(part.get_content_subtype(), _text(part)) for part in message.iter_parts()]
    if own.lstrip().startswith("#"):
        return [("cloud-config" if own.lstrip().startswith("#cloud-config") else _SHELL, own)]
    return [(_NODE_CONFIG if "node.eks.aws/" in own else _SHELL, own)]


def _text(part: email.message.Message) -> str:
    content = part.get_payload(decode=True)
    return content.decode(errors="replace") if isinstance(content, bytes) else ""


def _multipart(parts: Sequence[tuple[str, str]]) -> str:
    lines = ["MIME-Version: 1.0", f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"', ""]
    for subtype, text in parts:
        kind = "text" if subtype in (_SHELL, "cloud-config", "plain") else "application"
        lines += [f"--{_BOUNDARY}", f'Content-Type: {kind}/{subtype}; charset="us-ascii"', "", text.rstrip("\n"), ""]
    return "\n".join([*lines, f"--{_BOUNDARY}--", ""])


def _bottlerocket(own: str, join: JoinParameters, settings: AwsSettings) -> str:
    try:
        document = tomllib.loads(own)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"userData is not TOML: {error}", cure="Bottlerocket takes settings as TOML") from error
    kubernetes = document.setdefault("settings", {}).setdefault("kubernetes", {})
    kubernetes["cluster-name"] = settings.cluster
    if settings.api_server:
        kubernetes["api-server"] = settings.api_server
    if settings.authority:
        kubernetes["cluster-certificate"] = settings.authority
    if join.labels:
        kubernetes.setdefault("node-labels", {}).update(join.labels)
    for key, value, effect in join.taints:
        found = kubernetes.setdefault("node-taints", {}).setdefault(key, [])
        if f"{value}:{effect}" not in found:
            found.append(f"{value}:{effect}")
    for field, setting in _BOTTLEROCKET.items():
        if join.kubelet.get(field) is not None:
            kubernetes[setting] = join.kubelet[field]
    if join.kubelet.get("clusterDNS"):
        kubernetes["cluster-dns-ip"] = join.kubelet["clusterDNS"][0]
    if join.local_disks:
        commands = document["settings"].setdefault("bootstrap-commands", {})
        commands[_DISK_COMMAND] = {"commands": _JOIN_DISKS, "essential": True, "mode": "always"}
    return "\n".join(_toml(document, ())) + "\n"


def _toml(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """Return a table as TOML. A JSON string is a TOML string, and so are numbers, booleans and lists of them."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"[{'.'.join(json.dumps(part) for part in path)}]"] if path and plain else []
    lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += _toml(value, (*path, key))
    return lines


def _pairs(found: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(found.items()))


def _taint(taint: tuple[str, str, str]) -> str:
    key, value, effect = taint
    return f"{key}={value}:{effect}"


def _flag_value(field: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        sign = "<" if field in _THRESHOLDS else "="
        return ",".join(f"{key}{sign}{amount}" for key, amount in sorted(value.items()))
    return str(value)
