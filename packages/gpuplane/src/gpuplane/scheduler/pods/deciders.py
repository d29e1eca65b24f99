"""The parts that decide about pods that wait, on one cache and one ledger, without I/O.

The scheduler carries out what they decide, and `gpuplane explain` prints it: both ask the same objects of the same
classes.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.gangs.gang import Gang
from gpuplane.scheduler.gangs.groups import GangLookup
from gpuplane.scheduler.gangs.members import GangMembers
from gpuplane.scheduler.gangs.placing import GangDecision, GangPlacer, failed
from gpuplane.scheduler.gangs.preempt import GangPreemption
from gpuplane.scheduler.gangs.victims import GangVictims
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.pods.preempt import GPUPreemption
from gpuplane.scheduler.pods.ranking import NodeRanking
from gpuplane.scheduler.preemption import Preemption
from gpuplane.scheduler.queues.fair import FairQueues
from kubekit.errors import KubekitError
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.decide import Found
from kubekit.scheduling.preemption import Budget, Candidate, PreemptionPlan, choose
from kubekit.scheduling.queue import QUEUE_LIMIT


class Deciders:
    """
    Args:
        members: the pods of all gangs; `groups`: the gangs that their declarations become.
    """

    def __init__(
        self,
        cache: SchedulerCache,
        cluster: Cluster,
        filtering: Filtering,
        fair: FairQueues,
        members: GangMembers,
        groups: GangLookup,
    ) -> None:
        self._fair = fair
        self.ranking = NodeRanking(cache, cluster, filtering)
        self.placer = GangPlacer(cache, cluster, filtering, self.ranking)
        self.away = Preemption(cluster, filtering)
        victims = GangVictims(cache, members, groups)
        self.preemption = GPUPreemption(cache, cluster, filtering, self.away, fair, victims)
        self.gang_preemption = GangPreemption(cache, self.placer, self.preemption, victims, fair)

    def victims(self, pod: ScheduledPod, found: Found, budgets: Sequence[Budget]) -> Candidate | PreemptionPlan:
        """Return the node and the pods to evict from it for a single pod, or the plan with the reason why none help.

        Raises Retryable while quotas are unknown.
        """
        plan = self.preemption.plan(pod, found, budgets)
        return choose(plan.candidates) if plan.candidates else plan

    def gang_places(self, gang: Gang, pods: Sequence[ScheduledPod], bound: Sequence[ScheduledPod]) -> GangDecision:
        """Return a place for each pod of a gang, or why there is none.

        Args:
            pods: those that have to be placed together now; `bound`: those that have a node already.
        """
        if refusal := self._fair.refuses(*(one.info for one in pods if one.info is not None)):
            return GangDecision(message=f"gang {gang.name}: {refusal}", causes=frozenset({QUEUE_LIMIT}))
        try:
            return self.placer.place(gang, pods, bound)
        except KubekitError as error:
            return failed(error)
