"""The Job controller: pods that run to their end."""

from tinykube.controllers.job.controller import JobController

__all__ = ["JobController"]
