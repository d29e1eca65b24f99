"""The public parsers: what users, tenants and other programs write, and who may be wrong about it.

A target reads any bytes and returns, or raises an error of kubekit's tree, whose message is for people. Every other
exception, and a reader that takes longer than SECONDS, is a finding.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpuplane import names
from gpuplane.admission.review import answer, mutate, take_over_pod, validate
from gpuplane.api.manifests import check_text
from gpuplane.api.pluginconfig import load as load_plugin_config
from gpuplane.api.upgrade import upgrade_record
from gpuplane.discovery.sources.custom import parse as parse_rules
from gpuplane.exporter.choice import parse as parse_fields
from gpuplane.scheduler import wire
from gpuplane.scheduler.quota import parse_quotas, parse_settings
from kubekit.api.core import Node
from kubekit.api.meta import ObjectMeta
from kubekit.documents import decode_json
from kubekit.errors import KubekitError
from kubekit.kube.server_certificates import CertificatePlan, read, why_renew
from kubekit.yaml_documents import load_all_yaml
from tinykube.scheduler.config_file import parse as parse_scheduler_config

CORPUS: Final = Path(__file__).parent / "corpus"
SECONDS: Final = 10.0
NOW: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
PLAN: Final = CertificatePlan("test", ("a.b.svc",), lasting=True)
Target = Callable[[bytes], object]


def _text(parse: Callable[[str], object]) -> Target:
    return lambda data: parse(data.decode(errors="replace"))


def _review(data: bytes) -> None:
    for say in (mutate, validate, lambda asked: take_over_pod(asked, "image")):
        answer(data, say)


def _extender(data: bytes) -> None:
    for parse in (wire.filter_args, wire.bind_args, wire.preempt_args):
        try:
            parse(data)
        except KubekitError:
            continue


def _upgrade(text: str) -> object:
    return upgrade_record(Node(metadata=ObjectMeta(name="n", annotations={names.UPGRADE_RECORD_ANNOTATION: text})))


def _certificates(data: bytes) -> str:
    return why_renew(read(dict.fromkeys(("ca.crt", "tls.crt", "tls.key", "ca.key"), data)), PLAN, NOW)


TARGETS: Final[dict[str, Target]] = {
    "certificates": _certificates,
    "check": _text(check_text),
    "exporter-fields": _text(parse_fields),
    "extender": _extender,
    "feature-rules": lambda data: parse_rules(data, "f"),
    "json": decode_json,
    "plugin-config": load_plugin_config,
    "quotas": _text(parse_quotas),
    "quota-settings": _text(parse_settings),
    "review": _review,
    "scheduler-config": parse_scheduler_config,
    "upgrade-record": _text(_upgrade),
    "yaml": load_all_yaml,
}


class SlowReader(Exception):
    """A reader took longer than SECONDS."""


def attack(target: Target, data: bytes) -> None:
    """Read the bytes. Raises what is a finding."""
    began = time.monotonic()
    with contextlib.suppress(KubekitError):  # refused, in words
        target(data)
    if (took := time.monotonic() - began) > SECONDS:
        raise SlowReader(f"{took:.1f} s for {len(data)} bytes")


def corpus(name: str, folder: Path = CORPUS) -> list[Path]:
    """Return the files that a target starts from: examples, and what was once a finding."""
    return sorted(path for path in (folder / name).glob("*") if path.is_file())
