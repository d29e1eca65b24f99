"""The public parsers: what users, tenants and other programs write, and who may be wrong about it.

A target reads any bytes and returns, or raises an error of kubekit's tree, whose message is for people. Every other
exception, and a reader that takes longer than SECONDS, is a finding.
"""

from __future__ import annotations

import contextlib
import datetime
import tempfile
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
from gpuplane.limits import GpuLimit, Limits, Owner, ShareStore
from gpuplane.limits.decide import EscapeState, decide
from gpuplane.limits.facts import Observation
from gpuplane.scheduler import wire
from gpuplane.scheduler.gangs.gang import round_of
from gpuplane.scheduler.pods.movable import move_times, order_of
from gpuplane.scheduler.quota import parse_quotas, parse_settings
from gpuplane.sharing.assignment import of_pod
from kubekit.api.core import Container, Node, Pod, PodSpec, Resources
from kubekit.api.meta import ObjectMeta
from kubekit.cel import CelError, CelProgram, CelSyntaxError
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


def _cel(text: str) -> None:
    """As a selector of a tenant's resource claim is read."""
    device = {"driver": "gpu.example.com", "attributes": {"d": {"model": "T4", "index": 0}}, "capacity": {"d": {}}}
    with contextlib.suppress(CelSyntaxError, CelError):
        CelProgram(text, ("device",))({"device": device})


def _pod_annotations(data: bytes) -> None:
    said = decode_json(data, dict[str, str])
    limits = {names.VCUDA_CORE: "30", names.VCUDA_MEMORY: "20"}
    container = Container(name="main", resources=Resources(limits=limits))
    pod = Pod(
        metadata=ObjectMeta(name="p", namespace="ml", annotations=said),
        spec=PodSpec(node_name="n", containers=(container,)),
    )
    round_of(said)
    order_of(said)
    move_times(said.get(names.MOVED_ANNOTATION, ""))
    of_pod(pod)


def _usage_page(data: bytes) -> None:
    """As the agent of a node reads the page that a container writes."""
    with tempfile.TemporaryDirectory() as folder:
        store = ShareStore(Path(folder))
        place = store.write("x", Limits((GpuLimit(uuid="GPU-0", core=30, memory_bytes=1 << 30),)), Owner(name="a"))
        (place / "usage").write_bytes(data)
        decide(EscapeState(), Observation(at_ns=0, shares=store.all()))
        store.mend()
        _, plan = decide(EscapeState(), Observation(at_ns=1, shares=store.all()))
        for correction in plan.corrections:
            store.correct(correction)
        for freed in plan.freed:
            store.free(freed)
        store.vacate("x")
        assert store.read("x").slots == ()


TARGETS: Final[dict[str, Target]] = {
    "cel": _text(_cel),
    "certificates": _certificates,
    "check": _text(check_text),
    "exporter-fields": _text(parse_fields),
    "extender": _extender,
    "feature-rules": lambda data: parse_rules(data, "f"),
    "json": decode_json,
    "plugin-config": load_plugin_config,
    "pod-annotations": _pod_annotations,
    "quotas": _text(parse_quotas),
    "quota-settings": _text(parse_settings),
    "review": _review,
    "scheduler-config": parse_scheduler_config,
    "upgrade-record": _text(_upgrade),
    "usage-page": _usage_page,
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
