"""The embedded cluster's scheduler: kube-scheduler's filters, scores, preemption, extenders and words."""

from tinykube.scheduler.config import SchedulerConfig
from tinykube.scheduler.config_file import load, parse
from tinykube.scheduler.scheduler import Scheduler

__all__ = ["Scheduler", "SchedulerConfig", "load", "parse"]
