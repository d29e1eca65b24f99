"""Queues with fair share, above quotas: a tree of queues with guaranteed and borrowed amounts.

`tree` and `shares` and `history` decide, without I/O; `fair` counts the pods of the scheduler's cache by queue.
"""
