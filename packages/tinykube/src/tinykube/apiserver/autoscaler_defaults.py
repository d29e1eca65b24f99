"""The defaults of a HorizontalPodAutoscaler: one metric, and the rules of each direction where it has a behavior.

Source: the API documentation of autoscaling/v2. The window of scaling down has no default here: the controller has one.
"""

from __future__ import annotations

from typing import Any, Final

Object = dict[str, Any]
_PERCENT: Final = {"type": "Percent", "value": 100, "periodSeconds": 15}
_PODS: Final = {"type": "Pods", "value": 4, "periodSeconds": 15}
_CPU_PERCENT: Final = 80


def fill_autoscaler(obj: Object) -> None:
    """Fill in the defaults of `spec`, in place."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        spec = obj["spec"] = {}
    if spec.get("minReplicas") is None:
        spec["minReplicas"] = 1
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": _CPU_PERCENT}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    if isinstance(spec.get("behavior"), dict):
        spec["behavior"] = filled_behavior(spec["behavior"])


def filled_behavior(behavior: Object) -> Object:
    """Return a behavior with all fields of its rules."""
    up, down = behavior.get("scaleUp"), behavior.get("scaleDown")
    window = {"stabilizationWindowSeconds": 0}
    return {
        **behavior,
        "scaleUp": _rules({**window, "selectPolicy": "Max", "policies": [dict(_PODS), dict(_PERCENT)]}, up),
        "scaleDown": _rules({"selectPolicy": "Max", "policies": [dict(_PERCENT)]}, down),
    }


def _rules(default: Object, own: Any) -> Any:
    if own is None:
        return default
    if not isinstance(own, dict):
        return own  # validation refuses it
    return default | {name: value for name, value in own.items() if value is not None}
