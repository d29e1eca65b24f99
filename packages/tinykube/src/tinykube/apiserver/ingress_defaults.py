"""Admission of Ingresses: the default class.

Source: plugin/pkg/admission/network/defaultingressclass of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tinykube.apiserver.hooks import Object
from tinykube.apiserver.storage_defaults import default_class

GROUP: Final = "networking.k8s.io"
INGRESSES: Final = "ingresses"
QUALIFIED: Final = f"{INGRESSES}.{GROUP}"
CLASSES: Final = "ingressclasses"
_IS_DEFAULT: Final = ("ingressclass.kubernetes.io/is-default-class",)
_OLD_CLASS: Final = "kubernetes.io/ingress.class"


def fill_class(ingress: Object, classes: Iterable[Object]) -> None:
    """Give an Ingress that names no class the default one. An annotation names a class too."""
    spec = ingress.setdefault("spec", {})
    if not isinstance(spec, dict):
        return  # validation refuses it
    has_class = spec.get("ingressClassName") is not None or _OLD_CLASS in (ingress["metadata"].get("annotations") or {})
    if not has_class and (name := default_class(classes, _IS_DEFAULT)):
        spec["ingressClassName"] = name
