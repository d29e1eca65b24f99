"""gpuplane: from bare machines to a shared GPU cluster on Kubernetes.

`gpuplane.status()` is the command of this name for Python and notebooks.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers read it, without importing typing
if TYPE_CHECKING:
    from pathlib import Path

    from gpuplane.cli.status_report import StatusReport

__version__ = "0.1.0"


def status(
    context: str | None = None, *, kubeconfig: Path | str | None = None, selector: str = "", namespace: str = ""
) -> StatusReport:
    """Return the state of a cluster's GPUs: its nodes with what they wait for, its models, the pods that wait.

    A notebook displays the answer as tables; its repr is the page of `gpuplane status`.

    Args:
        context: of the kubeconfig; its current context by default.
        kubeconfig: a file; by default $KUBECONFIG, ~/.kube/config, or the service account of a pod.
        selector: labels of nodes, as `pool=t4-share`.
        namespace: only its pods are listed.

    Raises KubekitError where the cluster cannot be asked, or has no gpuplane: its text says what, where and the cure.
    """
    from pathlib import Path  # late, as the next: every operand imports this module

    from gpuplane.cli.status_report import read_status

    return read_status(context, Path(kubeconfig) if kubeconfig is not None else None, selector, namespace)
