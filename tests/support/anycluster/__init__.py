"""A cluster of any make, seen only as clients see it: embedded, real, or somebody's own by its kubeconfig.

`choice` starts what `--cluster` names; `api` calls it; `player` plays nodes for it; `scenario` keeps what was seen of
it and compares it with what a real cluster said.
"""
