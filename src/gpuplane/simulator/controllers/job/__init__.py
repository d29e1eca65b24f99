"""The Job controller: pods that run to their end."""

from gpuplane.simulator.controllers.job.controller import JobController

__all__ = ["JobController"]
