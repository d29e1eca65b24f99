"""A pod's /etc/resolv.conf, as a kubelet and containerd write it. Pure.

Source: Kubernetes' documentation of dnsPolicy and dnsConfig. Without a DNS server of the cluster, ClusterFirst falls
back to Default, as on a kubelet without --cluster-dns.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from tinykube.kubelet.pod import KubeletPod

RESOLVER_FILE: Final = Path("/etc/resolv.conf")
ZONE: Final = "cluster.local"
_MOST_SERVERS: Final = 3  # the resolver of libc takes no more
_MOST_SEARCHES: Final = 32
_LONGEST_SEARCHES: Final = 2048


class ResolverSettings(msgspec.Struct, frozen=True):
    """The lines of a resolver's file. Options have the form `name` or `name:value`."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def read_resolver(text: str) -> ResolverSettings:
    """Return the settings of a resolver's file; the last line `search` counts. Source: resolv.conf(5)."""
    servers: list[str] = []
    searches: list[str] = []
    options: list[str] = []
    for line in text.splitlines():
        match line.partition("#")[0].partition(";")[0].split():
            case ["nameserver", server, *_]:
                servers.append(server)
            case ["search", *names]:
                searches = [name for name in names if name != "."]
            case ["domain", name] if not searches:
                searches = [name]
            case ["options", *words]:
                options += words
    return ResolverSettings(tuple(servers), tuple(searches), tuple(dict.fromkeys(options)))


def resolver_file(pod: KubeletPod, dns_address: str, of_node: str) -> str:
    """Return the file's text.

    Args:
        dns_address: of the cluster's DNS server; empty for none.
        of_node: the node's own file.
    """
    return write_resolver(choose_settings(pod, dns_address, read_resolver(of_node)))


def choose_settings(pod: KubeletPod, dns_address: str, of_node: ResolverSettings) -> ResolverSettings:
    """Return the settings by the pod's dnsPolicy and dnsConfig."""
    spec, namespace = pod.spec, pod.metadata.namespace
    policy = spec.dns_policy
    if policy == "ClusterFirst" and spec.host_network:
        policy = "Default"
    if policy == "None":
        base = ResolverSettings()
    elif policy == "Default" or not dns_address:
        base = of_node
    else:
        searches = (f"{namespace}.svc.{ZONE}", f"svc.{ZONE}", ZONE, *of_node.searches)
        base = ResolverSettings((dns_address,), searches, ("ndots:5",))
    more = spec.dns_config
    options = {option.partition(":")[0]: option for option in base.options}
    for option in more.options:
        options[option.name] = option.name if not option.value else f"{option.name}:{option.value}"
    return ResolverSettings(
        _unique((*base.servers, *more.nameservers))[:_MOST_SERVERS],
        _bounded(_unique((*base.searches, *more.searches))),
        tuple(options.values()),
    )


def write_resolver(settings: ResolverSettings) -> str:
    """Return the text of a resolver's file."""
    lines = [f"search {' '.join(settings.searches)}"] if settings.searches else []
    lines += [f"nameserver {server}" for server in settings.servers]
    lines += [f"options {' '.join(settings.options)}"] if settings.options else []
    return "".join(f"{line}\n" for line in lines)


def _unique(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def _bounded(searches: tuple[str, ...]) -> tuple[str, ...]:
    searches = searches[:_MOST_SEARCHES]
    while len(" ".join(searches)) > _LONGEST_SEARCHES:
        searches = searches[:-1]
    return searches
