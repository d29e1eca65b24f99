"""Light nodes: thousands in one process, which keep the protocol and drop the processes.

A light node registers, renews its lease, runs pods and offers devices like a full one. The containers of gpuplane's own
image are the production operands, run as coroutines over a small real root; other images have nothing to run and just
are.
"""

from gpulab.light.nodes import LightNodes, run_light_nodes

__all__ = ["LightNodes", "run_light_nodes"]
