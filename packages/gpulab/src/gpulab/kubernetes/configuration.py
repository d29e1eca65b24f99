"""Configuration files of containerd, its network and the kubelet of a machine: what a small machine needs, no more."""

from __future__ import annotations

import json
from typing import Any, Final

PAUSE_IMAGE: Final = "localhost/pause:1"
CNI_DIR: Final = "/usr/lib/cni"
KUBELET: Final = "/etc/kubernetes/kubelet.yaml"
KUBE_PROXY: Final = "/etc/kubernetes/kube-proxy.yaml"
REGISTRIES: Final = "/etc/containerd/certs.d"
CONTAINERD: Final = "/etc/containerd/config.toml"
SOCKET: Final = "/run/containerd/containerd.sock"
IMAGES_READY: Final = "/var/lib/containerd/images-ready"


def files(name: str, address: str, cgroup: str, pod_network: str, registry: str) -> dict[str, str]:
    """Path below the root -> text. `registry` is the address of the only registry that images come from."""
    return {
        KUBELET.lstrip("/"): json.dumps(_kubelet(address, cgroup), indent=2),
        CONTAINERD.lstrip("/"): _CONTAINERD,
        KUBE_PROXY.lstrip("/"): json.dumps(_kube_proxy(name, pod_network), indent=2),
        f"{REGISTRIES}/_default/hosts.toml".lstrip("/"): _HOSTS.format(registry=registry),
        "etc/cni/net.d/10-pods.conflist": json.dumps(_cni(pod_network), indent=2),
        "etc/resolv.conf": "",
    }


def services(name: str, address: str) -> dict[str, list[str]]:
    """Return the command lines that process 1 keeps running, by name."""
    return {
        "containerd": ["containerd", f"--config={CONTAINERD}"],
        # No pod shall start before the image of its sandbox is there.
        "kubelet": [
            "sh",
            "-c",
            f'until [ -e {IMAGES_READY} ]; do sleep 0.1; done; exec "$@"',
            "sh",
            "kubelet",
            f"--config={KUBELET}",
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            f"--node-ip={address}",
            f"--hostname-override={name}",
        ],
        "kube-proxy": ["kube-proxy", f"--config={KUBE_PROXY}"],
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
        "clusterDNS": ["10.96.0.10"],  # no program answers there; without one every pod gets a warning event
        # The machine's disk is its owner's: how full it is must not end the tests' pods.
        "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "nodeStatusUpdateFrequency": "5s",
    }


def _kube_proxy(name: str, pod_network: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/kube-proxy.conf"},
        "hostnameOverride": name,
        "mode": "iptables",
        "clusterCIDR": pod_network,
        # A pod's answer to its neighbour on the bridge takes the way back, also where bridges pass by iptables.
        "iptables": {"masqueradeAll": True, "minSyncPeriod": "100ms"},
        # These settings are the kernel's, not the machine's.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }


_HOSTS: Final = """\
server = "http://{registry}"

[host."http://{registry}"]
  capabilities = ["pull", "resolve"]
"""

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
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = '{REGISTRIES}'

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


def _cni(pod_network: str) -> dict[str, Any]:
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods0",
                "isDefaultGateway": True,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": pod_network}]]},
            },
            {"type": "loopback"},
        ],
    }
