"""The settings of the AWS provider, by the names that Karpenter's has in its environment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class AwsSettings(msgspec.Struct, frozen=True):
    """`cluster` names the cluster in tags. Credentials are found by boto3, as are `region` and `endpoint` if empty.

    `api_server` and `authority` (base64 of PEM) are what bootstrap user data names; `kubernetes` is the cluster's
    version, such as 1.31, which images are looked up for. `queue` names the queue of interruption notices; empty for
    none. `isolated` is for a network without a way to the price list service. `service_network` is the CIDR
    of the cluster's Services, which images of AL2023 ask for.
    """

    cluster: str
    region: str = ""
    endpoint: str = ""
    queue: str = ""
    api_server: str = ""
    authority: str = ""
    kubernetes: str = ""
    instance_profile: str = ""
    isolated: bool = False
    service_network: str = ""

    @property
    def is_of_ipv6(self) -> bool:
        """Return whether the cluster's Services, and so its pods, have addresses of IPv6."""
        return ":" in self.service_network

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, kubernetes: str = "") -> AwsSettings:
        """Read settings. boto3 reads `AWS_ENDPOINT_URL` and credentials from the process' environment itself."""
        return cls(
            cluster=environment.get("CLUSTER_NAME", ""),
            region=environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION", ""),
            endpoint=environment.get("AWS_ENDPOINT_URL", ""),
            queue=environment.get("INTERRUPTION_QUEUE", ""),
            api_server=environment.get("CLUSTER_ENDPOINT", ""),
            authority=environment.get("CLUSTER_CA_BUNDLE", ""),
            kubernetes=kubernetes,
            instance_profile=environment.get("AWS_DEFAULT_INSTANCE_PROFILE", ""),
            service_network=environment.get("SERVICE_CIDR", ""),
            isolated=environment.get("ISOLATED_VPC", "").lower() == "true",
        )
