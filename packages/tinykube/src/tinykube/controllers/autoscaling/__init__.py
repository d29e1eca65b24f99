"""The autoscaler of kube-controller-manager: HorizontalPodAutoscalers and the metrics that they read."""

from tinykube.controllers.autoscaling.controller import AutoscalingController

__all__ = ["AutoscalingController"]
