"""The CronJob controller: Jobs by the clock."""

from tinykube.controllers.cronjob.controller import CronJobController

__all__ = ["CronJobController"]
