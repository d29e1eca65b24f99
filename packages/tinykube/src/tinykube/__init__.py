"""The embedded cluster: what stands in for Kubernetes, its nodes and their GPUs on one machine."""
