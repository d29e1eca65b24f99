"""Reads the exporter's environment: the variables of the DCGM exporter that people set in a ClusterPolicy.

Invariant: no setting is ignored in silence. The log names settings without effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from kubekit.errors import InvalidInput

PREFIX: Final = "DCGM_EXPORTER_"
COLLECTORS: Final = "DCGM_EXPORTER_COLLECTORS"
LISTEN: Final = "DCGM_EXPORTER_LISTEN"
KUBERNETES: Final = "DCGM_EXPORTER_KUBERNETES"
NO_HOSTNAME: Final = "DCGM_EXPORTER_NO_HOSTNAME"
DASHES: Final = "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME"
POD_LABELS: Final = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"
POD_UID: Final = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID"
ALLOWED_LABELS: Final = "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"
EACH_HOLDER: Final = "KUBERNETES_VIRTUAL_GPUS"
RESOURCE_NAMES: Final = "NVIDIA_RESOURCE_NAMES"
JOBS_DIR: Final = "DCGM_HPC_JOB_MAPPING_DIR"
_TRUE, _FALSE = ("1", "t", "true"), ("0", "f", "false", "")
# Lists that lie in the image of NVIDIA's exporter; the default list stands for them.
_SHIPPED: Final = "/etc/dcgm-exporter/"
_SHIPPED_NAMES: Final = ("default-counters.csv", "dcp-metrics-included.csv")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`collectors`: the CSV file, None for the default list. `address` and `port`: where to listen, "" and None when
    not said. `jobs_dir`: the batch system's directory on the host, "" for none. `pod_labels`, `pod_uid`: whether they
    are on the lines of who holds a GPU, `allowed_labels` which of them, all without. `each_holder`: a shared GPU has a
    line for each of its holders. `idle`: variables without effect.
    """

    collectors: Path | None = None
    address: str = ""
    port: int | None = None
    pods: bool = True
    hostname: bool = True
    dashes: bool = False
    resources: tuple[str, ...] = ()
    jobs_dir: str = ""
    pod_labels: bool = False
    pod_uid: bool = False
    allowed_labels: tuple[re.Pattern[str], ...] = ()
    each_holder: bool = False
    idle: tuple[str, ...] = ()


def read(environment: Mapping[str, str], config: Path | None = None) -> Settings:
    """The settings; `config`, from the command line, goes before the environment. Raises InvalidInput."""
    known = {COLLECTORS, LISTEN, KUBERNETES, NO_HOSTNAME, DASHES, POD_LABELS, POD_UID, ALLOWED_LABELS}
    address, port = _listen(environment.get(LISTEN, ""))
    names = environment.get(RESOURCE_NAMES, "").split(",")
    return Settings(
        collectors=config or _collectors(environment.get(COLLECTORS, "")),
        address=address,
        port=port,
        pods=_flag(environment, KUBERNETES, default=True),
        hostname=not _flag(environment, NO_HOSTNAME),
        dashes=_flag(environment, DASHES),
        resources=tuple(name.strip() for name in names if name.strip()),
        jobs_dir=environment.get(JOBS_DIR, ""),
        pod_labels=_flag(environment, POD_LABELS),
        pod_uid=_flag(environment, POD_UID),
        allowed_labels=_patterns(environment.get(ALLOWED_LABELS, "")),
        each_holder=_flag(environment, EACH_HOLDER),
        idle=tuple(sorted(name for name in environment if name.startswith(PREFIX) and name not in known)),
    )


def _collectors(value: str) -> Path | None:
    path = Path(value)
    shipped = value.startswith(_SHIPPED) and path.name in _SHIPPED_NAMES and not path.exists()
    return None if not value or shipped else path


def _listen(value: str) -> tuple[str, int | None]:
    """`:9400`, `10.0.0.1:9400` or `[::1]:9400`."""
    if not value:
        return "", None
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise InvalidInput(f"{value!r} is no address to listen on", where=LISTEN, cure="write :9400 or ADDRESS:9400")
    return host.strip("[]"), int(port)


def _patterns(value: str) -> tuple[re.Pattern[str], ...]:
    """Regular expressions with commas between them."""
    found = []
    for text in filter(None, (part.strip() for part in value.split(","))):
        try:
            found.append(re.compile(text))
        except re.error as error:
            what = f"{text!r} is no regular expression: {error}"
            raise InvalidInput(what, where=ALLOWED_LABELS, cure="write for example ^app$,^team$") from error
    return tuple(found)


def _flag(environment: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    if name not in environment:
        return default
    value = environment[name].strip().lower()
    if value not in _TRUE + _FALSE:
        raise InvalidInput(f"{environment[name]!r} is neither true nor false", where=name, cure="write true or false")
    return value in _TRUE
