"""Asks the operator for explanations, for a user who may not read the nodes and the other tenants' pods.

The user creates a PodExplanation and watches it until the operator has written the answer. The operator deletes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gpuplane.api.explanation import MOST_PODS, PodExplanation, PodExplanationStatus
from gpuplane.explain.answer import Explanation
from kubekit.errors import Terminal
from kubekit.kube import ApiError, Client, Forbidden, NotFound

OPERATOR_SECONDS: Final = 15.0  # for an answer; a cluster without an operator that works gives none


class Unanswered(Terminal):
    """The operator gave no explanation; the message says why."""


async def ask_operator(client: Client, namespace: str, pods: Sequence[str]) -> list[Explanation]:
    """Return the operator's explanations of pods of a namespace, without those that do not exist. Raises Unanswered."""
    found: list[Explanation] = []
    for start in range(0, len(pods), MOST_PODS):
        names = pods[start : start + MOST_PODS]
        try:
            async with asyncio.timeout(OPERATOR_SECONDS):
                status = await _asked(client, namespace, names)
        except TimeoutError:
            raise Unanswered(f"the operator did not answer within {OPERATOR_SECONDS:g} s") from None
        except Forbidden:
            raise Unanswered("this user may not create podexplanations") from None
        except NotFound:
            raise Unanswered("the cluster serves no podexplanations") from None
        except ApiError as error:
            raise Unanswered(str(error)) from error
        if status.error:
            raise Unanswered(status.error)
        found += [msgspec.convert(one.explanation, Explanation) for one in status.answers if one.explanation]
    return found


async def _asked(client: Client, namespace: str, names: Sequence[str]) -> PodExplanationStatus:
    """Create the request and return its status when it is answered. Raises Unanswered if it is deleted before."""
    body: dict[str, Any] = {
        "apiVersion": PodExplanation.RESOURCE.api_version,
        "kind": PodExplanation.RESOURCE.kind,
        "metadata": {"generateName": "explain-", "namespace": namespace},
        "spec": {"pods": list(names)},
    }
    made = await client.create(body, resource=PodExplanation.RESOURCE)
    name, version = made["metadata"]["name"], made["metadata"]["resourceVersion"]
    while True:
        stream = client.watch(PodExplanation, namespace, "", f"metadata.name={name}", version)
        async with contextlib.aclosing(stream):
            async for event in stream:
                version = event.resource_version or version
                if event.object is None:
                    continue
                if event.object.status.answered or event.object.status.error:
                    return event.object.status
                if event.type == "DELETED":
                    raise Unanswered(
                        f"the request was deleted: too many podexplanations wait in namespace {namespace}; "
                        "try again in a minute"
                    )
