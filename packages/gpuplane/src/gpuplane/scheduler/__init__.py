"""The scheduler extender: kube-scheduler asks it where pods with GPUs fit, and lets it bind them.

See docs/components/scheduler.md.
"""

from gpuplane.scheduler.component import run

__all__ = ["run"]
