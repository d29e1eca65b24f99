"""All checks, in the order in which they are printed: what others rest on comes first."""

from __future__ import annotations

from typing import Final

from gpuplane.cli.doctor.checks.api_server import API_SERVER
from gpuplane.cli.doctor.checks.clocks import CLOCKS
from gpuplane.cli.doctor.checks.components import COMPONENTS
from gpuplane.cli.doctor.checks.definitions import DEFINITIONS
from gpuplane.cli.doctor.checks.extender import EXTENDER
from gpuplane.cli.doctor.checks.gpus import GPUS
from gpuplane.cli.doctor.checks.leases import LEASES
from gpuplane.cli.doctor.checks.operands import OPERANDS
from gpuplane.cli.doctor.checks.policy import POLICY
from gpuplane.cli.doctor.checks.quotas import QUOTAS
from gpuplane.cli.doctor.checks.webhooks import WEBHOOKS
from gpuplane.cli.doctor.finding import DoctorCheck

CHECKS: Final[tuple[DoctorCheck, ...]] = (
    *(API_SERVER, DEFINITIONS, COMPONENTS, LEASES, POLICY, OPERANDS),
    *(GPUS, CLOCKS, EXTENDER, WEBHOOKS, QUOTAS),
)
