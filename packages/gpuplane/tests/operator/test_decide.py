"""One node's way, as tables: what the operator decides from what it sees."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.api.gpunode import GPU, GPUNodeStatus, Machine, Stage, StageName, StageState, view
from gpuplane.operator.decide import GPU_LABELLED, NodePlan, decide
from gpuplane.operator.nodes import FREE_SECONDS, Settling
from gpuplane.operator.observed import ObservedNode, OperandPod
from gpuplane.operator.stages import OPERANDS

NOW = "2026-11-20T10:00:00.000000Z"
ALL = frozenset(operand.gate for operand in OPERANDS)
GPU_NODE = {names.PCI_PRESENT_LABELS[0]: "true", names.OS_ID_LABEL: "ubuntu", names.OS_VERSION_LABEL: "22.04"}
LAST = ("dcgm-exporter", "gpu-feature-discovery", "mps-control-daemon")  # nothing stands on them
GATE = {operand.gate: names.DEPLOY_PREFIX + operand.gate for operand in OPERANDS}


def node(**changes: object) -> ObservedNode:
    base = ObservedNode(
        name="n1",
        labels=GPU_NODE,
        offered=0,
        held=0,
        os="ubuntu22.04",
        kernel="6.8.0",
        runtime="containerd",
        arch="amd64",
        tainted=False,
        status=None,
        pods={},
        enabled=ALL,
    )
    return msgspec.structs.replace(base, **changes)


def status(*done: StageName, **failed: str) -> GPUNodeStatus:
    stages = {name.value: Stage(state=StageState.DONE, since=NOW) for name in done}
    stages |= {name: Stage(state=StageState.FAILED, since=NOW, reason=why) for name, why in failed.items()}
    return GPUNodeStatus(stages=stages)


def applied(seen: ObservedNode, plan: NodePlan) -> ObservedNode:
    """The node after the plan was carried out."""
    labels = {k: v for k, v in {**seen.labels, **plan.labels}.items() if v is not None}
    tainted = seen.tainted if plan.taint is None else plan.taint
    new = None if plan.delete else plan.status or seen.status
    return msgspec.structs.replace(seen, labels=labels, status=new, tainted=tainted)


S = StageName


@pytest.mark.parametrize(
    ("done", "opened"),
    [
        ((S.DISCOVERED,), {"driver"}),
        ((S.DISCOVERED, S.DRIVER), {"driver", "container-toolkit", "operator-validator"}),
        ((S.DISCOVERED, S.DRIVER, S.TOOLKIT), {"driver", "container-toolkit", "operator-validator"}),
        (
            (S.DISCOVERED, S.DRIVER, S.TOOLKIT, S.CUDA),
            {"driver", "container-toolkit", "operator-validator", "device-plugin", "mps-control-daemon"},
        ),
        ((S.DISCOVERED, S.DRIVER, S.TOOLKIT, S.CUDA, S.PLUGIN), ALL),
    ],
)
def test_a_gate_opens_when_what_it_needs_holds(done: tuple[StageName, ...], opened: set[str]) -> None:
    plan = decide(node(status=status(*done)), NOW)
    assert {gate for gate, label in GATE.items() if plan.labels.get(label) == "true"} == opened


def test_a_bare_gpu_node_gets_its_gpunode_and_the_first_gate() -> None:
    plan = decide(node(), NOW)
    assert plan.labels == {names.GPU_PRESENT_LABEL: "true", GATE["driver"]: "true"}
    assert plan.status is not None
    assert plan.status.summary.stage == "driver"
    assert plan.status.machine.os == "ubuntu22.04"
    assert plan.urgent


@pytest.mark.parametrize("spelling", names.PCI_PRESENT_LABELS)
def test_gpus_are_known_however_node_feature_discovery_spells_them(spelling: str) -> None:
    system = {name: value for name, value in GPU_NODE.items() if name not in names.PCI_PRESENT_LABELS}
    assert decide(node(labels={**system, spelling: "false"}), NOW).empty
    assert decide(node(labels={**system, spelling: "true"}), NOW).labels[GATE["driver"]] == "true"


@pytest.mark.parametrize(
    ("handlers", "toolkit", "label"),
    [
        (("nvidia", "nvidia-cdi"), StageState.DONE, "true"),
        (("nvidia-cdi",), StageState.DONE, None),
        ((), StageState.DONE, None),
        (None, StageState.DONE, None),
        (("nvidia",), StageState.FAILED, None),
        (("nvidia",), StageState.REMOVED, None),
    ],
)
def test_a_node_with_nvidias_runtime_is_labelled_for_its_runtime_class(
    handlers: tuple[str, ...] | None, toolkit: StageState, label: str | None
) -> None:
    stages = {**status(S.DISCOVERED, S.DRIVER, S.CUDA).stages, "toolkit": Stage(state=toolkit, since=NOW, reason="X")}
    seen = GPUNodeStatus(stages=stages, machine=Machine(handlers=handlers))
    for before in ({}, {names.RUNTIME_CLASS_LABEL: "true"}):
        found = node(status=seen, labels={**GPU_NODE, **before})
        assert applied(found, decide(found, NOW)).labels.get(names.RUNTIME_CLASS_LABEL) == label


def test_the_label_of_the_runtime_class_takes_no_write_of_its_own() -> None:
    handlers = Machine(handlers=("nvidia",))
    opened = {GATE[gate]: "true" for gate in ("driver", "container-toolkit", "operator-validator")}
    labels = {**GPU_NODE, names.GPU_PRESENT_LABEL: "true", **opened}
    for done, added in (
        ((S.DISCOVERED, S.DRIVER, S.TOOLKIT), set()),
        ((S.DISCOVERED, S.DRIVER, S.TOOLKIT, S.CUDA), {names.RUNTIME_CLASS_LABEL, GATE["device-plugin"]}),
    ):
        seen = node(status=msgspec.structs.replace(status(*done), machine=handlers), labels=labels)
        assert set(decide(seen, NOW).labels) - {GATE["mps-control-daemon"]} == added


@pytest.mark.parametrize("changes", [{"labels": {}}, {"enabled": frozenset()}])
def test_what_is_no_gpu_node_or_has_no_policy_is_left_alone(changes: dict[str, object]) -> None:
    assert decide(node(**changes), NOW).empty


def test_a_pre_installed_driver_is_labelled_so_and_needs_no_pod() -> None:
    have = status(S.DISCOVERED)
    present = msgspec.structs.replace(
        have, stages={**have.stages, "driver": Stage(state=StageState.PRESENT, since=NOW)}
    )
    plan = decide(node(status=present), NOW)
    assert plan.labels[GATE["driver"]] == "pre-installed"
    assert plan.labels[GATE["container-toolkit"]] == "true"


def test_a_disabled_operand_is_skipped_and_its_followers_go_on() -> None:
    have = status(S.DISCOVERED, S.DRIVER, S.CUDA)
    plan = decide(node(status=have, enabled=ALL - {"container-toolkit"}), NOW)
    assert plan.labels.get(GATE["container-toolkit"]) is None
    assert plan.labels[GATE["device-plugin"]] == "true"
    assert plan.status is not None
    assert plan.status.stages["toolkit"].state is StageState.SKIPPED


def test_a_restarting_pod_takes_nothing_back() -> None:
    seen = settled()
    without = msgspec.structs.replace(seen, pods={}, offered=0)
    plan = decide(without, NOW)
    assert plan.labels == {}
    assert view((plan.status or seen.status or GPUNodeStatus()).stages)[S.READY].state is StageState.DONE


def test_a_failed_vectoradd_closes_what_stands_on_it_in_reverse_order() -> None:
    seen = settled()
    assert seen.status is not None
    broken = {**seen.status.stages, "cuda": Stage(state=StageState.FAILED, since=NOW, reason="VectorAddFailed")}
    seen = msgspec.structs.replace(seen, status=msgspec.structs.replace(seen.status, stages=broken))

    first = decide(seen, NOW)
    assert first.urgent
    assert first.labels == {GATE[gate]: None for gate in LAST}
    seen = applied(seen, first)
    pods = {gate: pod for gate, pod in seen.pods.items() if gate not in LAST}
    second = decide(msgspec.structs.replace(seen, pods=pods), NOW)
    assert second.labels == {GATE["device-plugin"]: None}


def test_the_problem_of_a_pod_is_told_and_forgotten() -> None:
    have = status(S.DISCOVERED)
    pod = OperandPod("nvidia-driver-x", False, "ErrImagePull", "no such image")
    plan = decide(node(status=have, pods={"driver": pod}), NOW)
    assert plan.status is not None
    assert plan.urgent
    assert plan.status.stages["driver"].where == "pod/nvidia-driver-x"
    assert plan.status.summary.waits_for == "ErrImagePull"
    after = decide(node(status=plan.status, pods={"driver": OperandPod("nvidia-driver-x", True)}), NOW)
    assert after.status is not None
    assert "driver" not in after.status.stages


def test_the_taint_is_on_while_not_ready_and_goes_when_ready() -> None:
    assert decide(node(taint_wanted=True), NOW).taint is True
    ready = msgspec.structs.replace(settled(), taint_wanted=True, tainted=True)
    assert decide(ready, NOW).taint is False


def test_deleting_the_policy_takes_everything_back_from_the_top() -> None:
    seen = msgspec.structs.replace(settled(), enabled=frozenset())
    order: list[str] = []
    for _ in range(20):
        plan = decide(seen, NOW)
        if plan.empty:
            break
        order += [f"{gate} {plan.labels[label]}" for gate, label in GATE.items() if label in plan.labels]
        seen = carried_on(applied(seen, plan))
    assert seen.status is None
    assert set(seen.labels) == {*GPU_NODE, "nvidia.com/gpu.product"}
    assert sorted(order[:4]) == sorted(["device-plugin removing", *(f"{gate} None" for gate in LAST)])
    assert order[4:] == [
        "device-plugin None",
        "container-toolkit removing",
        "operator-validator None",
        "container-toolkit None",
        "driver removing",
        "driver None",
    ]


def carried_on(seen: ObservedNode) -> ObservedNode:
    """Return the node after its labels took effect: pods are created and deleted, and those that remove report it."""
    pods, stages = {}, dict(seen.status.stages) if seen.status is not None else {}
    for operand in OPERANDS:
        value = seen.labels.get(GATE[operand.gate])
        if value in ("true", "removing"):
            pods[operand.gate] = OperandPod(operand.gate, True)
        if value == "removing":
            stages[operand.makes[0].value] = Stage(state=StageState.REMOVED, since=NOW)
    have = msgspec.structs.replace(seen.status, stages=stages) if seen.status is not None else None
    return msgspec.structs.replace(seen, pods=pods, status=have)


def test_a_node_that_does_not_answer_holds_nobody_up() -> None:
    seen = msgspec.structs.replace(settled(), enabled=frozenset(), answers=False, pods={})
    plan = decide(seen, NOW)
    assert plan.delete
    assert all(value is None for value in plan.labels.values())


def settled() -> ObservedNode:
    """A node that has gone the whole way, with all its pods."""
    stages = [S.DISCOVERED, S.DRIVER, S.TOOLKIT, S.CUDA, S.DEVICE_PLUGIN, S.PLUGIN, S.EXPORTER, S.LABELS]
    have = status(*stages)
    have = msgspec.structs.replace(have, gpus=(GPU(index=0, uuid="GPU-1", model="Tesla T4", memory_mib=15360),))
    seen = node(
        status=have,
        offered=100,
        labels={**GPU_NODE, "nvidia.com/gpu.product": "Tesla-T4"},
        pods={gate: OperandPod(gate, True) for gate in ALL},
    )
    return applied(seen, decide(seen, NOW))


def test_a_lost_gpu_is_the_reason_and_message_of_a_ready_node() -> None:
    have = settled()
    lost = msgspec.structs.replace(have.status, health={"GPU-1": "Xid 79: fallen off the bus"})
    plan = decide(msgspec.structs.replace(have, status=lost), NOW)
    summary = plan.status.summary
    assert (summary.stage, summary.gpus) == ("ready", "0/1")
    assert (summary.reason, summary.message) == ("GPUsUnhealthy", "GPU 0: Xid 79: fallen off the bus")
    found = {one.type: (one.status, one.reason, one.message) for one in plan.status.conditions}
    assert found["Ready"] == ("True", "AllStagesHold", "")
    assert found["GPUsHealthy"] == ("False", "GPUsUnhealthy", "GPU-1: Xid 79: fallen off the bus")


def test_a_settled_node_costs_no_write() -> None:
    assert decide(settled(), "2026-11-20T11:00:00.000000Z").empty


def test_what_a_removed_operand_left_behind_makes_no_stage():
    left = {**GPU_NODE, GPU_LABELLED: "Tesla-T4"}
    seen = node(labels=left, status=status(S.DISCOVERED, S.DRIVER, S.TOOLKIT, cuda="VectorAddFailed"))
    first = decide(seen, NOW)
    after = applied(seen, first)
    assert {S.LABELS.value, S.DEVICE_PLUGIN.value}.isdisjoint(after.status.stages)
    assert decide(after, "2026-11-20T11:00:00.000000Z").empty


def test_a_node_that_is_given_back_loses_the_labels_of_its_gpus():
    seen = node(labels={**GPU_NODE, GPU_LABELLED: "Tesla-T4", names.DEPLOY_OPERANDS_LABEL: "false"})
    assert decide(seen, NOW).release
    assert decide(node(labels={**GPU_NODE, names.DEPLOY_OPERANDS_LABEL: "false"}), NOW).empty


def test_a_node_that_does_not_answer_is_let_go():
    gates = {GATE[gate]: "true" for gate in ALL}
    pods = {gate: OperandPod(gate, False) for gate in ALL}
    seen = node(
        labels={**GPU_NODE, **gates, names.GPU_PRESENT_LABEL: "true"},
        status=status(*list(S)),
        pods=pods,
        enabled=frozenset(),
        answers=False,
    )
    plan = decide(seen, NOW)
    assert plan.delete
    assert applied(seen, plan).labels == GPU_NODE


def test_a_node_that_comes_back_half_way_out_begins_where_it_was_undone():
    done = status(*list(S)).stages
    undone = {**done, S.TOOLKIT.value: Stage(state=StageState.REMOVED, since=NOW)}
    labels = {**GPU_NODE, GATE["driver"]: "true", GATE["container-toolkit"]: "removing"}
    seen = node(labels=labels, status=GPUNodeStatus(stages=undone))
    after = applied(seen, decide(seen, NOW))
    assert after.status is not None
    assert set(after.status.stages) == {S.DISCOVERED, S.DRIVER, S.TOOLKIT}
    opened = {gate for gate in ALL if after.labels.get(GATE[gate]) == "true"}
    assert opened == {"driver", "container-toolkit", "operator-validator"}


def test_free_gpus_alone_can_wait_and_are_told_in_the_end() -> None:
    seen = msgspec.structs.replace(settled(), held=40)
    plan = decide(seen, NOW)
    assert plan.status is not None
    assert plan.status.summary.free == "0.6"
    assert not plan.urgent
    clock = [0.0]
    settling = Settling(lambda: clock[0])
    assert settling.wait("n1", plan, nodes=1) == FREE_SECONDS
    clock[0] = FREE_SECONDS
    assert settling.wait("n1", plan, nodes=1) == 0.0


def progress(*done: StageName) -> NodePlan:
    """A plan with news that can wait."""
    stages = {name.value: Stage(state=StageState.DONE, since=NOW) for name in done}
    return NodePlan(status=GPUNodeStatus(stages=stages), urgent=False)


def test_progress_of_many_nodes_is_held_back_while_they_get_on() -> None:
    clock = [0.0]
    settling = Settling(lambda: clock[0])
    assert settling.wait("n1", progress(S.DRIVER), nodes=200) == 60
    clock[0] = 50
    assert settling.wait("n1", progress(S.DRIVER), nodes=200) == 10
    assert settling.wait("n1", progress(S.DRIVER, S.TOOLKIT), nodes=200) == 60
    clock[0] = 110
    assert settling.wait("n1", progress(S.DRIVER, S.TOOLKIT), nodes=200) == 0
    assert settling.wait("n1", progress(S.DRIVER, S.TOOLKIT), nodes=200) == 60


def test_progress_is_not_held_back_for_ever() -> None:
    clock = [0.0]
    settling = Settling(lambda: clock[0])
    written = 0
    for step in range(100):
        clock[0] = step * 30.0
        written += settling.wait("n1", progress(*list(S)[: 1 + step % 2]), nodes=200) == 0
    assert written == 100 * 30 // (Settling.PATIENCE * 60 + 30)


reports = st.lists(
    st.tuples(
        st.sampled_from([S.DRIVER, S.TOOLKIT, S.CUDA, S.PLUGIN]),
        st.sampled_from([StageState.DONE, StageState.FAILED, StageState.PRESENT]),
        st.integers(0, 2),
        st.sets(st.sampled_from(sorted(ALL))),
    ),
    max_size=12,
)


@given(reports)
def test_any_history_settles_and_never_opens_a_gate_too_early(
    history: list[tuple[StageName, StageState, int, set[str]]],
) -> None:
    seen = node()
    for name, state, gpus, pods in history:
        before = seen
        have = seen.status or GPUNodeStatus()
        stages = {
            **have.stages,
            name.value: Stage(state=state, since=NOW, reason="X" if state is StageState.FAILED else ""),
        }
        seen = msgspec.structs.replace(
            seen,
            status=msgspec.structs.replace(have, stages=stages),
            offered=100 * gpus,
            pods={gate: OperandPod(gate, True) for gate in pods if GATE[gate] in seen.labels},
        )
        for _ in range(20):
            plan = decide(seen, NOW)
            if plan.empty:
                break
            seen = applied(seen, plan)
            closed = {g for g in seen.pods if GATE[g] not in seen.labels}
            seen = msgspec.structs.replace(seen, pods={g: p for g, p in seen.pods.items() if g not in closed})
        else:
            raise AssertionError("does not settle")
        assert seen.status is not None
        for operand in OPERANDS:
            opened = GATE[operand.gate] in seen.labels and GATE[operand.gate] not in before.labels
            if opened:
                full = view(seen.status.stages)
                assert all(full[need].state.holds for need in operand.needs)


def test_a_taint_that_evicts_the_device_plugin_of_a_ready_node_is_named() -> None:
    off = ("TaintNotTolerated", "the taint a:NoExecute keeps gpuplane's pods off the node", "tolerate it")
    labels = {**GPU_NODE, GPU_LABELLED: "true", **dict.fromkeys(GATE.values(), "true")}
    ready = status(*StageName)
    evicted = decide(node(labels=labels, status=ready, off=off), NOW).status
    assert evicted is not None
    stage = evicted.stages["device-plugin"]
    assert (stage.state, stage.reason, stage.cure) == (StageState.RUNNING, off[0], off[2])
    assert "ready" not in evicted.stages
    later = NOW.replace("10:00", "10:05")
    assert decide(node(labels=labels, status=evicted, off=off), later).status is None, "written once"
    pods = {operand.gate: OperandPod(f"{operand.gate}-x", True) for operand in OPERANDS}
    back = decide(node(labels=labels, status=evicted, pods=pods, offered=100), NOW).status
    assert back is not None and back.stages["ready"].state is StageState.DONE
    # A plugin that is replaced takes nothing back.
    for seen in (node(labels=labels, status=ready), node(labels=labels, status=ready, off=off, offered=100)):
        changed = decide(seen, NOW).status
        assert changed is None or changed.stages["ready"].state is StageState.DONE
