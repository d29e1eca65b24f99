"""The StatefulSet controller: pods with names that stay, made and replaced in order."""

from tinykube.controllers.statefulset.controller import StatefulSetController

__all__ = ["StatefulSetController"]
