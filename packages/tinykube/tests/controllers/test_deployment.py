"""Rollouts: how many replicas each revision has at every step, and what the status says of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tinykube.controllers.deployment.decide import Bounds, SetFacts, bounds, resize, rollout


def deployment(replicas=4, image="app:1", **spec):
    return {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": image}]},
            },
            **spec,
        },
    }


async def made(cluster, **fields):
    await cluster.create("deployments", deployment(**fields))
    await cluster.settle()
    await cluster.run_pods(*cluster.pods())
    await cluster.settle()


async def set_image(cluster, image):
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}}
    await cluster.registry.patch("deployments", "default", "web", patch, "merge")


def web(cluster):
    return cluster.registry.get("deployments", "default", "web")


def images(cluster):
    return sorted(p["spec"]["containers"][0]["image"] for p in cluster.pods())


def condition(cluster, type_):
    return next(c for c in web(cluster)["status"]["conditions"] if c["type"] == type_)


def revisions(cluster):
    sets = cluster.registry.list("replicasets", "default")
    return sorted(int(s["metadata"]["annotations"]["deployment.kubernetes.io/revision"]) for s in sets)


async def test_it_makes_a_replicaset_named_by_its_template_and_says_when_it_is_done(cluster):
    await cluster.create("deployments", deployment())
    await cluster.settle()
    replicaset = cluster.registry.list("replicasets", "default")[0]
    hash_ = replicaset["metadata"]["labels"]["pod-template-hash"]
    assert replicaset["metadata"]["name"] == f"web-{hash_}"
    assert condition(cluster, "Available")["status"] == "False"
    assert condition(cluster, "Progressing")["reason"] == "ReplicaSetUpdated"
    await cluster.run_pods(*cluster.pods())
    await cluster.settle()
    status = web(cluster)["status"]
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (4, 4, 4)
    assert condition(cluster, "Available")["reason"] == "MinimumReplicasAvailable"
    assert condition(cluster, "Progressing")["reason"] == "NewReplicaSetAvailable"
    assert web(cluster)["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"


async def test_a_rolling_update_keeps_within_its_bounds(cluster):
    await made(cluster)
    await set_image(cluster, "app:2")
    for _ in range(20):
        await cluster.settle(0.2)
        pods = cluster.pods()
        ready = [p for p in pods if p.get("status", {}).get("phase") == "Running"]
        assert len(pods) <= 5
        assert len(ready) >= 3
        await cluster.run_pods(*(p for p in pods if p not in ready))
    assert images(cluster) == ["app:2"] * 4
    assert revisions(cluster) == [1, 2]
    assert condition(cluster, "Progressing")["reason"] == "NewReplicaSetAvailable"


async def test_recreate_waits_for_the_last_old_pod(cluster):
    await made(cluster, strategy={"type": "Recreate"}, replicas=2)
    for pod in cluster.pods():
        await cluster.registry.patch(
            "pods", "default", pod["metadata"]["name"], {"metadata": {"finalizers": ["x/hold"]}}, "merge"
        )
    await set_image(cluster, "app:2")
    await cluster.settle()
    assert images(cluster) == ["app:1"] * 2
    for pod in cluster.pods():
        await cluster.registry.patch(
            "pods", "default", pod["metadata"]["name"], {"metadata": {"finalizers": None}}, "merge"
        )
    await cluster.settle()
    assert images(cluster) == ["app:2"] * 2


async def test_going_back_makes_the_old_revision_the_newest(cluster):
    await made(cluster, replicas=1)
    await set_image(cluster, "app:2")
    for _ in range(3):
        await cluster.settle()
        await cluster.run_pods(*cluster.pods())
    await set_image(cluster, "app:1")
    await cluster.settle()
    assert revisions(cluster) == [2, 3]
    assert web(cluster)["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"


async def test_a_paused_deployment_rolls_nothing_out_but_scales(cluster):
    await made(cluster, paused=False)
    await cluster.registry.patch("deployments", "default", "web", {"spec": {"paused": True}}, "merge")
    await set_image(cluster, "app:2")
    await cluster.registry.patch("deployments", "default", "web", {"spec": {"replicas": 6}}, "merge")
    await cluster.settle()
    assert images(cluster) == ["app:1"] * 6


async def test_a_rollout_that_makes_no_progress_says_so_after_its_deadline(cluster):
    await cluster.create("deployments", deployment(progressDeadlineSeconds=60))
    await cluster.settle(30)
    assert condition(cluster, "Progressing")["status"] == "True"
    await cluster.settle(60)
    assert condition(cluster, "Progressing")["reason"] == "ProgressDeadlineExceeded"
    await cluster.run_pods(*cluster.pods())
    await cluster.settle()
    assert condition(cluster, "Progressing")["reason"] == "NewReplicaSetAvailable"


async def test_old_revisions_beyond_the_limit_go(cluster):
    await made(cluster, replicas=1, revisionHistoryLimit=1)
    for turn in range(2, 5):
        await set_image(cluster, f"app:{turn}")
        for _ in range(3):
            await cluster.settle()
            await cluster.run_pods(*cluster.pods())
        await cluster.settle()
    assert revisions(cluster) == [3, 4]


async def test_deleting_it_takes_replicasets_and_pods_along(cluster):
    await made(cluster)
    await cluster.registry.delete("deployments", "default", "web", propagation="Foreground")
    await cluster.settle()
    assert cluster.registry.list("replicasets", "default") == []
    assert cluster.pods() == []
    assert web(cluster) is None


async def test_a_replicaset_that_is_selected_is_adopted_with_its_revision(cluster):
    old = deployment(1, image="app:0")
    labels = old["spec"]["selector"]["matchLabels"]
    old["metadata"] = {"name": "old", "labels": labels, "annotations": {"deployment.kubernetes.io/revision": "41"}}
    await cluster.create("replicasets", old)
    await cluster.settle()
    await made(cluster, replicas=1)
    adopted = cluster.registry.get("replicasets", "default", "old")
    assert adopted["metadata"]["ownerReferences"][0]["name"] == "web"
    assert web(cluster)["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "42"
    await cluster.registry.patch("replicasets", "default", "old", {"metadata": {"labels": {"app": "other"}}}, "merge")
    await cluster.settle()
    assert not cluster.registry.get("replicasets", "default", "old")["metadata"].get("ownerReferences")


async def test_orphaning_leaves_the_pods_to_whoever_adopts_them(cluster):
    await made(cluster)
    names = sorted(p["metadata"]["name"] for p in cluster.pods())
    await cluster.registry.delete("deployments", "default", "web", propagation="Orphan")
    await cluster.settle()
    assert web(cluster) is None
    assert sorted(p["metadata"]["name"] for p in cluster.pods()) == names


# -- the decisions ----------------------------------------------------------------------------------------------------
numbers = st.integers(0, 10)


@given(replicas=numbers, surge=st.integers(0, 5), unavailable=st.integers(0, 5), old=numbers, moods=st.randoms())
def test_every_rollout_ends_and_never_leaves_its_bounds(replicas, surge, unavailable, old, moods):
    strategy = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    limits = bounds({"replicas": replicas, "strategy": strategy})
    sizes, available = {"old": old, "": 0}, {"old": old, "": 0}
    started = old

    def facts(name):
        return SetFacts(name or "new", sizes[name], sizes[name], available[name], available[name], "2026")

    for _ in range(200):
        change = rollout(facts(""), [facts("old")] if sizes["old"] else [], limits, old_pods=sizes["old"])
        for name, size in change.items():
            sizes[name] = size
            available[name] = min(available[name], size)
        assert sum(sizes.values()) <= max(limits.replicas + limits.surge, started)
        assert sum(available.values()) >= min(limits.replicas - limits.unavailable, started)
        if sizes == {"old": 0, "": replicas} and available[""] == replicas:
            return
        growing = [name for name in sizes if available[name] < sizes[name]]
        if growing:
            available[moods.choice(growing)] += 1
    raise AssertionError(f"stuck at {sizes}")


@given(st.lists(st.integers(1, 20), min_size=2, max_size=4), numbers)
def test_a_resize_in_the_middle_of_a_rollout_keeps_the_sum(sizes, replicas):
    limits = Bounds(replicas, 2, 1)
    total = sum(sizes)
    sets = [SetFacts(f"s{i}", n, n, n, n, f"2026-0{i + 1}", limit=total) for i, n in enumerate(sizes)]
    changed = resize(sets, limits)
    after = [changed.get(one.name, one.wanted) for one in sets]
    assert all(size >= 0 for size in after)
    wanted = replicas + 2 if replicas else 0
    assert sum(after) == wanted


def test_percentages_round_as_kubernetes_rounds_them():
    assert bounds({"replicas": 10, "strategy": {}}) == Bounds(10, 3, 2)
    assert bounds({"replicas": 1, "strategy": {}}) == Bounds(1, 1, 0)
    none = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}
    assert bounds({"replicas": 3, "strategy": none}) == Bounds(3, 0, 1)
