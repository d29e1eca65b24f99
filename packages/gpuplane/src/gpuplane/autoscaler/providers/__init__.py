"""Clouds: their instance types and prices."""
