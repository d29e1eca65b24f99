"""Node and GPU features as node labels: what node feature discovery and GPU feature discovery do."""

from gpuplane.discovery.features import Features
from gpuplane.discovery.gpu import GpuFacts, gpu_labels
from gpuplane.discovery.labels import feature_labels
from gpuplane.discovery.sources import observe
from gpuplane.discovery.worker import run, run_gpu, uninstall

__all__ = ["Features", "GpuFacts", "feature_labels", "gpu_labels", "observe", "run", "run_gpu", "uninstall"]
