"""The pure model of kube-scheduler: what a pod requests, filters, scores, topology, preemption, a cache."""
