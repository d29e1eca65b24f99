"""One reading of one GPU from NVML; what a model does not offer stays None."""

from __future__ import annotations

from typing import Any

import pynvml

from gpuplane.hardware import mig
from gpuplane.hardware.binding import ask, fields, memory
from gpuplane.hardware.facts import MigMode, Sample

_ALL_LINKS = 0xFFFFFFFF  # scope of the NVLink fields: the sum over all links


def read_sample(uuid: str, handle: Any) -> Sample:
    """Reads everything at once. Raises GpuLost when the GPU is."""
    utilisation = ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    encoder = ask(pynvml.nvmlDeviceGetEncoderUtilization, handle)
    decoder = ask(pynvml.nvmlDeviceGetDecoderUtilization, handle)
    power = ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    limit = ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    total, free, used, reserved = memory(handle)
    remapped = ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    memory_temperature, sent, received = fields(
        handle,
        [
            pynvml.NVML_FI_DEV_MEMORY_TEMP,
            (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
            (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
        ],
    )
    return Sample(
        uuid=uuid,
        gpu_percent=utilisation.gpu if utilisation else None,
        memory_percent=utilisation.memory if utilisation else None,
        encoder_percent=encoder[0] if encoder else None,
        decoder_percent=decoder[0] if decoder else None,
        sm_clock_mhz=ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        temperature_celsius=ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        memory_temperature_celsius=memory_temperature,
        power_watts=None if power is None else power / 1000,
        power_limit_watts=None if limit is None else limit / 1000,
        energy_millijoules=ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle),
        memory_total_bytes=total,
        memory_free_bytes=free,
        memory_used_bytes=used,
        memory_reserved_bytes=reserved,
        pcie_replays=ask(pynvml.nvmlDeviceGetPcieReplayCounter, handle),
        pcie_tx_bytes_per_second=_pcie(handle, pynvml.NVML_PCIE_UTIL_TX_BYTES),
        pcie_rx_bytes_per_second=_pcie(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES),
        nvlink_bytes=None if sent is None or received is None else (sent + received) * 1024,
        remapped_rows_correctable=remapped[0] if remapped else None,
        remapped_rows_uncorrectable=remapped[1] if remapped else None,
        row_remap_failure=bool(remapped[3]) if remapped else None,
        ecc_uncorrected_volatile=_ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
        ecc_corrected_volatile=_ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
        ecc_uncorrected_aggregate=_ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC),
        ecc_corrected_aggregate=_ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_AGGREGATE_ECC),
        vgpu_license=0,
        instances=mig.samples(handle) if mig.modes(handle)[0] is MigMode.ENABLED else (),
    )


def _pcie(handle: Any, counter: int) -> int | None:
    kilobytes = ask(pynvml.nvmlDeviceGetPcieThroughput, handle, counter)
    return None if kilobytes is None else kilobytes * 1024


def _ecc(handle: Any, kind: int, since: int) -> int | None:
    count: int | None = ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, since)
    return count
