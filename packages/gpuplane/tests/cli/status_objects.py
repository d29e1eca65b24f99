"""Nodes and pods for the tests of `gpuplane status`: what its pages are made from."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import msgspec

from gpuplane.api.gpunode import GPU, GPUNode, GPUNodeStatus, Machine, Stage, StageName, StageState, summarize
from gpuplane.cli.overview import overview as made
from gpuplane.cli.status_views import Overview
from gpuplane.cli.terminal import Console
from gpuplane.sharing import Assignment, Part, request_of, to_annotations
from kubekit.api.core import Container, Pod, PodSpec, PodStatus, Resources
from kubekit.api.meta import ObjectMeta
from kubekit.api.quantity import Quantity

NOW = datetime(2026, 11, 20, 10, 0, 30, tzinfo=UTC)


def at(second: int) -> str:
    return f"2026-11-20T10:00:{second:02}.000000Z"


def gpunode(name: str, *, failed: StageName | None = None, gpus: int = 2, sick: bool = False) -> GPUNode:
    stages = {}
    for second, stage in enumerate(StageName):
        if stage is failed:
            stages[stage.value] = Stage(
                state=StageState.FAILED,
                since=at(second),
                reason="VectorAddFailed",
                message="GPU 1 computes wrong",
                where=f"{name}, GPU 1",
                cure=f"kubectl drain {name}",
            )
            break
        stages[stage.value] = Stage(state=StageState.DONE, since=at(second))
    found = tuple(
        GPU(index=i, uuid=f"GPU-{i}", model="NVIDIA L4", memory_mib=23034, pci=f"0000:00:1{'de'[i]}.0" if i < 2 else "")
        for i in range(gpus)
    )
    status = GPUNodeStatus(
        stages=stages,
        gpus=found,
        machine=Machine(os="ubuntu24.04", kernel="6.8.0", runtime="containerd", driver="580.82.07"),
        health={"GPU-1": "Xid 79: fallen off the bus"} if sick else {},
    )
    return GPUNode(
        metadata=ObjectMeta(name=name),
        status=GPUNodeStatus(
            summary=summarize(status), machine=status.machine, stages=stages, gpus=found, health=status.health
        ),
    )


def pod(name: str, node: str, gpus: int, phase: str = "Running") -> Pod:
    container = Container(name="main", resources=Resources(limits={"nvidia.com/gpu": str(gpus)}))
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ml"),
        spec=PodSpec(node_name=node, containers=(container,)),
        status=PodStatus(phase=phase),
    )


def overview(nodes: Any, pods: Any, gpus: dict[str, int], *others: Any, **more: Any) -> Overview:
    """Of nodes that advertise so many whole GPUs."""
    return made(nodes, pods, {name: {"nvidia.com/gpu": str(number)} for name, number in gpus.items()}, *others, **more)


def screen(ascii_only: bool = False) -> Console:
    return Console(io.StringIO(), io.StringIO(), colour="never", ascii_only=ascii_only)


def with_faults(node: GPUNode, *faults: str) -> GPUNode:
    """Return the node with a fault for each of its first GPUs; "" means no fault."""
    health = {f"GPU-{index}": fault for index, fault in enumerate(faults) if fault}
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, health=health))


def trouble_lines(page: str, node: str = "n1") -> list[str]:
    """The lines below the head of a node, each without its margin."""
    lines = page.splitlines()
    [at] = [number for number, line in enumerate(lines) if line[3:].startswith(node)]
    return [line.strip() for line in lines[at + 1 :]]


def share(name: str, node: str, core: int, memory: int, at: int | None) -> Pod:
    """A pod with a part of GPU `at`, as the extender places it; as others do where that is None."""
    asked: dict[str, Quantity] = {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": str(memory * 4)}
    container = Container(name="main", resources=Resources(limits=asked))
    bound = Pod(
        metadata=ObjectMeta(name=name, namespace="ml"),
        spec=PodSpec(node_name=node, containers=(container,)),
        status=PodStatus(phase="Running"),
    )
    if at is not None:
        part = Assignment({"main": (Part(f"GPU-{at}", at, core, memory << 10),)})
        said = to_annotations(part, request_of(bound), node, 0)
        bound = msgspec.structs.replace(bound, metadata=msgspec.structs.replace(bound.metadata, annotations=said))
    return bound


def asking(name: str, node: str, resource: str, number: int = 1) -> Pod:
    container = Container(name="main", resources=Resources(limits={resource: str(number)}))
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ml"),
        spec=PodSpec(node_name=node, containers=(container,)),
        status=PodStatus(phase="Running" if node else "Pending"),
    )


def without_headers(name: str, kernel: str = "6.8.0-71") -> GPUNode:
    """A node of a pool whose driver cannot be compiled."""
    stages = {
        "discovered": Stage(state=StageState.DONE, since=at(0)),
        "driver": Stage(
            state=StageState.FAILED,
            since=at(1),
            reason="KernelHeadersMissing",
            message=f"no linux-headers-{kernel} in the node's repositories",
            where=f"apt-get install linux-headers-{kernel}, in / of {name}",
            cure="boot a kernel that they have headers for, or ClusterPolicy spec.driver.repoConfig",
        ),
    }
    status = GPUNodeStatus(stages=stages, machine=Machine(os="ubuntu24.04", kernel=kernel))
    return GPUNode(metadata=ObjectMeta(name=name), status=msgspec.structs.replace(status, summary=summarize(status)))


def with_own_uuids(seen: Overview) -> Overview:
    """The overview with a UUID for each GPU that no other node's GPU has, as in a cluster; `gpunode` repeats them."""
    nodes = []
    for node in seen.nodes:
        gpus = tuple(msgspec.structs.replace(gpu, uuid=f"{gpu.uuid}-{node.name}") for gpu in node.gpus)
        sick = {f"{uuid}-{node.name}": why for uuid, why in node.sick.items()}
        nodes.append(msgspec.structs.replace(node, gpus=gpus, sick=sick))
    return msgspec.structs.replace(seen, nodes=tuple(nodes))
