"""Samples as Prometheus text: a pure function. Labels and number formats are those of the DCGM exporter.

Source: Prometheus, "Exposition formats", text format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpuplane.exporter.fields import Field, FieldType, Value, read, read_label
from gpuplane.hardware import GPU, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Holder(msgspec.Struct, frozen=True, order=True):
    """A container that holds a GPU."""

    namespace: str
    pod: str
    container: str
    replica: str = ""  # of a shared GPU


def render(
    fields: Sequence[Field],
    inventory: Sequence[GPU],
    samples: Sequence[Sample],
    holders: Mapping[str, Sequence[Holder]],
    *,
    hostname: str,
    driver_version: str,
) -> bytes:
    """The whole answer of `/metrics`.

    Args:
        holders: GPU UUID -> the containers that hold it. A GPU without one has no pod labels; one with several has a
        line
            for each.
    """
    by_uuid = {sample.uuid: sample for sample in samples}
    extra = [field for field in fields if field.type is FieldType.LABEL]
    rows = [
        (gpu, by_uuid[gpu.uuid], _label_sets(gpu, extra, holders.get(gpu.uuid, ()), hostname, driver_version))
        for gpu in inventory
        if gpu.uuid in by_uuid
    ]
    lines: list[str] = []
    for field in fields:
        if field.type is FieldType.LABEL:
            continue
        values = [
            f"{field.name}{{{labels}}} {_number(value)}\n"
            for gpu, sample, label_sets in rows
            if (value := read(field, gpu, sample)) is not None
            for labels in label_sets
        ]
        if values:
            text = field.help.replace("\\", "\\\\")
            lines.append(f"# HELP {field.name} {text}\n# TYPE {field.name} {field.type.value}\n")
            lines += values
    return "".join(lines).encode()


def _label_sets(
    gpu: GPU, extra: Sequence[Field], holders: Sequence[Holder], hostname: str, driver_version: str
) -> list[str]:
    labels = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": _dcgm_bus_id(gpu.pci),
        "device": f"nvidia{gpu.minor}",
        "modelName": gpu.name,
        "Hostname": hostname,
        **{field.name: read_label(field, gpu, driver_version) for field in extra},
    }
    if not holders:
        return [_labels(labels)]
    return [
        _labels({**labels, "container": holder.container, "namespace": holder.namespace, "pod": holder.pod})
        for holder in sorted(holders)
    ]


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: Value) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _dcgm_bus_id(pci: str) -> str:
    """`0000:1b:00.0` as NVML and DCGM spell it: eight digits of the domain, capitals."""
    domain, _, rest = pci.partition(":")
    return f"{domain.zfill(8)}:{rest}".upper() if rest else pci
