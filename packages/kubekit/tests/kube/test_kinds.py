"""Paths of kinds: one table, and the same paths for all its readers."""

from __future__ import annotations

import pytest

from gpuplane.operator.installation import installation, resource_of
from kubekit.api import core
from kubekit.api.kinds import RESOURCES, built_in
from kubekit.api.meta import Resource
from tinykube.apiserver import builtin


def test_the_embedded_server_serves_every_kind_of_the_table_there() -> None:
    served = {
        (i.api_version, i.kind): Resource(i.group, i.version, i.plural, i.kind, i.namespaced) for i in builtin.RESOURCES
    }
    assert served == RESOURCES


@pytest.mark.parametrize(
    ("api_version", "kind", "path"),
    [
        ("v1", "Pod", "/api/v1/namespaces/n/pods/x"),
        ("v1", "Event", "/api/v1/namespaces/n/events/x"),
        ("events.k8s.io/v1", "Event", "/apis/events.k8s.io/v1/namespaces/n/events/x"),
        ("networking.k8s.io/v1", "NetworkPolicy", "/apis/networking.k8s.io/v1/namespaces/n/networkpolicies/x"),
        ("node.k8s.io/v1", "RuntimeClass", "/apis/node.k8s.io/v1/runtimeclasses/x"),
    ],
)
def test_paths(api_version: str, kind: str, path: str) -> None:
    assert built_in(api_version, kind).path("n", "x") == path


def test_a_struct_of_a_built_in_kind_has_its_place_from_the_table() -> None:
    kinds = [kind for kind in vars(core).values() if isinstance(kind, type) and hasattr(kind, "RESOURCE")]
    assert len(kinds) > 10
    assert [kind for kind in kinds if kind.RESOURCE not in RESOURCES.values()] == []


def test_every_manifest_of_the_installation_has_a_place() -> None:
    manifests = installation()
    assert {resource_of(manifest).kind for manifest in manifests} == {manifest["kind"] for manifest in manifests}
