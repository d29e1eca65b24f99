"""Sharing of GPUs: the request of a pod, the ledger of holders, the placement, and the annotation that records it.

Pure: no I/O, no clock. Scheduler, device plugin and admission act on these decisions and make none of their own;
`gpuplane explain` and the packing experiment run the same code.
"""

from gpuplane.sharing.assignment import Assignment, Part, of_pod, to_annotations
from gpuplane.sharing.findings import POLICIES, findings, findings_of_object
from gpuplane.sharing.ledger import Holding, Ledger, violations
from gpuplane.sharing.node import LedgerGPU, NodeState, empty, gpus_of
from gpuplane.sharing.request import WHOLE, Ask, Request, host_request, kind_of, matches, request_of

__all__ = [
    "POLICIES",
    "WHOLE",
    "Ask",
    "Assignment",
    "Holding",
    "Ledger",
    "LedgerGPU",
    "NodeState",
    "Part",
    "Request",
    "empty",
    "findings",
    "findings_of_object",
    "gpus_of",
    "host_request",
    "kind_of",
    "matches",
    "of_pod",
    "request_of",
    "to_annotations",
    "violations",
]
