"""The states of a node's upgrade as a table: each edge with its reason. Pure."""

from __future__ import annotations

from typing import Final

from gpuplane.api.upgrade import UpgradeState

S = UpgradeState

EDGES: Final[dict[UpgradeState, dict[UpgradeState, str]]] = {
    S.UNKNOWN: {
        S.DONE: "the wanted driver is loaded",
        S.REQUIRED: "another driver is wanted, or an upgrade was requested",
    },
    S.DONE: {
        S.REQUIRED: "another driver is wanted, or an upgrade was requested",
    },
    S.REQUIRED: {
        S.CORDON: "it is the node's turn",
        S.DONE: "the wanted driver was changed back to the node's",
        S.FAILED: "the wanted driver was changed back to the node's, which does not work",
    },
    S.CORDON: {
        S.JOBS: "the node is unschedulable",
    },
    S.JOBS: {
        S.PODS: "no job is left to wait for, or the time is over",
    },
    S.PODS: {
        S.RESTART: "no pod holds a GPU",
        S.DRAIN: "pods with GPUs did not go in time, and draining is switched on",
        S.FAILED: "pods with GPUs did not end in time; the node returns to service",
    },
    S.DRAIN: {
        S.RESTART: "the node is drained",
        S.PODS: "draining was switched off",
        S.FAILED: "pods did not end in time; the node returns to service",
    },
    S.RESTART: {
        S.VALIDATION: "the driver is loaded",
        S.RESTART: "the driver does not work, and the previous driver is restored",
        S.FAILED: "the driver does not work, and there is no previous driver to go back to",
    },
    S.VALIDATION: {
        S.UNCORDON: "every stage holds",
        S.RESTART: "the driver or its pod changed after the validation, or the previous driver is restored",
        S.FAILED: "the driver does not work, and there is no previous driver to go back to",
    },
    S.UNCORDON: {
        S.DONE: "the node runs the wanted driver",
        S.FAILED: "the node works, with the previous driver",
    },
    S.FAILED: {
        S.REQUIRED: "another driver is wanted, or an upgrade was requested",
        S.UNCORDON: "the driver works again on a node that the upgrade left unschedulable",
        S.DONE: "the node runs the wanted driver, and it works again",
    },
}
"""State -> the states that may follow, each with its reason."""


def check_edge(node: str, before: UpgradeState, after: UpgradeState) -> None:
    """Raise ValueError for an edge that is not in the table."""
    if after not in EDGES[before]:
        raise ValueError(f"{node}: no way from {before or 'unknown'} to {after}")
