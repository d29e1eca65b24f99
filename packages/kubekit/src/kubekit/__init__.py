"""A Kubernetes toolkit: client, informers and controllers; the protocols of a node; the pure model of kube-scheduler.

It knows no GPU. Nothing is imported here, so that a program pays only for what it uses.
"""
