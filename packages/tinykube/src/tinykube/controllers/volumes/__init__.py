"""Volumes and claims: binding, release, reclaim and protection."""

from tinykube.controllers.volumes.controller import VolumeController

__all__ = ["VolumeController"]
