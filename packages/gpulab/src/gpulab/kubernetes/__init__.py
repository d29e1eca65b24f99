"""A real Kubernetes on one machine: built from published Go modules, run as processes.

`binaries` builds etcd, Kubernetes and containerd once; `control_plane` runs etcd, API server, controller manager and
scheduler, as any user; `node` adds a machine with containerd and kubelet in namespaces of its own, as root.
"""
