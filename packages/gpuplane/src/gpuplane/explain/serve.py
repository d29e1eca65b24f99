"""The process in which the operator answers one PodExplanation: `python -m gpuplane.explain.serve`.

stdin has the request as JSON (`{"namespace": ..., "pods": [...]}`), stdout gets the answers: a list of `pod` and
`explanation`. The cluster is read once for all pods of the request.

A process of its own, because to read and judge a large cluster takes seconds of CPU and hundreds of MiB: the operator
goes on meanwhile, and the memory is returned with the answer. The process limits its own CPU time and memory, and its
answer's size, so that no request costs more.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import resource
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuplane.explain.answer import Explanation, FreeNode, explain
from gpuplane.explain.reading import read_facts
from gpuplane.explain.unnamed import unnamed, unnamed_pools
from gpuplane.explain.with_pools import with_pools
from gpuplane.explain.world import ClusterFacts, Object, World
from kubekit.kube import Client, SystemClock

CPU_SECONDS: Final = 30
MEMORY_BYTES: Final = 4 << 30  # of addresses; a pod of the cluster takes about 15 KiB
FREE_NODES: Final = 16  # whose GPUs are listed for each pod; the others are counted
LONGEST: Final = 400_000  # bytes of the answers together; an object of the API server has 1.5 MB at most


class ExplanationRequest(msgspec.Struct, frozen=True):
    """Names of pods in one namespace."""

    namespace: str
    pods: tuple[str, ...]


def explained(request: ExplanationRequest, facts: ClusterFacts, now: str) -> list[tuple[Object, Explanation]]:
    """Explain each pod of the request that exists to a user of its namespace. Pure."""
    known = unnamed(facts, request.namespace)
    world = World(known)
    own = {raw["metadata"]["name"]: raw for raw in known.pods if raw["metadata"]["namespace"] == request.namespace}
    return [(own[name], explain(own[name], known, now, world)) for name in dict.fromkeys(request.pods) if name in own]


def answers(request: ExplanationRequest, explanations: Iterable[Explanation]) -> list[dict[str, Any]]:
    """Return the answers, as many as fit into an object of the API server; a missing pod has no explanation. Pure."""
    of_pod = {one.pod: one for one in explanations}
    found: list[dict[str, Any]] = []
    size = 0
    for name in dict.fromkeys(request.pods):
        answer: dict[str, Any] = {"pod": name}
        own = of_pod.get(f"{request.namespace}/{name}")
        if own is not None:
            answer["explanation"] = msgspec.to_builtins(_shortened(own))
        size += len(msgspec.json.encode(answer))
        if size > LONGEST:
            break
        found.append(answer)
    return found


def _shortened(explanation: Explanation) -> Explanation:
    """Return the explanation with the GPUs of the nodes that have most of a GPU free."""
    free: Iterable[FreeNode] = sorted(explanation.free, key=_distance)[:FREE_NODES]
    more = max(0, len(explanation.free) - FREE_NODES)
    return msgspec.structs.replace(explanation, free=tuple(free), free_not_listed=more)


def _distance(node: FreeNode) -> tuple[int, int, str]:
    return -max(gpu.core for gpu in node.gpus), -max(gpu.memory_mib for gpu in node.gpus), node.node


async def _answer(request: ExplanationRequest, kubeconfig: Path | None, context: str | None) -> list[dict[str, Any]]:
    async with Client.connect(kubeconfig, context, user_agent="gpuplane-operator-explain") as client:
        facts = await read_facts(client, request.namespace)
        found = explained(request, facts, SystemClock().wall())
        hide = functools.partial(unnamed_pools, namespace=request.namespace)
        pods, explanations = [pod for pod, _ in found], [one for _, one in found]
        return answers(request, await with_pools(client, pods, explanations, facts.nodes, hide))


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer the request of stdin on stdout."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    parser = argparse.ArgumentParser(prog="gpuplane.explain.serve")
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--context")
    options = parser.parse_args(arguments)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ExplanationRequest)
    try:
        found = asyncio.run(_answer(request, options.kubeconfig, options.context))
    except MemoryError:
        sys.exit(f"the objects of the cluster need more than {MEMORY_BYTES >> 30} GiB of memory")
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
