"""The autoscaler's settings of `gpuplane install`, checked before the first object is applied.

The autoscaler reads them when it starts. A wrong one would be found only then, by a pod that ends again and again.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from gpuplane.operator.autoscaler_install import (
    CLUSTER_NAME,
    CREDENTIALS,
    ENDPOINT,
    AutoscalerInstall,
    read_environment,
)
from kubekit.errors import InvalidInput, UsageError

_CLUSTER: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,99}")
_ROLE: Final = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+")
_REGION: Final = re.compile(r"[a-z]{2,}(-[a-z]+)+-[0-9]+")
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ISOLATED: Final = "ISOLATED_VPC"


def read_autoscaler(options: Namespace) -> AutoscalerInstall | None:
    """Return the autoscaler's settings; None for an installation without it. Raises InvalidInput for a wrong one."""
    flags = {
        "--cluster-name": options.cluster_name,
        "--cloud-endpoint": options.cloud_endpoint,
        "--cloud-role": options.cloud_role,
        "--cloud-env": options.cloud_env,
    }
    if not options.autoscaler:
        if given := [flag for flag, value in flags.items() if value]:
            raise UsageError(f"{given[0]} is a setting of the autoscaler", cure=f"--autoscaler {given[0]} ...")
        return None
    environment = read_environment(options.cloud_env)
    for flag, name, value in (
        ("--cluster-name", CLUSTER_NAME, options.cluster_name),
        ("--cloud-endpoint", ENDPOINT, options.cloud_endpoint),
    ):
        if value and environment.get(name, value) != value:
            what = f"{name} is {environment[name]!r}, and {flag} is {value!r}"
            raise InvalidInput(what, where="--cloud-env", cure=f"set {flag} only")
        environment |= {name: value} if value else {}
    _require_valid(environment, options.cloud_role or "")
    return AutoscalerInstall(environment, options.cloud_role or "")


def _require_valid(environment: Mapping[str, str], role: str) -> None:
    """Raise InvalidInput for settings with which the autoscaler would not work."""
    from gpuplane.autoscaler.settings import read_settings  # late: other installations need none of it

    cluster = environment.get(CLUSTER_NAME, "")
    if cluster and not _CLUSTER.fullmatch(cluster):
        cure = "letters, digits, hyphens, underscores and dots, as in the tags of the cluster's subnets"
        raise InvalidInput(f"{cluster!r} is no name of a cluster", where="--cluster-name", cure=cure)
    if role and not _ROLE.fullmatch(role):
        cure = "write it like arn:aws:iam::111122223333:role/NAME"
        raise InvalidInput(f"{role!r} is no ARN of a role", where="--cloud-role", cure=cure)
    _require_address(environment.get(ENDPOINT, ""))
    for name in _REGIONS:
        # A cloud with Amazon's interfaces names its regions as it likes.
        if name in environment and ENDPOINT not in environment and not _REGION.fullmatch(environment[name]):
            what = f"{name} is {environment[name]!r}, which is no region"
            raise InvalidInput(what, where="--cloud-env", cure=f"{name}=us-east-1")
    given = [name for name in CREDENTIALS if name in environment]
    missing = [name for name in CREDENTIALS[:2] if name not in environment]
    if given and missing:
        what = f"{given[0]} is set without {missing[0]}"
        raise InvalidInput(what, where="--cloud-env", cure=f"--cloud-env {missing[0]}=...")
    if environment.get(_ISOLATED, "false").lower() not in ("true", "false"):
        what = f"{_ISOLATED} is {environment[_ISOLATED]!r}"
        raise InvalidInput(what, where="--cloud-env", cure=f"{_ISOLATED}=true or {_ISOLATED}=false")
    if cluster:
        read_settings(environment)


def _require_address(text: str) -> None:
    if not text:
        return
    try:
        found = urlsplit(text)
        valid = found.scheme in ("http", "https") and bool(found.hostname) and (found.port is None or found.port > 0)
    except ValueError:
        valid = False
    if not valid:
        cure = "write it like https://HOST:PORT"
        raise InvalidInput(f"{text!r} is no address of a cloud", where="--cloud-endpoint", cure=cure)
