"""Objects of a namespace that belong to a user, for which `gpuplane uninstall` leaves the namespace."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from gpuplane.cli.contents import contents_of_others, is_of_others
from kubekit.kube import ApiError, Client


def named(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}}


@pytest.mark.parametrize(
    ("resource", "found"),
    [
        ("configmaps", named("kube-root-ca.crt")),
        ("serviceaccounts", named("default")),
        ("leases", named("gpuplane-operator")),
        ("events", named("e")),
        ("configmaps", named("ours", labels={"app.kubernetes.io/part-of": "gpuplane"})),
        ("pods", named("of-a-daemonset", ownerReferences=[{"name": "d"}])),
        ("pods", named("going", deletionTimestamp="2024-01-01T00:00:00Z")),
        ("secrets", named("token") | {"type": "kubernetes.io/service-account-token"}),
    ],
)
def test_what_the_cluster_or_gpuplane_made_is_not_missed(resource: str, found: dict[str, Any]) -> None:
    assert not is_of_others(resource, found)


@pytest.mark.parametrize(
    ("resource", "found"),
    [
        ("configmaps", named("mine", labels={"app.kubernetes.io/part-of": "monitoring"})),
        ("configmaps", named("default")),
        ("secrets", named("sh.helm.release.v1.mine.v1") | {"type": "helm.sh/release.v1"}),
    ],
)
def test_what_a_user_made_is_missed(resource: str, found: dict[str, Any]) -> None:
    assert is_of_others(resource, found)


class Api:
    """An API server with one group that does not answer."""

    def __init__(self) -> None:
        listed = {"namespaced": True, "verbs": ["delete", "list"]}
        self.answers: dict[str, Any] = {
            "/apis": {"groups": [{"preferredVersion": {"groupVersion": "away.example.com/v1"}}]},
            "/api/v1": {
                "resources": [
                    {"name": "configmaps", **listed},
                    {"name": "pods", **listed},
                    {"name": "pods/status", **listed},
                    {"name": "nodes", **listed, "namespaced": False},
                ]
            },
            "/api/v1/namespaces/n/configmaps": {"items": [named("mine")]},
            "/api/v1/namespaces/n/pods": {"items": [named("p", ownerReferences=[{"name": "d"}])]},
        }

    async def request(self, method: str, path: str) -> bytes:
        if path not in self.answers:
            raise ApiError("the server is currently unable to handle the request", status=503)
        return json.dumps(self.answers[path]).encode()


async def test_an_api_that_does_not_answer_may_hold_objects_of_others() -> None:
    assert await contents_of_others(cast(Client, Api()), "n") == [
        "configmaps/mine",
        "objects of /apis/away.example.com/v1, which does not answer",
    ]
