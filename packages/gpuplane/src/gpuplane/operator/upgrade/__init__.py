"""Upgrades of the driver: which driver a node shall run, who may be next, and what is done until it runs there."""
