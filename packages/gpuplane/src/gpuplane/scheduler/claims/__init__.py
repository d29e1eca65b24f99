"""Claims of pods: for volumes, and for devices by DRA.

The watches feed `kubekit.scheduling` with claims and what may satisfy them; the bindings write what was decided before
the pod is bound (`prebinding`).
"""
