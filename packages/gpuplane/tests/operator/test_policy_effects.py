"""The table of fields that act, against the operator: each field is changed, and the results are compared."""

from __future__ import annotations

import copy
import enum
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import msgspec

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.api.effects import acts
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.operator.drivers import assign, choices, driver_groups
from gpuplane.operator.exporter_objects import wants_monitor
from gpuplane.operator.mps import follows_mps
from gpuplane.operator.operands import manifests
from gpuplane.operator.policy import is_selected
from gpuplane.operator.upgrade.facts import rules_for
from kubekit.api.core import Node
from kubekit.api.meta import ObjectMeta

# Where a field can act: with a driver's image and without, with each part that has to be switched on.
IMAGE = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "570.133.20"}
BASES: tuple[dict[str, Any], ...] = (
    {},
    {
        "driver": IMAGE
        | {
            "repoConfig": {"configMapName": "r"},
            "certConfig": {"name": "c"},
            "licensingConfig": {"configMapName": "l"},
            "virtualTopology": {"config": "t"},
            "rdma": {"enabled": True},
            "kernelModuleConfig": {"name": "k"},
            "startupProbe": {},
            "upgradePolicy": {"waitForCompletion": {}, "podDeletion": {}, "drain": {}},
        },
        "devicePlugin": {"config": {"name": "configs"}},
        "dcgmExporter": {
            "serviceMonitor": {"enabled": True},
            "config": {"name": "m"},
            "hpcJobMapping": {"enabled": True},
        },
    },
    {"driver": IMAGE | {"licensingConfig": {"secretName": "l"}, "usePrecompiled": True}},
    {"daemonsets": {"updateStrategy": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "1"}}},
)
CONFIGS = {"shared": "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"}


def node(name: str, kernel: str) -> Node:
    labels = {
        names.OS_ID_LABEL: "ubuntu",
        names.OS_VERSION_LABEL: "22.04",
        names.OS_MAJOR_LABEL: "22",
        names.KERNEL_VERSION_LABEL: kernel,
        names.PCI_PRESENT_LABELS[0]: "true",
    }
    return Node(metadata=ObjectMeta(name=name, labels=labels))


NODES = (node("a", "5.15.0-97-generic"), node("b", "5.15.0-91-generic"))
DRIVERS = (NVIDIADriver(metadata=ObjectMeta(name="pool")),)


def made(spec: ClusterPolicySpec) -> Any:
    """Everything that the operator decides from a policy, as plain data."""
    found = choices(spec, DRIVERS)
    groups = driver_groups(NODES, found, assign(NODES, found))
    config = spec.device_plugin.config
    return msgspec.to_builtins(
        (
            manifests(
                spec,
                groups,
                image="i",
                owner={"name": "p"},
                keys=defaultdict(lambda: ("key",)),
                monitored=wants_monitor(spec),
            ),
            rules_for(spec.driver.upgrade_policy, 100),
            spec.operator.not_ready_taint,
            spec.operator.set_scheduler_name,  # the webhook reads it
            [is_selected(node.metadata.labels, spec) for node in NODES],
            (config.name, follows_mps(CONFIGS, config.default, {})) if config is not None else None,
        )
    )


def leaves(kind: type[msgspec.Struct], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, type) of every field."""
    for field in msgspec.structs.fields(kind):
        kinds = [kind for kind in alternatives(field.type) if isinstance(kind, type)]
        inner = next((kind for kind in kinds if issubclass(kind, msgspec.Struct)), None)
        if inner is not None:
            yield from leaves(inner, (*path, field.encode_name))
        else:
            yield (*path, field.encode_name), field.type


def alternatives(kind: Any) -> tuple[Any, ...]:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_args(kind) if get_origin(kind) not in (None, tuple, dict, list) else (kind,)


def values(kind: Any) -> Iterator[Any]:
    """Candidates for a field of a type; decoding refuses those that it cannot have."""
    for choice in alternatives(kind):
        if isinstance(choice, type) and issubclass(choice, enum.Enum):
            yield from (member.value for member in choice)
    yield from (
        True,
        False,
        7,
        8,
        [],
        {},
        "shared",
        "absent",
        "25%",
        "/x",
        "ClusterIP",
        "Always",
        "OnDelete",
        "10m",
        ["x"],
        {"x": "y"},
    )
    yield from ([{"name": "X", "value": "y"}], [{"key": "x", "operator": "Exists"}], {"requests": {"cpu": "1"}})
    yield from ([{"sourceLabels": ["a"]}], {"name": "x"})


def changed(base: dict[str, Any], path: tuple[str, ...], value: Any) -> ClusterPolicySpec | None:
    raw = copy.deepcopy(base)
    place = raw
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = value
    try:
        return msgspec.convert(raw, ClusterPolicySpec)
    except msgspec.ValidationError:
        return None


def has_effect(path: tuple[str, ...], kind: Any) -> bool:
    for base in BASES:
        specs = (spec for value in values(kind) if (spec := changed(base, path, value)) is not None)
        first = next(specs, None)
        if first is None:
            continue
        expected = made(first)
        if any(spec != first and made(spec) != expected for spec in specs):
            return True
    return False


def test_the_table_says_of_every_field_whether_it_acts() -> None:
    wrong = {
        ".".join(path): "acts" if not acts(".".join(path)) else "does nothing"
        for path, kind in leaves(ClusterPolicySpec)
        if has_effect(path, kind) != acts(".".join(path))
    }
    assert wrong == {}
