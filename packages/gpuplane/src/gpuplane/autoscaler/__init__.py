"""The autoscaler: which nodes to buy for pods that wait. Pure decisions on plain data so far; nothing launches yet."""
