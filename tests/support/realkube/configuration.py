"""How containerd, its network and the kubelet of a machine are configured: what a small machine needs, no more."""

from __future__ import annotations

import json
from typing import Any, Final

PAUSE_IMAGE: Final = "localhost/pause:1"
CNI_DIR: Final = "/usr/lib/cni"
POD_NETWORK: Final = "10.244.0.0/24"
KUBELET: Final = "/etc/kubernetes/kubelet.yaml"
CONTAINERD: Final = "/etc/containerd/config.toml"
SOCKET: Final = "/run/containerd/containerd.sock"


def files(address: str, cgroup: str) -> dict[str, str]:
    """Path below the root -> text."""
    return {
        KUBELET.lstrip("/"): json.dumps(_kubelet(address, cgroup), indent=2),
        CONTAINERD.lstrip("/"): _CONTAINERD,
        "etc/cni/net.d/10-pods.conflist": json.dumps(_CNI, indent=2),
        "etc/resolv.conf": "",
    }


def services(name: str, address: str) -> dict[str, list[str]]:
    """What process 1 keeps running."""
    return {
        "containerd": ["containerd", f"--config={CONTAINERD}"],
        "kubelet": [
            "kubelet",
            f"--config={KUBELET}",
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            f"--node-ip={address}",
            f"--hostname-override={name}",
        ],
    }


def _kubelet(address: str, cgroup: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"x509": {"clientCAFile": "/etc/kubernetes/ca.crt"}},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "address": address,
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "resolvConf": "",
        "clusterDNS": ["10.96.0.10"],  # nobody answers there; without one every pod gets a warning event
        # The machine's disk is its owner's: how full it is must not end the tests' pods.
        "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "nodeStatusUpdateFrequency": "5s",
    }


_CONTAINERD: Final = f"""\
version = 3
root = '/var/lib/containerd'
state = '/run/containerd'

[grpc]
  address = '{SOCKET}'

[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{PAUSE_IMAGE}'

[plugins.'io.containerd.cri.v1.runtime']
  # Machines without CAP_SYS_RESOURCE cannot lower it, and every sandbox would fail.
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{CNI_DIR}']
    conf_dir = '/etc/cni/net.d'
"""

_CNI: Final = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "pods0",
            "isDefaultGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": POD_NETWORK}]]},
        },
        {"type": "loopback"},
    ],
}
