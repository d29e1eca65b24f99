"""The validator's messages: pure functions from observations to a Problem with its cure."""

from __future__ import annotations

from collections.abc import Sequence

from gpuplane import cures
from gpuplane.api.gpunode import GPU, GPUNode
from gpuplane.host import HostError
from gpuplane.validator.checks import ValidationProblem
from kubekit.errors import KubekitError, Retryable


def unusable(error: HostError | OSError) -> ValidationProblem:
    """The node's files cannot be read or written."""
    if isinstance(error, HostError):
        return ValidationProblem("NodeFilesUnusable", error.what, error.where, error.cure)
    return ValidationProblem("NodeFilesUnusable", (error.strerror or str(error)).lower(), str(error.filename or ""))


def no_usable_gpu(node: GPUNode) -> ValidationProblem:
    """Every GPU is out of use, or there is none; the cure is that of the first one's trouble."""
    name, health = node.metadata.name, node.status.health
    if not node.status.gpus:
        return ValidationProblem(
            "NoUsableGPU", "the driver saw no GPU", name, "nvidia-smi -L and lspci -d 10de: on the node"
        )
    sick = [(gpu, health[gpu.uuid]) for gpu in node.status.gpus if gpu.uuid in health]
    told = ", ".join(f"GPU {gpu.index} {why}" for gpu, why in sick[:3])
    more = f" and {len(sick) - 3} more" if len(sick) > 3 else ""
    message = f"none of {len(node.status.gpus)} GPUs is usable: {told}{more}"
    _, fault = sick[0]
    return ValidationProblem("NoUsableGPU", message, name, cures.of_fault(fault))


def vector_add_problem(failures: Sequence[tuple[GPU, KubekitError]]) -> ValidationProblem:
    """One problem that names every GPU that failed; details and cure are those of the first."""
    gpu, error = failures[0]
    if len(failures) == 1:
        message = f"GPU {gpu.index} fails the vectorAdd: {error.what}"
    else:
        indices = ", ".join(str(other.index) for other, _ in failures)
        message = f"GPUs {indices} fail the vectorAdd; GPU {gpu.index}: {error.what}"
    reason = "VectorAddNotRun" if all(isinstance(error, Retryable) for _, error in failures) else "VectorAddFailed"
    where = ", ".join(part for part in (f"GPU {gpu.index}", gpu.uuid, gpu.pci and f"PCI {gpu.pci}") if part)
    return ValidationProblem(reason, message, where, error.cure)
