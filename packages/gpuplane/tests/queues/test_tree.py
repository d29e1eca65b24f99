"""The tree of queues: whatever the objects say, each queue has one place, and what is wrong is reported."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.api.gpuqueue import GPUQueue, GPUQueueSpec, QueueAmounts
from gpuplane.scheduler.queues.objects import bounds_of, fair_queue_of, written
from gpuplane.scheduler.queues.tree import OUTSIDE, FairQueue, QueueMember, QueueTree
from kubekit.api.meta import ObjectMeta


def gpus(count: int | None) -> tuple[int | None, ...]:
    return (None, None, None if count is None else count * 100, None)


def queue(name: str, parent: str = "", guaranteed: int | None = None, limit: int | None = None, **more) -> FairQueue:
    return FairQueue(name, parent, guaranteed=gpus(guaranteed), limit=gpus(limit), **more)


def of_namespaces(*namespaces: str) -> tuple[QueueMember, ...]:
    return tuple(QueueMember(namespace) for namespace in namespaces)


def test_pods_belong_to_the_queue_of_their_namespace_or_label():
    tree = QueueTree(
        [
            queue("a", members=of_namespaces("ml")),
            queue("b", members=(QueueMember("ml", "night"), QueueMember("web", "day"))),
        ]
    )
    assert tree.of("ml") == tree.of("ml", "other") == "a"
    assert tree.of("ml", "night") == "b"
    assert tree.of("web") == tree.of("else") == OUTSIDE
    assert not tree.findings


def test_an_inner_queue_is_guaranteed_what_its_children_are():
    tree = QueueTree([queue("top"), queue("a", "top", 2), queue("b", "top", 3), queue("c", "top")])
    assert tree.guaranteed("top") == gpus(5)
    assert tree.path("a") == ("a", "top")
    assert not tree.findings


def test_what_contradicts_itself_is_a_finding_and_counts_in_one_way():
    tree = QueueTree(
        [
            queue("orphan", "nowhere"),
            queue("x", "y"),
            queue("y", "x"),
            queue("small", guaranteed=1, limit=2),
            queue("large", "small", 4, members=of_namespaces("ml")),
            queue("other", members=of_namespaces("ml", "web")),
            queue("parent", members=of_namespaces("lost")),
            queue("child", "parent"),
        ]
    )
    assert {finding.queue: finding.message for finding in tree.findings} == {
        "orphan": "its parent nowhere does not exist, so it counts as a queue without parent",
        "x": "it is below itself, so it counts as a queue without parent",
        "small": "limit.gpus is less than what is guaranteed; the limit holds",
        "other": "namespace ml belongs to queue large already",
        "parent": "it has children, so the pods of namespace lost count to no queue",
    }
    assert [finding.queue for finding in tree.findings].count("small") == 2
    assert tree.guaranteed("small") == gpus(4)
    assert tree.path("y") == ("y", "x")
    assert (tree.of("web"), tree.of("lost")) == ("other", OUTSIDE)


NAMES = st.sampled_from("abcdef")
QUEUES = st.lists(
    st.builds(
        lambda name, parent, guaranteed: queue(name, parent, guaranteed),
        NAMES,
        st.one_of(st.just(""), NAMES),
        st.one_of(st.none(), st.integers(0, 9)),
    ),
    max_size=8,
)


@given(QUEUES)
def test_any_queues_make_a_tree(queues):
    tree = QueueTree(queues)
    for one in tree:
        path = tree.path(one.name)
        assert path[0] == one.name and len(set(path)) == len(path)
        assert tree.queue(path[-1]).parent == ""
        of_children = [tree.guaranteed(child.name)[2] or 0 for child in tree if child.parent == one.name]
        assert (tree.guaranteed(one.name)[2] or 0) >= sum(of_children)


def test_history_counts_by_the_half_life_of_the_nearest_queue_above():
    tree = QueueTree(
        [queue("top", half_life_s=60.0), queue("a", "top"), queue("b", "top", half_life_s=0.0), queue("c")]
    )
    assert [tree.half_life_s(name) for name in ("a", "b", "c", OUTSIDE)] == [60.0, 0.0, 0.0, 0.0]


def test_amounts_are_read_and_written_in_the_units_of_users():
    spec = GPUQueueSpec(
        parent="top",
        weight=3,
        guaranteed=QueueAmounts(cpu="1500m", memory="2Gi", gpus="0.5", gpu_memory="16Gi"),
        namespaces=("ml",),
        half_life="1h30m",
    )
    read = fair_queue_of(GPUQueue(metadata=ObjectMeta(name="a"), spec=spec))
    assert read.guaranteed == (1500, 2 << 30, 50, 16384)
    assert (read.half_life_s, read.weight, read.members) == (5400.0, 3.0, (QueueMember("ml"),))
    assert read.limit == (None, None, None, None)
    assert bounds_of(written(read.guaranteed)) == read.guaranteed
