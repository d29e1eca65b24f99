"""The embedded cluster's scheduler: kube-scheduler's filters, scores, preemption, extenders and words."""

from gpuplane.simulator.scheduler.config import SchedulerConfig, load
from gpuplane.simulator.scheduler.scheduler import Scheduler

__all__ = ["Scheduler", "SchedulerConfig", "load"]
