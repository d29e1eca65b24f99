"""A real Kubernetes on one machine, for tests and for hand work: built from published Go modules, run as processes.

`binaries` builds etcd, Kubernetes, containerd and helm once; `control_plane` runs etcd, API server, controller manager
and scheduler, as anybody; `node` adds a machine with containerd and kubelet in namespaces of its own, as root.
"""
