"""Asks the store of sums of the cluster's dashboard, through the API server's proxy of its Service.

The dashboard answers to the user of a token, as its pages do. A user without a token (a client certificate) gets one of
the dashboard's own account for ten minutes, where the user may make it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.cli.cost_source import StoredSums, StoreUnavailable, Sums, SumsKind
from gpuplane.metering.cost import MeteredUse
from kubekit.errors import KubekitError
from kubekit.kube import Client, Forbidden, NotFound

DASHBOARD_PROXY: Final = (
    f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/services/https:{names.DASHBOARD_NAME}:https/proxy"
)
_TOKEN: Final = f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/serviceaccounts/{names.DASHBOARD_NAME}/token"
_TOKEN_SECONDS: Final = 600


class SumsAnswer(msgspec.Struct, frozen=True):
    """The answer of the dashboard: the fields of Sums."""

    uses: tuple[MeteredUse, ...]
    place: str
    complete: bool
    since: float | None = None


class _TokenStatus(msgspec.Struct):
    token: str = ""


class _TokenRequest(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


async def ask_dashboard(client: Client, path: str, parameters: Mapping[str, str]) -> bytes | None:
    """Return the body of an answer of the cluster's dashboard; None where there is no dashboard for this user.

    Raises Unreachable, and StoreUnavailable for another answer.
    """
    try:
        token = await client.bearer_token() or await _made_token(client)
    except (NotFound, Forbidden):
        return None
    shown = {names.DASHBOARD_TOKEN_HEADER: f"Bearer {token}"}
    answer = await client.answer(DASHBOARD_PROXY + path, parameters, headers=shown)
    if answer.status in (403, 404):
        return None
    if answer.status != 200:
        raise StoreUnavailable(f"the cluster's dashboard answers with HTTP {answer.status}")
    return answer.body


async def _made_token(client: Client) -> str:
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_SECONDS},
    }
    answer = await client.request("POST", _TOKEN, None, body)
    return msgspec.json.decode(answer, type=_TokenRequest).status.token


def stored_in_cluster(client: Client) -> StoredSums:
    """Return what asks the cluster's dashboard; it raises StoreUnavailable where that does not answer."""

    async def ask(labels: Sequence[str], namespace: str, seconds: float) -> Sums | None:
        given = {"labels": ",".join(labels), "ns": namespace, "seconds": f"{seconds:g}"}
        try:
            answer = await ask_dashboard(client, "/api/sums", given)
            found = None if answer is None else msgspec.json.decode(answer, type=SumsAnswer)
        except (KubekitError, msgspec.MsgspecError) as error:
            what = error.what if isinstance(error, KubekitError) else "its answer is not one of gpuplane's"
            raise StoreUnavailable(f"the store of the dashboard was not read: {what}") from error
        if found is None:
            return None
        return Sums(found.uses, found.place, found.complete, since=found.since, kind=SumsKind.STORE)

    return ask
