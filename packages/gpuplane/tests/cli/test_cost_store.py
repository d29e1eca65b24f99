"""Queries of `gpuplane cost` to the store of the cluster's dashboard: the token, and the reaction to failures."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.cli.cost_source import SumsKind, grouping, read_sums
from gpuplane.cli.cost_store import SumsAnswer, stored_in_cluster
from gpuplane.metering.cost import MeteredUse
from kubekit.api.core import Pod
from kubekit.api.meta import ObjectMeta
from kubekit.errors import KubekitError, NoAnswer
from kubekit.kube import Forbidden, NotFound
from kubekit.kube.http import ClientResponse
from packages.gpuplane.tests.cli.test_cost import metered

SERVICE = "/api/v1/namespaces/gpu-operator/services/https:gpuplane-dashboard:https/proxy/api/sums"
TOKEN = "/api/v1/namespaces/gpu-operator/serviceaccounts/gpuplane-dashboard/token"
EXPORTER = "/api/v1/namespaces/gpu-operator/pods/one:9400/proxy/metrics"
ANSWER = msgspec.json.encode(SumsAnswer((MeteredUse(names=("ml",), node="n1", held_seconds=3600),), "store", True, 5.0))


class Cluster:
    """An API server in front of a dashboard; remembers what it was asked and with which headers."""

    def __init__(self, token: str, answers: Mapping[str, bytes | KubekitError]) -> None:
        self._token, self._answers = token, answers
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []

    async def bearer_token(self) -> str:
        return self._token

    async def list(self, kind: type, labels: str = "") -> list[Pod]:
        return [Pod(metadata=ObjectMeta(name="one", namespace="gpu-operator"))]

    async def answer(self, path: str, params: Mapping[str, str], *, headers: Mapping[str, str]) -> ClientResponse:
        self.asked.append(("GET", path, headers))
        answer = self._answers[path]
        if isinstance(answer, KubekitError):
            raise answer
        status = int(answer) if answer.isdigit() else 200
        return ClientResponse(status, {}, b"{}" if answer.isdigit() else answer)

    async def request(self, method: str, path: str, *given: Any) -> bytes:
        self.asked.append((method, path, {}))
        answer = self._answers.get(path, b'{"items":[]}')
        if isinstance(answer, KubekitError):
            raise answer
        return answer


def cluster(mine: str, **answers: bytes | KubekitError) -> Any:
    paths = {"store": SERVICE, "token": TOKEN, "exporter": EXPORTER}
    return Cluster(mine, {"/api/v1/services": b'{"items":[]}', **{paths[name]: one for name, one in answers.items()}})


async def test_the_users_own_token_is_shown_in_the_dashboards_header() -> None:
    client = cluster("mine", store=ANSWER)
    found = await stored_in_cluster(client)(grouping("namespace"), "", 60)
    assert found is not None and (found.place, found.complete, found.since) == ("store", True, 5.0)
    assert (found.kind, found.uses[0].held_seconds) == (SumsKind.STORE, 3600)
    assert client.asked == [("GET", SERVICE, {names.DASHBOARD_TOKEN_HEADER: "Bearer mine"})]


async def test_a_user_with_a_certificate_gets_a_token_of_the_dashboards_account() -> None:
    client = cluster("", store=ANSWER, token=json.dumps({"status": {"token": "made"}}).encode())
    assert await stored_in_cluster(client)(grouping("namespace"), "", 60) is not None
    assert [(method, path) for method, path, _ in client.asked] == [("POST", TOKEN), ("GET", SERVICE)]
    assert client.asked[1][2] == {names.DASHBOARD_TOKEN_HEADER: "Bearer made"}


@pytest.mark.parametrize(("status", "error"), [(b"404", NotFound("no such account")), (b"403", Forbidden("no"))])
async def test_without_a_dashboard_or_the_right_to_it_the_exporters_answer(status: bytes, error: KubekitError) -> None:
    client = cluster("mine", store=status, exporter=metered("a"))
    found = await read_sums(client, grouping("pod"), "", 60, stored_in_cluster(client))
    assert (found.kind, found.note) == (SumsKind.EXPORTERS, "")
    client = cluster("", token=error, exporter=metered("a"))
    assert (await read_sums(client, grouping("pod"), "", 60, stored_in_cluster(client))).kind is SumsKind.EXPORTERS


@pytest.mark.parametrize("answer", [NoAnswer("timed out"), b"503", b"<html>", b'{"uses": 5}'])
async def test_a_store_that_does_not_answer_is_a_note_with_the_exporters_sums(answer: bytes | KubekitError) -> None:
    client = cluster("mine", store=answer, exporter=metered("a"))
    found = await read_sums(client, grouping("pod"), "", 60, stored_in_cluster(client))
    assert found.kind is SumsKind.EXPORTERS and "the store of the dashboard was not read" in found.note


async def test_exporters_say_since_when_they_count() -> None:
    text = metered("a") + b'gpuplane_meter_seconds_total{node="n1",life="x"} 7200\n'
    client = cluster("mine", store=b"404", exporter=text)
    found = await read_sums(client, grouping("pod"), "", 60, stored_in_cluster(client))
    assert found.since == pytest.approx(time.time() - 7200, abs=600) and not found.complete
