"""The incremental cache always equals a new cache that is built from the same nodes and pods."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.podinfo import Affinity, NodeFacts, PodInfo, PodTerm
from kubekit.scheduling.selectors import Selector, equalities

NODES = st.sampled_from(["a", "b", "c"])
NAMES = st.sampled_from(["p", "q", "r", "s"])
APPS = st.sampled_from(["web", "db"])
TERMS = [PodTerm(Selector(equalities({"app": app})), "zone", ("default",)) for app in ("web", "db")]


def summary(cache: SchedulerCache) -> object:
    return (
        {
            name: (n.facts, n.pods, n.requested, n.ports, n.scored_cpu_milli, n.scored_memory_bytes)
            for name, n in cache.nodes.items()
        },
        cache.anti_terms,
        cache.scored_terms,
        [(cache.count(term), cache.count(term, live_only=True)) for term in TERMS],
        sorted(node.name for node in cache.candidates()),
        cache.node_count,
    )


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = SchedulerCache()
        self.nodes: dict[str, NodeFacts] = {}
        self.pods: dict[str, PodInfo] = {}
        for term in TERMS:  # counted from the start, so that increments are what is tested
            self.cache.count(term)
            self.cache.count(term, live_only=True)

    @rule(name=NODES, zone=st.sampled_from(["x", "y"]), cpu=st.integers(1, 4))
    def set_node(self, name, zone, cpu):
        self.nodes[name] = NodeFacts(name, {"zone": zone}, {"cpu": cpu * 1000})
        self.cache.set_node(self.nodes[name])

    @rule(name=NODES)
    def remove_node(self, name):
        self.nodes.pop(name, None)
        self.cache.remove_node(name)

    @rule(
        name=NAMES,
        node=NODES,
        app=APPS,
        cpu=st.integers(0, 2),
        port=st.sampled_from([0, 80]),
        anti=st.booleans(),
        wish=st.booleans(),
        terminating=st.booleans(),
    )
    def place(self, name, node, app, cpu, port, anti, wish, terminating):
        affinity = Affinity(anti_required=(TERMS[0],) if anti else (), pod_preferred=((10, TERMS[1]),) if wish else ())
        pod = PodInfo(
            "default",
            name,
            f"uid-{name}",
            {"app": app},
            {"cpu": cpu * 1000} if cpu else {},
            cpu * 1000,
            cpu,
            node_name=node,
            affinity=affinity,
            ports=(("0.0.0.0", "TCP", port),) if port else (),
            terminating=terminating,
        )
        self.pods[pod.key] = pod
        self.cache.place(pod)

    @rule(name=NAMES)
    def remove(self, name):
        self.pods.pop(f"default/{name}", None)
        self.cache.remove(f"default/{name}")

    @rule(name=NAMES, node=NODES)
    def nominate_and_withdraw(self, name, node):
        pod = self.pods.get(f"default/{name}")
        if pod is not None:
            self.cache.nominate(msgspec.structs.replace(pod, nominated=node), node)
            self.cache.withdraw(pod.key, node)

    @invariant()
    def equals_a_cache_built_anew(self):
        fresh = SchedulerCache()
        for facts in self.nodes.values():
            fresh.set_node(facts)
        for pod in self.pods.values():
            fresh.place(pod)
        assert summary(self.cache) == summary(fresh)


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
