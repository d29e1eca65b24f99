"""Kubernetes kinds and configuration files as Structs, their CRDs, and validation that reports every error at once."""
