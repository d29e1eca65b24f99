"""Kubernetes' own kinds as Structs, quantities and label values."""
