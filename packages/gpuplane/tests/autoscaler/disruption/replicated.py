"""A world whose pods have controllers, and whose pools are of today's kind, for the tests of disruption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gpuplane.api import nodeclaim
from gpuplane.autoscaler.catalogue import InstanceType
from tests.support.autoscaler_world import TYPES, AutoscalerWorld

TYPE = "node.kubernetes.io/instance-type"
BUDGETS = ("policy", "poddisruptionbudgets")


class Replicated(AutoscalerWorld):
    """A world whose pods have a controller: `wanted` of each kind are there at any time. CPU is the label of a kind."""

    def __init__(self, machines: Sequence[InstanceType] = tuple(TYPES.values())) -> None:
        super().__init__(machines)
        self.wanted: list[tuple[int, int, str]] = []  # (pods, GPUs, CPU)
        self.most_running = 0

    async def schedule(self) -> None:
        await super().schedule()
        for count, gpus, cpu in self.wanted:
            alike = [pod for pod in self.registry.list("pods", "default") if cpu_of(pod) == cpu]
            if len(alike) < count:
                await self.add_pods(count - len(alike), gpus, cpu=cpu)
        self.most_running = max(self.most_running, len(self.cloud.running()))

    async def add_pods(self, count: int, gpus: int = 1, *, cpu: str = "100m", **spec: Any) -> list[str]:
        made = await super().add_pods(count, gpus, cpu=cpu, **spec)
        for name in made:
            await self.registry.patch("pods", "default", name, {"metadata": {"labels": {"cpu": cpu}}}, "merge")
        return made

    async def scale_down(self, cpu: str, count: int) -> None:
        """Delete the pods of a kind that are too many."""
        alike = [pod for pod in self.registry.list("pods", "default") if cpu_of(pod) == cpu]
        for pod in alike[count:]:
            await self.registry.delete("pods", "default", pod["metadata"]["name"], grace=0)

    async def play_readiness(self) -> None:
        """Make bound pods Ready, and write into budgets how many evictions they admit."""
        for pod in self.registry.list("pods", "default"):
            if pod["spec"].get("nodeName") and pod["status"].get("phase") != "Running":
                status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                name = pod["metadata"]["name"]
                await self.registry.patch("pods", "default", name, {"status": status}, "merge", subresource="status")
        for budget in self.registry.list(BUDGETS, "default"):
            allowed = max(0, self.healthy() - budget["spec"]["minAvailable"])
            if budget.get("status", {}).get("disruptionsAllowed") != allowed:
                counts = {"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0, "disruptionsAllowed": allowed}
                name = budget["metadata"]["name"]
                await self.registry.patch(BUDGETS, "default", name, {"status": counts}, "merge", subresource="status")

    def healthy(self) -> int:
        """Return how many pods are Ready and stay."""
        pods = self.registry.list("pods", "default")
        return sum(
            pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"] for pod in pods
        )

    def disrupted(self) -> list[str]:
        """Return the claims whose node took pods and goes, or is about to."""
        going = []
        for claim in self.claims():
            node = self.registry.get("nodes", None, claim.get("status", {}).get("nodeName") or "none")
            tainted = node is not None and nodeclaim.DISRUPTED_TAINT in str(node["spec"].get("taints"))
            conditions = claim.get("status", {}).get("conditions", ())
            took = any(one["type"] == nodeclaim.INITIALIZED and one["status"] == "True" for one in conditions)
            if took and (tainted or "deletionTimestamp" in claim["metadata"]):
                going.append(claim["metadata"]["name"])
        return going

    def set_image(self, image: str) -> None:
        """Make an image the newest."""
        self.cloud.image = image
        self.cloud.resolved = msgspec.structs.replace(self.cloud.resolved, images=((image, "amd64", True),))

    def is_current(self) -> bool:
        """Return whether every instance runs the newest image."""
        return all(one.image == self.cloud.image for one in self.cloud.running())

    def seen(self) -> str:
        pods = [
            (pod["metadata"]["name"], cpu_of(pod), pod["spec"].get("nodeName")) for pod in self.registry.list("pods")
        ]
        images = [(one.claim, one.machine, one.image) for one in self.cloud.running()]
        nodes = [(node["metadata"]["name"], node["spec"].get("taints")) for node in self.nodes()]
        return f"wanted {self.wanted}; pods {pods}; {images}; {nodes}; goes {self.disrupted()}; {super().seen()}"

    def is_settled(self) -> bool:
        pods = sum(count for count, _, _ in self.wanted)
        return len(self.bound()) == pods and all(is_ready(claim) for claim in self.claims())


def cpu_of(pod: dict[str, Any]) -> str:
    return str(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def is_ready(claim: dict[str, Any]) -> bool:
    conditions = claim.get("status", {}).get("conditions", ())
    return "deletionTimestamp" not in claim["metadata"] and any(
        one["type"] == "Ready" and one["status"] == "True" for one in conditions
    )


def disruption_reasons(world: AutoscalerWorld) -> set[str]:
    conditions = [one for claim in world.claims() for one in claim.get("status", {}).get("conditions", ())]
    return {one["reason"] for one in conditions if one["type"] == "DisruptionReason"}


def machines(world: AutoscalerWorld) -> list[str]:
    return [one.machine for one in world.cloud.running()]


async def add_node_pool(world: AutoscalerWorld, *types: str, **spec: Any) -> None:
    """Add a pool of today's kind, of some types, with its class."""
    tagged = [{"tags": {"karpenter.sh/discovery": "demo"}}]
    machines = {
        "subnetSelectorTerms": tagged,
        "securityGroupSelectorTerms": tagged,
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "role": "nodes",
    }
    found = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": "c"}, "spec": machines}
    await world.registry.create(("karpenter.k8s.aws", "ec2nodeclasses"), None, found)
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "c"}
    wanted = {"key": TYPE, "operator": "In", "values": list(types)}
    template = {"spec": {"nodeClassRef": reference, "requirements": [wanted]}}
    body = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "gpu"},
        "spec": {"template": template, **spec},
    }
    await world.registry.create(("karpenter.sh", "nodepools"), None, body)
