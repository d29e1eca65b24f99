"""The columns of each built-in kind in `kubectl get`: kubectl's own, made by the server as Kubernetes does."""

from tinykube.apiserver.printers.access import DEFAULT
from tinykube.apiserver.printers.access import PRINTERS as _ACCESS
from tinykube.apiserver.printers.base import Object, Printer, TableColumn
from tinykube.apiserver.printers.cluster import PRINTERS as _CLUSTER
from tinykube.apiserver.printers.workloads import PRINTERS as _WORKLOADS
from tinykube.apiserver.printers.workloads import pod_status

#: Printers by (group, plural).
PRINTERS: dict[tuple[str, str], Printer] = {**_WORKLOADS, **_CLUSTER, **_ACCESS}

__all__ = ["DEFAULT", "PRINTERS", "Object", "Printer", "TableColumn", "pod_status"]
