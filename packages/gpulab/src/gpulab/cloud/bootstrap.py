"""User data of instances: the bootstrap script of the launch templates, and the flags of a machine's kubelet in it.

A script of EKS' images and the configuration of nodeadm both hold the kubelet's flags as text. Of these, the labels,
the taints and the number of pods have an effect here.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gpuplane.api.nodeclaim import UNREGISTERED_TAINT
from tinykube.cluster import KubeletSettings

_FLAG: Final = r"""--%s[= ]["']?([^\s"']+)"""
_LABELS: Final = re.compile(_FLAG % "node-labels")
_TAINTS: Final = re.compile(_FLAG % "register-with-taints")
_MAX_PODS: Final = re.compile(_FLAG % "max-pods")
_TAINT: Final = re.compile(r"([^=:]+)(?:=([^:]*))?:(NoSchedule|PreferNoSchedule|NoExecute)")


def bootstrap_script(cluster: str) -> str:
    """Return the script of a GPU node of a cluster: it joins with the taint that Karpenter takes off."""
    return (
        "#!/bin/bash\n"
        f"/etc/eks/bootstrap.sh {cluster} "
        f"--kubelet-extra-args '--register-with-taints={UNREGISTERED_TAINT}:NoExecute'\n"
    )


def kubelet_settings(user_data: str, base: KubeletSettings) -> KubeletSettings:
    """Return settings with what user data sets; a taint that cannot be read is left out, as by a script that fails."""
    labels = dict(base.labels)
    for found in _LABELS.findall(user_data):
        labels |= {key: value for key, equals, value in (pair.partition("=") for pair in found.split(",")) if equals}
    taints = list(base.taints)
    for found in _TAINTS.findall(user_data):
        parts = filter(None, map(_TAINT.fullmatch, found.split(",")))
        taints += [(part[1], part[2] or "", part[3]) for part in parts]
    pods = _MAX_PODS.search(user_data)
    return msgspec.structs.replace(
        base,
        labels=labels,
        taints=tuple(dict.fromkeys(taints)),
        max_pods=int(pods[1]) if pods and pods[1].isdigit() else base.max_pods,
    )
