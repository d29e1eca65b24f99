"""The Deployment controller: ReplicaSets by revision, and the way from one to the next."""

from tinykube.controllers.deployment.controller import DeploymentController

__all__ = ["DeploymentController"]
