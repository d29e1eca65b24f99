"""The part of a machine that is left for pods: its CPU, memory and disk less the system's, as its kubelet reports them.

Source: the computation of Karpenter's provider for AWS, with the reservations of EKS; it gives the published
allocatable of each type exactly.
"""

from __future__ import annotations

import math
from typing import Final

from gpuplane.api.karpenter import PoolKubelet
from gpuplane.autoscaler.catalogue import InstanceType
from kubekit.api.quantity import Quantity, parse_quantity, whole
from kubekit.scheduling.podinfo import Requests

DEFAULT_KUBELET: Final = PoolKubelet()
DISK: Final = "ephemeral-storage"
UNKNOWN_DISK: Final = 1 << 60  # bytes for pods on a disk of unknown size: no pod is refused for its sake
_MIB: Final = 2**20
_GIB: Final = 2**30
_EVICTED_PART: Final = 0.1  # of the disk: the kubelet evicts pods below
_ARM64_CMA_MIB: Final = 64  # that kernels of arm64 set aside first
_EVICTION_MIB: Final = 100
_OF_CORES: Final = ((1, 60.0), (1, 10.0), (2, 5.0))  # (cores, thousandths reserved of each); 2.5 of each further core


def allocatable(machine: InstanceType, kubelet: PoolKubelet = DEFAULT_KUBELET) -> Requests:
    """Return what a node of the type offers besides GPUs: `cpu` in thousandths, `memory` in bytes, `pods`.

    Raises InvalidInput for an invalid quantity in the kubelet's settings.
    """
    pods = machine.max_pods if kubelet.max_pods is None else kubelet.max_pods
    if kubelet.pods_per_core:
        pods = min(pods, kubelet.pods_per_core * machine.vcpu)
    memory = memory_of(machine)
    cpu = machine.vcpu * 1000 - _reserved_cpu(machine.vcpu, kubelet)
    reserved = _bytes(kubelet.kube_reserved.get("memory"), (255 + 11 * pods) * _MIB)
    reserved += _bytes(kubelet.system_reserved.get("memory"), 0)
    free = int(memory - reserved - _evicted(kubelet, memory)) // _MIB * _MIB
    return {"cpu": max(0, int(cpu)), "memory": max(0, free), "pods": pods}


def memory_of(machine: InstanceType) -> int:
    """Return the bytes of memory that a kubelet reports as the capacity of a type."""
    sheet = machine.memory_mib - (_ARM64_CMA_MIB if machine.arch == "arm64" else 0)
    return (sheet - math.ceil(sheet * machine.memory_overhead)) * _MIB


def disk_for_pods(size: int, kubelet: PoolKubelet = DEFAULT_KUBELET) -> int:
    """Return the bytes that pods have of a disk of `size` bytes.

    Raises InvalidInput for an invalid quantity in the kubelet's settings.
    """
    reserved = _bytes(kubelet.kube_reserved.get(DISK), _GIB) + _bytes(kubelet.system_reserved.get(DISK), 0)
    signal = kubelet.eviction_hard.get("nodefs.available")
    if signal is None:
        evicted = _EVICTED_PART * size
    elif signal.endswith("%"):
        evicted = float(parse_quantity(signal[:-1])) / 100 * size
    else:
        evicted = whole(signal)
    return max(0, int(size - reserved - evicted))


def known_only(counted: Requests) -> Requests:
    """Return amounts without a disk of unknown size."""
    return {name: amount for name, amount in counted.items() if not (name == DISK and amount >= UNKNOWN_DISK)}


def _reserved_cpu(cores: int, kubelet: PoolKubelet) -> float:
    reserved, left = 0.0, cores
    if "cpu" in kubelet.kube_reserved:
        reserved = float(parse_quantity(kubelet.kube_reserved["cpu"])) * 1000
    else:
        for count, each in _OF_CORES:
            reserved += min(count, left) * each
            left -= min(count, left)
        reserved += left * 2.5
    return reserved + float(parse_quantity(kubelet.system_reserved.get("cpu", 0))) * 1000


def _bytes(amount: Quantity | None, otherwise: int) -> int:
    return otherwise if amount is None else whole(amount)


def _evicted(kubelet: PoolKubelet, memory: float) -> float:
    """Return the bytes below which the kubelet evicts pods."""
    signal = kubelet.eviction_hard.get("memory.available")
    if signal is None:
        return _EVICTION_MIB * _MIB
    if signal.endswith("%"):
        return float(parse_quantity(signal[:-1])) / 100 * memory
    return whole(signal)
