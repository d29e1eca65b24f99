"""The settings of one kubelet that a cloud or an administrator chooses, as a kubelet's command line has them."""

from __future__ import annotations

import msgspec


class KubeletSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a node's kubelet; the comments name the flags of the real one.

    Labels are set again at every start. The provider id and the taints are those of a new Node only.
    """

    provider_id: str = ""  # --provider-id
    labels: dict[str, str] = {}  # --node-labels
    taints: tuple[tuple[str, str, str], ...] = ()  # --register-with-taints, as (key, value, effect)
    max_pods: int = 110  # --max-pods
    reserved_cpu_milli: int = 0  # --kube-reserved cpu=
    reserved_memory_mib: int = 100  # --kube-reserved memory= and --eviction-hard memory.available<
