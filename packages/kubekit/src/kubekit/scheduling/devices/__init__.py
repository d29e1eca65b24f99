"""Device claims (dynamic resource allocation) as kube-scheduler sees them: which devices of a node a pod would get."""
