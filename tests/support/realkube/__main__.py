"""`make kubernetes-up`, `make kubernetes-down`: a real cluster for hand work.

    python -m tests.support.realkube build                              what `up` and the tests need, into the cache
    python -m tests.support.realkube up [--name NAME] [--no-machine]
    python -m tests.support.realkube down [--name NAME]

It lies in $GPUPLANE_HOME/kubernetes/NAME (~/.gpuplane without it). Exit codes: 0, or 3 with one line that says why.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

from deploy.image.gpuplane_image import ImageError
from deploy.image.gpuplane_image.images import composed_layers, default_cache
from gpulab.distribution import GPUPLANE
from gpulab.kubernetes import binaries
from gpulab.kubernetes.control_plane import ControlPlane
from gpulab.kubernetes.node import KubernetesNode, wait_ready
from gpulab.kubernetes.unavailable import Unavailable
from gpuplane import names
from kubekit.errors import KubekitError
from tests.support.realkube import images, workloads


def main() -> int:
    parser = argparse.ArgumentParser(prog="realkube", description="A real Kubernetes on this machine.")
    parser.add_argument("command", choices=["build", "up", "down"])
    parser.add_argument("--name", default="kubernetes", help="its name (default: %(default)s)")
    parser.add_argument("--no-machine", action="store_true", help="the control plane only, which needs no root")
    options = parser.parse_args()
    plane = ControlPlane(GPUPLANE.home() / "kubernetes" / options.name, fake_nodes=False)
    node = KubernetesNode(plane)
    try:
        if options.command == "build":
            return build()
        if options.command == "down":
            node.stop()
            plane.stop()
            return 0
        return up(plane, None if options.no_machine else node)
    except KubekitError as error:
        sys.stderr.write(f"realkube: {error}\n")
        return 3


def build() -> int:
    """Builds every set of programs, and the layers of images, so that no test's deadline has it.

    What cannot be built is said in a line each; its tests are skipped.
    """
    for name in binaries.SETS:
        try:
            binaries.build(name, say)
        except Unavailable as problem:
            say(str(problem))
    try:
        with composed_layers(default_cache()):
            pass
    except ImageError as problem:
        say(f"images cannot be made: {problem}")
    with contextlib.suppress(Unavailable):  # one test's, which says so
        workloads.notebook_layer()
    return 0


def up(plane: ControlPlane, node: KubernetesNode | None) -> int:
    """Starts the cluster and says how to use it; without a machine where there can be none, saying why."""
    plane.start(say)
    if node is not None:
        try:
            node.start(say)
            images.provide(node, say)
            wait_ready(node)
        except Unavailable as problem:
            say(f"control plane only: {problem}")
            node = None
    sys.stdout.write(f"Kubernetes {binaries.version('kubernetes')} answers on {plane.url}\n")
    sys.stdout.write(f"  export KUBECONFIG={plane.kubeconfig}\n  kubectl get nodes\n")
    if node is not None:
        sys.stdout.write(f"  gpuplane install --image {names.IMAGE} --set hostPaths.rootFS={node.host_root} --wait\n")
    sys.stdout.write("  make kubernetes-down\n")
    return 0


def say(text: str) -> None:
    sys.stderr.write(f" - {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
