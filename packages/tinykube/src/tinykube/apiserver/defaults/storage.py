"""Sets the defaults of volumes, their claims and their classes."""

from __future__ import annotations

from tinykube.apiserver.defaults.filling import Object, fill, spec_of


def claim(obj: Object) -> None:
    spec = spec_of(obj)
    fill(spec, volumeMode="Filesystem")
    # Both names mean the same; the old one is set for old readers.
    if spec.get("dataSource") and not spec.get("dataSourceRef"):
        spec["dataSourceRef"] = dict(spec["dataSource"])
    elif spec.get("dataSourceRef") and not spec.get("dataSource") and not spec["dataSourceRef"].get("namespace"):
        spec["dataSource"] = dict(spec["dataSourceRef"])
    if not obj.get("status"):
        obj["status"] = {"phase": "Pending"}


def volume_object(obj: Object) -> None:
    fill(spec_of(obj), volumeMode="Filesystem", persistentVolumeReclaimPolicy="Retain")
    if not obj.get("status"):
        obj["status"] = {"phase": "Pending"}


def storage_class(obj: Object) -> None:
    fill(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")
