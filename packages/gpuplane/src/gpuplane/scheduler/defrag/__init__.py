"""Defragmentation: moves pods, so that a pod that waits gets room, or a whole node becomes free.

A move evicts a pod after a place for its replacement is reserved. `candidates` says which pods may be moved, `search`
finds the fewest moves and proves each with the filters and the policy that place the replacement.
"""
