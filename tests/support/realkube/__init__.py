"""What tests do on a real Kubernetes of `gpulab.kubernetes`: make images for its machine, compare all it stores, read
its audit log, and live through whole installations.
"""
