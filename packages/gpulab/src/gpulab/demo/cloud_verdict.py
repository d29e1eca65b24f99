"""Compares the promises of `gpuplane demo --cloud` with its measurements. Pure; `verdict` has the rules."""

from __future__ import annotations

from typing import Final

import msgspec

from gpulab.demo.verdict import Promise

WHOLE: Final = "whole"
TENTHS: Final = "tenths"
REPLICAS: Final = 10
PODS: Final = {WHOLE: 1, TENTHS: REPLICAS}  # pool -> its pods once both Deployments have all of them
ALLOCATABLE: Final = {WHOLE: "1", TENTHS: str(REPLICAS)}


class CloudMeasured(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All figures of one run.

    `bought` is the type of each pool's instances, `advertised` the GPUs of its nodes, `holders` the nodes that all pods
    run on, by pool. `launched_seconds` is from the pods to their instances, `placed_seconds` from the GPUs of the last
    node to the last pod that runs; the boot lies between them. `left` are instances, nodes and claims that were there
    after the end, None if that never came.
    """

    bought: dict[str, list[str]] = {}
    advertised: dict[str, list[str]] = {}
    running_seconds: float | None = None
    launched_seconds: float = 0.0
    placed_seconds: float = 0.0
    holders: dict[str, list[str]] = {}
    dollars_per_hour: float = 0.0
    dollars_per_pod: float = 0.0  # an hour, of the cheapest instance with one GPU
    instances: int = 0
    left: list[str] | None = None
    gone_seconds: float = 0.0
    dollars: float = 0.0


def judge_cloud(measured: CloudMeasured) -> tuple[Promise, ...]:
    """Compare each promise with the figures."""
    return (_bought(measured), _unlike(measured), _shared(measured), _saved(measured), _gone(measured))


def _bought(measured: CloudMeasured) -> Promise:
    count = sum(map(len, measured.bought.values()))
    types = "; ".join(f"{pool}: {', '.join(found)}" for pool, found in sorted(measured.bought.items())) or "nothing"
    took = "never ran" if measured.running_seconds is None else f"run after {measured.running_seconds:.1f}s"
    one_each = {pool: len(found) for pool, found in measured.bought.items()} == dict.fromkeys(PODS, 1)
    kept = measured.running_seconds is not None and one_each
    return Promise("bought", f"{count} nodes", f"{types}; 2 pods that waited {took}", kept)


def _unlike(measured: CloudMeasured) -> Promise:
    told = "; ".join(f"{pool}: {', '.join(found)}" for pool, found in sorted(measured.advertised.items()))
    kept = measured.advertised == {pool: [amount] for pool, amount in ALLOCATABLE.items()}
    return Promise("unlike", "nvidia.com/gpu", told or "no node advertises GPUs", kept)


def _shared(measured: CloudMeasured) -> Promise:
    nodes = measured.holders.get(TENTHS, [])
    how = f"on {len(set(nodes))} GPU, {measured.instances} instances were ever launched"
    kept = len(nodes) == REPLICAS and len(set(nodes)) == 1 and measured.instances == len(PODS)
    return Promise("shared", f"{len(nodes)} pods", how, kept)


def _saved(measured: CloudMeasured) -> Promise:
    alone = measured.dollars_per_pod * sum(PODS.values())
    how = f"a GPU for each pod: {alone:.2f} $/h; spot prices are invented"
    kept = 0 < measured.dollars_per_hour < alone
    return Promise("saved", f"{measured.dollars_per_hour:.2f} $/h", how, kept)


def _gone(measured: CloudMeasured) -> Promise:
    bill = f"{measured.dollars:.4f} $"
    if measured.left is None:
        return Promise("gone", bill, "the nodes never went", kept=False)
    if measured.left:
        return Promise("gone", bill, f"left behind: {', '.join(measured.left)}", kept=False)
    how = f"no node, claim or instance {measured.gone_seconds:.1f}s after the last pod; {bill} is the whole bill"
    return Promise("gone", "scaled to 0", how, kept=measured.dollars > 0)
