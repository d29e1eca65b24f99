"""The table of stages: which operand makes each, what must hold before it, and who sees that it is so.

The table is data; `decide` walks it. The order is that of `StageName`.

An operand's gate is its node label `nvidia.com/gpu.deploy.<gate>`: the DaemonSet selects it, and the operator sets it
on a node only when `needs` hold on that node.
"""

from __future__ import annotations

import functools
from typing import Final

import msgspec

from gpuplane.api.gpunode import STAGES, StageName


class Operand(msgspec.Struct, frozen=True):
    """A DaemonSet of ours.

    `gate` is the suffix of its node label; `needs` the stages that must hold on a node before the gate opens;
    `component` the field of the ClusterPolicy that switches it; `manifest` the file below `operands/`. `undo`: it has
    changed files on the node, and gives them back before its gate closes for good.
    """

    gate: str
    component: str
    manifest: str
    needs: tuple[StageName, ...]
    makes: tuple[StageName, ...]
    undo: bool = False

    @property
    def group(self) -> str:
        """The operand's group of fields in a ClusterPolicy, as users write it."""
        first, *others = self.component.split("_")
        return first + "".join(part.capitalize() for part in others)


S = StageName
MPS_GATE: Final = "mps-control-daemon"

OPERANDS: Final[tuple[Operand, ...]] = (
    Operand("driver", "driver", "0200-driver.yaml", (S.DISCOVERED,), (S.DRIVER,), undo=True),
    Operand("container-toolkit", "toolkit", "0300-container-toolkit.yaml", (S.DRIVER,), (S.TOOLKIT,), undo=True),
    # The validator starts with the toolkit and waits for it by a watch: one label, one pod start less in a node's way.
    Operand("operator-validator", "validator", "0400-operator-validator.yaml", (S.DRIVER,), (S.CUDA, S.PLUGIN)),
    Operand("device-plugin", "device_plugin", "0500-device-plugin.yaml", (S.CUDA,), (S.DEVICE_PLUGIN,), undo=True),
    # No stage of its own: where GPUs are shared by MPS, the device plugin waits for it. See `gpuplane.operator.mps`.
    Operand(MPS_GATE, "device_plugin", "0510-mps-control-daemon.yaml", (S.CUDA,), ()),
    Operand("dcgm-exporter", "dcgm_exporter", "0600-dcgm-exporter.yaml", (S.PLUGIN,), (S.EXPORTER,)),
    Operand("gpu-feature-discovery", "gfd", "0700-gpu-feature-discovery.yaml", (S.PLUGIN,), (S.LABELS,)),
)


# Asked for every node at every change, of a table that never changes: hence the caches.
@functools.cache
def operand_of(stage: StageName) -> Operand | None:
    """The operand that makes `stage`; None for discovered and ready."""
    return next((operand for operand in OPERANDS if stage in operand.makes), None)


@functools.cache
def before(stage: StageName) -> tuple[StageName, ...]:
    """All stages in front of `stage`."""
    return STAGES[: STAGES.index(stage)]


@functools.cache
def below(operand: Operand) -> tuple[StageName, ...]:
    """Everything that `operand` stands on: what it needs, and all that comes before."""
    return tuple(stage for stage in STAGES if any(stage is need or stage in before(need) for need in operand.needs))


@functools.cache
def users(operand: Operand) -> tuple[Operand, ...]:
    """The operands that stand on what `operand` makes, or on what follows from it."""
    if not operand.makes:
        return ()
    follows = set(STAGES[STAGES.index(operand.makes[0]) :])
    return tuple(other for other in OPERANDS if other is not operand and set(other.needs) & follows)
