"""Endpoints and EndpointSlices of Services, by their selectors or from Endpoints that users write."""

from tinykube.controllers.endpoints.controller import EndpointsController
from tinykube.controllers.endpoints.mirroring import MirroringController

__all__ = ["EndpointsController", "MirroringController"]
