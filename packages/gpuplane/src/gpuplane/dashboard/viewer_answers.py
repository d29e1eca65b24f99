"""Answers of the cluster's dashboard to one viewer: no more than the API server would answer to the viewer's token.

A viewer who may list everything gets the answers of `PageFacts`. For other viewers the overview is without the names of
pods that they may not list, explanations are those of PodExplanations, and costs are those of their namespaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from gpuplane.dashboard.answers import PageFacts
from gpuplane.dashboard.day import without_names
from gpuplane.dashboard.documents import explained_document, node_document, pod_use
from gpuplane.dashboard.hiding import HIDDEN, spaces_of
from gpuplane.dashboard.mine import NamespaceFacts, require_namespace
from gpuplane.dashboard.tenant_answers import Explain, TenantExplanations
from gpuplane.dashboard.upgrades import upgrades_document
from gpuplane.dashboard.viewer_boards import ViewerBoards
from gpuplane.dashboard.viewer_rights import ViewerRights
from gpuplane.dashboard.viewers import Viewers
from kubekit.errors import InvalidInput, KubekitError, NoAnswer
from kubekit.kube import Client, Forbidden
from kubekit.kube.reviews import ReviewedUser

log = logging.getLogger("gpuplane.dashboard")

EXPLAINED_SPACES: Final = 10  # namespaces whose waiting pods are explained on the first page
_ACCOUNT: Final = "system:serviceaccount:"


class ViewerFacts:
    """The sources of the answers to all viewers."""

    def __init__(self, client: Client, viewers: Viewers, boards: ViewerBoards, all_facts: PageFacts, explain: Explain):
        self.viewers = viewers
        self.boards = boards
        self.all_facts = all_facts
        self.tenants = TenantExplanations(explain, time.monotonic)
        self.namespaces = NamespaceFacts(
            client, time.monotonic, lambda space: self.tenants.waiting(space, self.boards.seen)
        )


class ViewerAnswers:
    """The answers to one viewer, at the moment of one request."""

    def __init__(self, facts: ViewerFacts, user: ReviewedUser, rights: ViewerRights) -> None:
        self._facts = facts
        self._user = user
        self._rights = rights
        self._view = facts.boards.facts(rights)

    async def node(self, name: str) -> dict[str, Any]:
        """Return the page of a node. Raises InvalidInput for an unknown one, and Forbidden."""
        if self._rights.sees_all:
            return await self._facts.all_facts.node(name)
        if not self._rights.nodes:
            raise _forbidden(self._user, "nodes and gpunodes in the whole cluster")
        found = next((node for node in self._view.seen().nodes if node.name == name), None)
        if found is None:
            raise InvalidInput(f"there is no GPU node {name}", cure="kubectl get gpunodes lists the GPU nodes")
        events = await self._facts.all_facts.events(name) if self._rights.events else []
        return {**node_document(found, self._view.use()), "events": events}

    async def pod(self, namespace: str, name: str) -> dict[str, Any]:
        """Return the explanation of a pod. Raises InvalidInput where there is no such pod, and Forbidden."""
        if self._rights.sees_all:
            return await self._facts.all_facts.pod(namespace, name)
        await self._require(namespace)
        answer = explained_document(await self._facts.tenants.pod(namespace, name))
        return {**answer, "use": pod_use(f"{namespace}/{name}", self._view.seen().nodes, self._view.use())}

    async def waiting(self) -> list[dict[str, Any]]:
        """Return the explanations of the viewer's pods that wait longest."""
        if self._rights.sees_all:
            return await self._facts.all_facts.waiting()
        seen = self._view.seen()
        spaces = list(dict.fromkeys(one.pod.partition("/")[0] for one in seen.waiting_pods))
        asks = await asyncio.gather(*(self._facts.viewers.asks_why(self._user, space) for space in spaces))
        allowed = [space for space, may in zip(spaces, asks, strict=True) if may][:EXPLAINED_SPACES]
        found = [one for space in allowed for one in await self._facts.tenants.waiting(space, self._facts.boards.seen)]
        return [explained_document(one) for one in found]

    async def mine(self, namespace: str) -> dict[str, Any]:
        """Return the page of a namespace; empty for the viewer's own. Raises InvalidInput and Forbidden."""
        space = namespace or own_space(self._user, spaces_of(self._view.seen()))
        if self._rights.sees_all:
            return await self._facts.all_facts.mine(space)
        await self._require(space)
        return await self._facts.namespaces.mine(space, self._view.seen(), self._view.use())

    async def cost(self, by: str, since: str) -> dict[str, Any]:
        """Return what GPUs cost, of the namespaces whose pods the viewer may list."""
        if self._rights.pods:
            return await self._facts.all_facts.cost(by, since)
        with _without_places():
            return await self._facts.all_facts.cost(by, since, self._rights.namespaces)

    async def sums(self, labels: Sequence[str], namespace: str, seconds: float) -> dict[str, Any]:
        """Return the sums of the store, of the namespaces whose pods the viewer may list. Raises Forbidden."""
        spaces = None if self._rights.pods else self._rights.namespaces
        if spaces is not None and not spaces:
            raise _forbidden(self._user, "pods in any namespace with pods on GPUs")
        return await self._facts.all_facts.sums(labels, namespace, seconds, spaces)

    async def day(self) -> dict[str, Any]:
        """Return the last 24 hours: sums over all pods, as the first page has them for every viewer."""
        found = await self._facts.all_facts.day()
        return found if self._rights.pods else without_names(found)

    async def pools(self) -> dict[str, Any]:
        """Return the node pools with their nodes and launches. Raises Forbidden."""
        if not (self._rights.pools and self._rights.nodes):
            raise _forbidden(self._user, "nodepools and nodes")
        return await self._facts.all_facts.pools(events=self._rights.events)

    async def upgrades(self) -> dict[str, Any]:
        """Return the upgrades of drivers by node; those of operands to a viewer of everything. Raises Forbidden."""
        if self._rights.sees_all:
            return await self._facts.all_facts.upgrades()
        if not self._rights.nodes:
            raise _forbidden(self._user, "nodes and gpunodes in the whole cluster")
        return upgrades_document(self._view.seen(), None)

    async def _require(self, namespace: str) -> None:
        """Raise Forbidden unless the viewer may list the pods of a namespace and ask why they wait.

        Raises InvalidInput for no name: what a viewer writes is not a line of the log.
        """
        require_namespace(namespace)
        viewers = self._facts.viewers
        if not await viewers.sees(self._user, namespace):
            raise _forbidden(self._user, f"pods in the namespace {namespace}")
        if not await viewers.asks_why(self._user, namespace):
            what = f"{self._user.username} may not create podexplanations in the namespace {namespace}"
            raise Forbidden(what, cure="an administrator binds the role view in the namespace")


def own_space(user: ReviewedUser, spaces: Iterable[str]) -> str:
    """Return the namespace of a service account; of another user the first one with pods that the user may list."""
    if user.username.startswith(_ACCOUNT):
        return user.username.removeprefix(_ACCOUNT).partition(":")[0]
    return min(set(spaces) - {HIDDEN}, default="default")


def _forbidden(user: ReviewedUser, what: str) -> Forbidden:
    return Forbidden(f"{user.username} may not list {what}", cure="an administrator binds the role view")


@contextlib.contextmanager
def _without_places() -> Iterator[None]:
    """Raise NoAnswer for an error that can name pods and Services of other namespaces; the log has the error."""
    try:
        yield
    except InvalidInput:
        raise
    except KubekitError as error:
        log.info("not answered: %s", error)
        raise NoAnswer("the source of the costs does not answer", cure="try again in a minute") from None
