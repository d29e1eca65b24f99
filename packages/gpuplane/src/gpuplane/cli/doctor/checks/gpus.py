"""The GPUs of each node: those on the PCI bus against those that NVML lists, and those that the kubelet offers.

GPUNode has both: behind the GPUs of NVML those that are on the bus all the same (`gpuplane.api.gpunode`).
"""

from __future__ import annotations

from typing import Final

from gpuplane import cures, names
from gpuplane.api.gpunode import GPUNode, is_lost
from gpuplane.cli.doctor.facts import DoctorFacts
from gpuplane.cli.doctor.finding import Diagnosis, DoctorCheck, DoctorFinding, Severity
from gpuplane.cli.terminal import count


def _decide(facts: DoctorFacts) -> Diagnosis:
    by_name = {one.metadata.name: one for one in facts.gpunodes}
    findings = [finding for one in facts.gpunodes for finding in _lost(one)]
    for node in facts.nodes:
        name = node.metadata.name
        if node.metadata.labels.get(names.GPU_PRESENT_LABEL) == "true" and name not in by_name:
            findings.append(
                DoctorFinding(
                    fault="node-without-report",
                    severity=Severity.WARNING,
                    what="it has a GPU, and no GPUNode reports on it",
                    where=f"node/{name}",
                    cure=f"kubectl -n {names.OPERATOR_NAMESPACE} rollout restart deployment/gpu-operator",
                )
            )
    gpus = sum(len(one.status.gpus) for one in facts.gpunodes)
    return Diagnosis(f"{count(gpus, 'GPU')} on PCI and in NVML", tuple(findings))


def _lost(node: GPUNode) -> list[DoctorFinding]:
    """Return a finding for each GPU that NVML does not reach."""
    lost = {uuid: why for uuid, why in node.status.health.items() if is_lost(why)}
    on_bus = len(node.status.gpus)
    by_uuid = {gpu.uuid: gpu for gpu in node.status.gpus}
    findings = []
    for uuid, why in sorted(lost.items()):
        gpu = by_uuid.get(uuid)
        number = f"/{gpu.index}" if gpu is not None else ""
        pci = f", PCI {gpu.pci}" if gpu is not None and gpu.pci else ""
        findings.append(
            DoctorFinding(
                fault="gpu-lost",
                what=f"PCI has {count(on_bus, 'GPU')}, NVML reaches {on_bus - len(lost)}: {why}",
                where=f"{node.metadata.name}{number}{pci}, {uuid}",
                cure=cures.of_fault(why),
            )
        )
    return findings


GPUS: Final = DoctorCheck(
    "gpus",
    "NVML reaches every GPU that is on the PCI bus",
    ("gpunodes", "nodes"),
    {
        "gpu-lost": "a GPU is on the PCI bus, and NVML does not reach it",
        "node-without-report": "a node has a GPU, and no GPUNode",
    },
    _decide,
)
