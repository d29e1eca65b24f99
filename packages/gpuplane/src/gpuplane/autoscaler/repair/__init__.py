"""Repair of nodes that stay broken: a restart first where that may help, then another node."""
