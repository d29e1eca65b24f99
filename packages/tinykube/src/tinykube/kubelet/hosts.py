"""The beginning of a pod's /etc/hosts, as a kubelet writes it. Pure."""

from __future__ import annotations

from typing import Final

from tinykube.kubelet.pod import KubeletPod

_TITLE: Final = "# Kubernetes-managed hosts file"
_LOCAL: Final = (
    "127.0.0.1\tlocalhost",
    "::1\tlocalhost ip6-localhost ip6-loopback",
    "fe00::0\tip6-localnet",
    "fe00::0\tip6-mcastprefix",
    "fe00::1\tip6-allnodes",
    "fe00::2\tip6-allrouters",
)


def hosts_file(pod: KubeletPod, address: str, hostname: str, of_node: str) -> str:
    """Return the lines; `of_node` is the node's own file, which pods on its network get."""
    spec = pod.spec
    if spec.host_network:
        text = f"{_TITLE} (host network).\n{of_node}"
    else:
        names = [hostname]
        if spec.subdomain:
            names.insert(0, f"{hostname}.{spec.subdomain}.{pod.metadata.namespace}.svc.cluster.local")
        text = "\n".join((f"{_TITLE}.", *_LOCAL, "\t".join((address, *names)), ""))
    if spec.host_aliases:
        lines = ["\t".join((alias.ip, *alias.hostnames)) for alias in spec.host_aliases]
        text += "\n".join(("", "# Entries added by HostAliases.", *lines, ""))
    return text
