"""Samples as metrics: pure functions. Labels and number formats are those of the DCGM exporter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

import msgspec

from gpuplane.cures import xid_meaning
from gpuplane.exporter.fields import ExporterField, FieldType, bus_id, read, read_label
from gpuplane.hardware import GPUFacts, Sample
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, Series, exposition, extend, extend_all, series

DECIMALS: Final = 6
JOB: Final = "hpc_job"
XID_LABELS: Final = ("err_code", "err_msg")
XID_FIELD: Final = "DCGM_FI_DEV_XID_ERRORS"
LOST: Final = Metric("gpuplane_gpu_lost", MetricType.GAUGE, "1 for a GPU of the PCI bus that NVML does not reach.")


class GPUHolder(msgspec.Struct, frozen=True, order=True):
    """A container that holds a GPU; `replica` is its number of a shared one, `marks` are further labels of its pod.

    `part`: the container holds a share of the GPU, `share_percent` of its core and `share_bytes` of its memory.
    `claim`: it holds the GPU by a ResourceClaim.
    """

    namespace: str
    pod: str
    container: str
    replica: str = ""
    marks: tuple[tuple[str, str], ...] = ()
    part: bool = False
    share_percent: int = 0
    share_bytes: int = 0
    claim: bool = False


class Entity(msgspec.Struct, frozen=True):
    """A GPU, or in MIG mode a GPU instance, with its own lines.

    `key` is `3` for a GPU, `3.1` for a GPU instance; `ids` are the device ids that kubelets know it by. The values of
    a GPU instance are those of its GPU, but for its memory and for utilization, which NVML does not tell for it.
    """

    gpu: GPUFacts
    sample: Sample
    key: str
    ids: tuple[str, ...]
    profile: str = ""
    instance: str = ""


class Extra(msgspec.Struct, frozen=True):
    """Additional labels of the lines.

    Args:
        holders: device id -> the containers that hold it. A GPU without a holder has no pod labels.
        each_holder: a shared GPU has a line for each of its holders, with the values of the whole GPU; without it such
            a GPU has one line without pod labels, since no holder uses all of what the values say.
        jobs: key of an entity -> the batch system's jobs on it, a line for each.
        hostname: "" leaves the label out.
        dashes: dashes instead of blanks in model names.
    """

    driver_version: str = ""
    hostname: str = ""
    dashes: bool = False
    holders: Mapping[str, Sequence[GPUHolder]] = {}
    jobs: Mapping[str, Sequence[str]] = {}
    each_holder: bool = False


def entities(inventory: Iterable[GPUFacts], samples: Iterable[Sample]) -> list[Entity]:
    """GPUs in order; a GPU in MIG mode with instances is listed as these, as DCGM's exporter does."""
    by_uuid = {sample.uuid: sample for sample in samples}
    found = []
    for gpu in inventory:
        sample = by_uuid.get(gpu.uuid)
        if sample is None:
            continue
        node = f"nvidia{gpu.minor}"
        if not sample.instances:
            found.append(Entity(gpu, sample, str(gpu.index), (gpu.uuid, node)))
            continue
        for instance in sample.instances:
            number = instance.gpu_instance
            devices = [device for device in gpu.mig_devices if device.gpu_instance == number]
            own = msgspec.structs.replace(
                sample,
                gpu_percent=None,
                memory_percent=None,
                engine_active=None,
                memory_total_bytes=instance.memory_total_bytes,
                memory_free_bytes=instance.memory_free_bytes,
                memory_used_bytes=instance.memory_used_bytes,
                memory_reserved_bytes=instance.memory_reserved_bytes,
            )
            # A compute instance that is a part only has the GPU instance's profile after its own: 1c.3g.40gb.
            profile = devices[0].profile.rpartition("c.")[2] if devices else ""
            ids = (*(device.uuid for device in devices), f"{node}/gi{number}")
            found.append(Entity(gpu, own, f"{gpu.index}.{number}", ids, profile, str(number)))
    return found


