"""The error of everything here that a machine lacks."""

from __future__ import annotations

from kubekit.errors import Terminal


class Unavailable(Terminal):
    """Something that a real cluster needs is not on this machine. The cure says how to get it."""
