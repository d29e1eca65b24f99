"""A cluster of any make, seen only as clients see it: embedded, real, or a user's own by its kubeconfig.

`choice` starts the cluster that `--cluster` names; `api` calls it; `player` plays its nodes; `scenario` records its
answers and compares them with the answers of a real cluster.
"""
