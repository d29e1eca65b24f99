"""The embedded cluster's scheduler: kube-scheduler's filters, scores, preemption, extenders and words."""

from tinykube.scheduler.config import SchedulerConfig, load
from tinykube.scheduler.scheduler import Scheduler

__all__ = ["Scheduler", "SchedulerConfig", "load"]
