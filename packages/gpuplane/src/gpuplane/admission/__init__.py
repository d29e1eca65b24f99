"""Admission: pods that can never run are refused with the reason, and those of Kubernetes 1.3 to 1.9 are understood."""
