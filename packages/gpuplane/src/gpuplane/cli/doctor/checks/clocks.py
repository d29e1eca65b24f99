"""The clocks of nodes, by the kubelets' leases against the API server's clock.

A kubelet writes its own time into its lease every 10 s. A time in the future proves a clock that is ahead. An old time
of a node that is Ready proves a clock that is behind: Kubernetes compares with its own clock, and takes a silent node
out of Ready after 50 s.
"""

from __future__ import annotations

from typing import Final

from gpuplane.cli.doctor.facts import DoctorFacts, unix
from gpuplane.cli.doctor.finding import Diagnosis, DoctorCheck, DoctorFinding, Severity
from gpuplane.cli.terminal import count
from kubekit.api.core import Node

AHEAD_SECONDS: Final = 5.0  # the API server's clock is known to a second
BEHIND_SECONDS: Final = 90.0  # a node that died is Ready for 50 s at most, and its lease was 10 s old


def _decide(facts: DoctorFacts) -> Diagnosis:
    ready = {node.metadata.name for node in facts.nodes if _is_ready(node)}
    findings = []
    for lease in facts.node_leases:
        node = lease.metadata.name
        if node not in ready or not lease.spec.renew_time:
            continue
        ahead = unix(lease.spec.renew_time) - facts.clock
        if ahead > AHEAD_SECONDS or ahead < -BEHIND_SECONDS:
            side = "ahead of" if ahead > 0 else "behind"
            findings.append(
                DoctorFinding(
                    fault="clock-ahead" if ahead > 0 else "clock-behind",
                    severity=Severity.WARNING,
                    what=f"its clock is {abs(ahead):.0f} s {side} the API server's: times of stages and events mislead",
                    where=f"node/{node}",
                    cure=f"on {node}: timedatectl set-ntp true",
                )
            )
    return Diagnosis(f"{count(len(ready), 'clock')} of nodes right", tuple(findings))


def _is_ready(node: Node) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


CLOCKS: Final = DoctorCheck(
    "clocks",
    "the nodes' clocks agree with the API server's",
    ("node_leases", "nodes", "clock"),
    {
        "clock-ahead": f"a node's clock is more than {AHEAD_SECONDS:.0f} s ahead",
        "clock-behind": f"a node's clock is more than {BEHIND_SECONDS:.0f} s behind",
    },
    _decide,
)
