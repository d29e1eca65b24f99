"""The CronJob controller: Jobs by the clock."""

from gpuplane.simulator.controllers.cronjob.controller import CronJobController

__all__ = ["CronJobController"]
