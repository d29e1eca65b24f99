"""gpuplane: from bare machines to a shared GPU cluster on Kubernetes."""

__version__ = "0.1.0"
