"""Volumes and claims: binding, release, reclaim and protection; claims of ephemeral volumes."""

from tinykube.controllers.volumes.attributes import AttributesClassController
from tinykube.controllers.volumes.controller import VolumeController
from tinykube.controllers.volumes.ephemeral import EphemeralVolumeController

__all__ = ["AttributesClassController", "EphemeralVolumeController", "VolumeController"]
