"""Kubernetes' own end-to-end tests against the embedded cluster."""
