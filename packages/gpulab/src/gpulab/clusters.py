"""Embedded clusters of gpuplane: `tinykube.cluster` with gpuplane as the distribution."""

from __future__ import annotations

from functools import partial

from gpulab.distribution import GPUPLANE
from tinykube import cluster

up = partial(cluster.up, GPUPLANE)
require_startable = partial(cluster.require_startable, GPUPLANE)
down = partial(cluster.down, GPUPLANE)
load = partial(cluster.load, GPUPLANE)
clusters = partial(cluster.clusters, GPUPLANE)
