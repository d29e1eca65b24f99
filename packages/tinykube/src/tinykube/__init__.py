"""The embedded Kubernetes: API server, controllers, scheduler, kubelet, and the life of a cluster of them."""
