"""The CSI drivers of volumes. Kubernetes has moved its own volume plugins to drivers, whose names count.

Source: the migration of in-tree volume plugins, of Kubernetes 1.31.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

# (driver, source of a PersistentVolume or of a pod's volume, provisioner of a StorageClass)
_MOVED: Final = (
    ("ebs.csi.aws.com", "awsElasticBlockStore", "kubernetes.io/aws-ebs"),
    ("pd.csi.storage.gke.io", "gcePersistentDisk", "kubernetes.io/gce-pd"),
    ("disk.csi.azure.com", "azureDisk", "kubernetes.io/azure-disk"),
    ("file.csi.azure.com", "azureFile", "kubernetes.io/azure-file"),
    ("cinder.csi.openstack.org", "cinder", "kubernetes.io/cinder"),
    ("csi.vsphere.vmware.com", "vsphereVolume", "kubernetes.io/vsphere-volume"),
    ("pxd.portworx.com", "portworxVolume", "kubernetes.io/portworx-volume"),
)
_OF_PROVISIONER: Final = {provisioner: driver for driver, _, provisioner in _MOVED}
# The sources that kube-scheduler counts for a node's limit, with the field that names the volume.
_COUNTED: Final = {
    "awsElasticBlockStore": "volumeID",
    "gcePersistentDisk": "pdName",
    "azureDisk": "diskURI",
    "cinder": "volumeID",
    "portworxVolume": "volumeID",
}
_UNCOUNTED: Final = frozenset(driver for driver, source, _ in _MOVED if source not in _COUNTED)


def driver_of_volume(spec: Mapping[str, Any]) -> str:
    """Return the driver of a PersistentVolume by its `spec`; empty for a volume of none, such as NFS."""
    csi = spec.get("csi")
    if csi is not None:
        return sys.intern(str(csi.get("driver") or ""))
    return next((driver for driver, source, _ in _MOVED if spec.get(source) is not None), "")


def driver_of_provisioner(provisioner: str) -> str:
    """Return the driver of a StorageClass's provisioner: itself, unless it is one of Kubernetes's own."""
    return sys.intern(_OF_PROVISIONER.get(provisioner, provisioner))


def attached_by(spec: Mapping[str, Any]) -> tuple[str, str]:
    """Return driver and handle of a volume that counts for a node's limit; empty for one that does not.

    Args:
        spec: of a PersistentVolume, or a volume of a pod.
    """
    csi = spec.get("csi")
    if csi is not None and csi.get("volumeHandle"):
        return sys.intern(str(csi.get("driver") or "")), str(csi["volumeHandle"])
    for driver, source, _ in _MOVED:
        disk = spec.get(source)
        if disk is not None and source in _COUNTED:
            # NB: the id of an EBS volume may be written with its zone, as aws://zone/vol-1.
            return driver, str(disk.get(_COUNTED[source]) or "").rpartition("/")[2]
    return "", ""


def attached_of_provisioner(provisioner: str) -> str:
    """Return the driver that counts for a claim whose class has this provisioner; empty for none."""
    if provisioner in _OF_PROVISIONER and _OF_PROVISIONER[provisioner] in _UNCOUNTED:
        return ""
    return driver_of_provisioner(provisioner)
