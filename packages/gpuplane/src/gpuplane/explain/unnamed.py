"""Facts for a user who may view one namespace: without the names of the other namespaces' pods. Pure.

The names are taken out of the facts, before anything is decided, and not out of the answer: a sentence that some module
will add later cannot contain a name that is not there. Decisions depend on labels, namespaces, requests and nodes of
pods, and these stay. `World.shown` then withholds the namespace.
"""

from __future__ import annotations

import msgspec

from gpuplane.explain.world import ClusterFacts, Object


def unnamed(facts: ClusterFacts, namespace: str) -> ClusterFacts:
    """Return the facts as a user of `namespace` may learn of them: pods of other namespaces have numbers for names."""
    pods = [_renamed(raw, f"pod-{number}", namespace) for number, raw in enumerate(facts.pods)]
    return msgspec.structs.replace(facts, pods=pods, viewer=namespace)


def _renamed(raw: Object, name: str, namespace: str) -> Object:
    meta = raw["metadata"]
    return raw if meta["namespace"] == namespace else {**raw, "metadata": {**meta, "name": name}}
