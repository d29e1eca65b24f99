"""The DNS server of the cluster: names of Services and pods, and other names by the machine's own servers."""

from tinykube.dns.forwarding import NameServers
from tinykube.dns.names import RegistryNames
from tinykube.dns.server import PORT, DNSServer
from tinykube.dns.service import ClusterDNS, dns_service, why_not

__all__ = ["PORT", "ClusterDNS", "DNSServer", "NameServers", "RegistryNames", "dns_service", "why_not"]