def lost_gpus(shown: Sequence[Entity], silent: Iterable[str], hostname: str) -> MetricFamily:
    """Return of each GPU on the PCI bus whether it is lost: NVML does not reach it, or does not list it.

    `silent`: the PCI addresses of the GPUs that NVML does not list. `hostname`: "" leaves the label out.
    """
    lost: dict[str, tuple[dict[str, str], int]] = {}
    for entity in shown:
        labels = {"gpu": str(entity.gpu.index), "UUID": entity.gpu.uuid, "pci_bus_id": bus_id(entity.gpu.pci)}
        lost[entity.gpu.pci] = (labels, int(entity.sample.lost))
    lost |= {address: ({"pci_bus_id": bus_id(address)}, 1) for address in silent}
    named = {"Hostname": hostname} if hostname else {}
    return MetricFamily(LOST, [(series(labels | named), value) for labels, value in lost.values()])


def render(fields: Sequence[ExporterField], shown: Sequence[Entity], extra: Extra) -> bytes:
    """Return the whole answer of `/metrics`."""
    return exposition(_families(fields, shown, extra))


def _families(fields: Sequence[ExporterField], shown: Sequence[Entity], extra: Extra) -> Iterator[MetricFamily]:
    added = [field for field in fields if field.type is FieldType.LABEL]
    # NB: the labels of an entity are escaped once for all fields. That is most of what a scrape costs.
    rows = [(entity, _lines(entity, added, extra)) for entity in shown]
    for field in fields:
        if field.type is FieldType.LABEL:
            continue
        values: list[tuple[Sequence[Series], float]] = []
        for entity, lines in rows:
            value = read(field, entity.gpu, entity.sample)
            if value is None:
                continue
            if field.name == XID_FIELD:
                lines = extend_all(lines, _xid_labels(value))
            values.append((lines, value))
        if values:
            yield MetricFamily(_metric(field), shared=values)


@cache
def _metric(field: ExporterField) -> Metric:
    return Metric(field.name, MetricType(field.type.value), field.help, DECIMALS)


def _lines(entity: Entity, added: Sequence[ExporterField], extra: Extra) -> list[Series]:
    """Return the labels of an entity's lines: one line for each pair of a holder and a job."""
    gpu = entity.gpu
    common = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": bus_id(gpu.pci),
        "device": f"nvidia{gpu.minor}",
        "modelName": "-".join(gpu.model.split()) if extra.dashes else gpu.model,
    }
    if entity.instance:
        common |= {"GPU_I_PROFILE": entity.profile, "GPU_I_ID": entity.instance}
    if extra.hostname:
        common["Hostname"] = extra.hostname
    common |= {field.name: read_label(field, gpu, extra.driver_version) for field in added}
    holders = sorted({holder for device in entity.ids for holder in extra.holders.get(device, ())})
    if not extra.each_holder and (len(holders) > 1 or any(holder.part or holder.replica for holder in holders)):
        holders = []
    first = series(common)
    held = [extend(first, _held(holder, common)) for holder in holders] or [first]
    jobs = extra.jobs.get(entity.key, ())
    return [extend(line, {JOB: job}) for line in held for job in jobs] if jobs else held


def _held(holder: GPUHolder, common: Mapping[str, str]) -> dict[str, str]:
    labels = {"container": holder.container, "namespace": holder.namespace, "pod": holder.pod}
    if holder.replica:
        labels["vgpu"] = holder.replica
    if not holder.marks:
        return labels
    taken = {*common, *labels, JOB, *XID_LABELS}  # a line that has a label twice is invalid
    return labels | {name: value for name, value in holder.marks if name not in taken}


def _xid_labels(value: float) -> dict[str, str]:
    """DCGM's exporter says of the last Xid what it means."""
    code = int(value)
    meaning = xid_meaning(code) or "unknown" if code else "none"
    return dict(zip(XID_LABELS, (str(code), meaning), strict=True))
