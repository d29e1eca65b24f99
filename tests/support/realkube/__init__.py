"""Support for tests on a real Kubernetes of `gpulab.kubernetes`: make images for its machine, compare its objects, read
its audit log, and live through whole installations.
"""
