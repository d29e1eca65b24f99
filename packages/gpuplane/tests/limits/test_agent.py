"""The agent on a simulated GPU: what NVML sees of real processes, and the pages as the library would write them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.limits import Agent, Escape, Observer, Owner, Share, message, share_metrics
from gpuplane.limits.facts import ProcessSlot
from gpuplane.limits.observe import unsteady
from gpuplane.limits.page import owner_word
from gpuplane.limits.processes import facts_of, living_namespaces
from kubekit.errors import Retryable
from kubekit.kube.exposition import exposition
from tests.support.limits_examples import GIB, limits, write_slot

HOLDS = "context(); allocate(1 << 30); ready()"


def word_of(child: subprocess.Popen[str]) -> int:
    facts = facts_of(child.pid)
    assert facts is not None and facts.namespace is not None
    return owner_word(facts.inner_pid, facts.namespace, facts.start)


def test_what_a_context_costs_is_measured_and_counted(machine: Any) -> None:
    store, gpu = machine.store, machine.gpu
    store.write("x", limits(gpu.uuid), Owner(name="a"))
    child = machine.start(HOLDS)
    write_slot(store, "x", 3, word_of(child), GIB)
    agent = Agent(store, machine.gpus)
    plan = agent.step()
    [seen] = machine.gpus.processes(gpu.uuid)
    assert seen.memory_bytes is not None and seen.memory_bytes > GIB
    assert [(c.slot, c.bytes) for c in plan.corrections] == [(3, seen.memory_bytes - GIB)]
    assert store.read("x").slots[0].gpus[0].memory_bytes == seen.memory_bytes
    assert store.read("x").slots[0].host_pid == child.pid
    plan = agent.step()
    assert plan.corrections == plan.pids == (), "so already"
    store.write("later", limits(gpu.uuid), Owner(name="b"))
    assert store.read("later").limits.gpus[0].context_bytes == seen.memory_bytes - GIB
    store.write("later", limits(gpu.uuid), Owner(name="b"))
    assert store.resize("later", limits(gpu.uuid)) is False
    [view] = agent.views()
    assert view.shares[0].memory_bytes == seen.memory_bytes and view.outside == ()


def test_who_got_round_the_library_is_told_once_with_its_share(machine: Any) -> None:
    store, gpu = machine.store, machine.gpu
    directory = store.write("x", limits(gpu.uuid), Owner(name="ml/tune-7:main"))
    inside = machine.start(HOLDS, **{names.LIMITS_ENV: str(directory)})
    foreign = machine.start(HOLDS)
    reported: list[tuple[Escape, Share | None]] = []
    agent = Agent(store, machine.gpus, on_escape=lambda escape, share: reported.append((escape, share)))
    for _ in range(3):
        agent.step()
    assert {(escape.pid, share.id if share else "") for escape, share in reported} == {
        (inside.pid, "x"),
        (foreign.pid, ""),
    }
    texts = {escape.pid: message(escape, share) for escape, share in reported}
    assert "of ml/tune-7:main got round the limits: 1" in texts[inside.pid]
    assert "is outside every limit" in texts[foreign.pid]
    [view] = agent.views()
    assert {outside.pid: outside.name for outside in view.outside} == {inside.pid: "ml/tune-7:main", foreign.pid: ""}
    text = exposition(share_metrics(agent.views())).decode()
    assert f'gpuplane_limits_escaped_processes{{gpu="0",UUID="{gpu.uuid}"}} 2' in text
    inside.communicate("\n")
    foreign.communicate("\n")
    assert agent.step().escapes == () and len(reported) == 2


def test_by_policy_a_process_of_a_share_that_goes_round_the_limits_is_killed_and_no_other(machine: Any) -> None:
    store, gpu = machine.store, machine.gpu
    directory = store.write("x", limits(gpu.uuid), Owner(name="ml/x:main"))
    inside = machine.start(HOLDS, **{names.LIMITS_ENV: str(directory)})
    foreign = machine.start(HOLDS)
    reported: list[int] = []
    Agent(store, machine.gpus, on_escape=lambda escape, share: reported.append(escape.pid), stop=True).step()
    assert sorted(reported) == sorted((inside.pid, foreign.pid))
    assert inside.wait(timeout=30) == -signal.SIGKILL and foreign.poll() is None


@pytest.mark.namespaces
def test_slots_of_a_pid_namespace_that_is_gone_are_emptied(machine: Any) -> None:
    if living_namespaces() is None:
        pytest.skip("these tests do not run in the machine's own pid namespace")
    store, gpu = machine.store, machine.gpu
    store.write("x", limits(gpu.uuid), Owner(name="a"))
    child = machine.start(HOLDS)
    write_slot(store, "x", 0, word_of(child), GIB, namespace=facts_of(child.pid).namespace)  # type: ignore[union-attr, arg-type]
    write_slot(store, "x", 1, owner_word(1, 4711, 99), GIB, namespace=4711)
    write_slot(store, "x", 2, owner_word(1, 4711, 98), GIB)  # it is just being taken
    Agent(store, machine.gpus).step()
    assert [slot.number for slot in store.read("x").slots] == [0, 2]


def test_memory_and_processes_of_a_share_fall_when_its_process_ends_and_its_container_goes_on(machine: Any) -> None:
    store, gpu = machine.store, machine.gpu
    store.write("x", limits(gpu.uuid), Owner(name="ml/nb:main"))
    ends, stays, idle = machine.start(HOLDS), machine.start(HOLDS), machine.start("ready()")
    for number, child in enumerate((ends, stays, idle)):
        write_slot(store, "x", number, word_of(child), GIB, namespace=facts_of(child.pid).namespace)  # type: ignore[union-attr, arg-type]
    agent = Agent(store, machine.gpus)
    agent.step()
    assert [slot.number for slot in store.read("x").slots] == [0, 1, 2], "one that has no context yet runs too"
    ends.communicate("\n")
    agent.step()
    agent.step()
    assert [slot.number for slot in store.read("x").slots] == [1, 2]
    stays.communicate("\n")
    idle.communicate("\n")
    agent.step()
    agent.step()
    text = exposition(share_metrics(agent.views())).decode().splitlines()
    assert [line.rpartition(" ")[2] for line in text if line.startswith("gpuplane_share_processes")] == ["0"]
    assert [line.rpartition(" ")[2] for line in text if line.startswith("gpuplane_share_memory_bytes")] == ["0"]


def test_shares_that_are_gone_are_removed(machine: Any) -> None:
    store = machine.store
    for name in ("x", "y"):
        store.write(name, limits(machine.gpu.uuid), Owner(name=name, pod_uid=name))
    Agent(store, machine.gpus, is_gone=lambda share: share.owner.pod_uid == "x").step()
    assert [share.id for share in store.all()] == ["y"]


class Broken(Observer):
    """NVML while a driver is being replaced: three times no, then as ever."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.left = 3

    def observe(self) -> Any:
        self.left -= 1
        if self.left >= 0:
            raise Retryable("Driver Not Loaded", where="NVML")
        return super().observe()


async def test_a_driver_that_is_away_is_waited_for(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    store = machine.store
    store.write("x", limits(machine.gpu.uuid), Owner(name="a"))
    agent = Agent(store, machine.gpus, observer=Broken(store, machine.gpus))
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if agent.seen is not None:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await agent.run(sleep)
    assert len(slept) == 4
    assert caplog.text.count("Driver Not Loaded") == 1


def test_what_moved_between_two_readings_is_unsteady() -> None:
    from gpuplane.limits.facts import GpuUse

    def share(*slots: tuple[int, int, int, int], changes: tuple[int, int] = (0, 0)) -> Share:
        made = tuple(
            ProcessSlot(
                number=number,
                owner=owner,
                namespace=0,
                start=0,
                generation=1,
                changes=changes,
                gpus=(GpuUse(held_bytes=held, asking_bytes=asking),),
            )
            for number, owner, held, asking in slots
        )
        return Share(id="x", owner=Owner(name="x"), limits=limits(), slots=made)

    before = share((0, 9, 100, 0), (1, 9, 100, 0), (2, 9, 100, 0), (3, 9, 100, 0))
    after = share((0, 9, 100, 0), (1, 9, 200, 0), (2, 8, 100, 0), (3, 9, 100, 5), (4, 9, 0, 0))
    assert unsteady(before, after) == {1, 2, 3, 4}
    calm, called, in_a_call = (share((0, 9, 100, 0), changes=changes) for changes in ((4, 4), (5, 5), (5, 4)))
    assert unsteady(calm, calm) == set()
    assert unsteady(calm, called) == unsteady(called, in_a_call) == unsteady(in_a_call, in_a_call) == {0}


class Churning:
    """NVML, while the process allocates and frees 2 MiB: its first answers are of a moment in between."""

    def __init__(self, machine: Any, allocate: Any, times: int) -> None:
        self._machine, self._allocate, self._left = machine, allocate, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine.gpus, name)

    def processes(self, uuid: str) -> Any:
        self._left -= 1
        if self._left < 0:
            return self._machine.gpus.processes(uuid)
        self._allocate(self._left)
        seen = self._machine.gpus.processes(uuid)
        return [msgspec.structs.replace(one, memory_bytes=one.memory_bytes + (2 << 20)) for one in seen]


def test_a_process_that_allocates_all_the_time_is_measured_rightly(machine: Any) -> None:
    store, gpu = machine.store, machine.gpu
    store.write("x", limits(gpu.uuid), Owner(name="a"))
    child = machine.start(HOLDS)

    def allocate(count: int) -> None:
        write_slot(store, "x", 0, word_of(child), GIB, changes=(100 - count, 100 - count))

    allocate(90)
    agent = Agent(store, Churning(machine, allocate, times=4))  # type: ignore[arg-type]
    [seen] = machine.gpus.processes(gpu.uuid)
    assert [c.bytes for c in agent.step().corrections] == [seen.memory_bytes - GIB]
    agent = Agent(store, Churning(machine, allocate, times=50))  # type: ignore[arg-type]
    assert agent.step().corrections == (), "what is known stays while nothing can be compared"


def test_what_a_context_costs_is_forgotten_with_the_last_share_of_its_gpu(machine: Any) -> None:
    store = machine.store
    for name in ("x", "y"):
        store.write(name, limits(machine.gpu.uuid), Owner(name=name, pod_uid=name))
    store.learn_context(machine.gpu.uuid, 300 << 20)
    store.remove("x")
    assert store.context_bytes(machine.gpu.uuid) == 300 << 20
    Agent(store, machine.gpus, is_gone=lambda share: True).step()
    assert store.context_bytes(machine.gpu.uuid) == 0


def test_a_process_is_found_by_the_limits_that_its_container_has_mounted(tmp_path: Path, machine: Any) -> None:
    """A /proc as the host sees a container's: its root has our file where limits are mounted."""
    store, gpu = machine.store, machine.gpu
    directory = store.write("x", limits(gpu.uuid), Owner(name="a"))
    child = machine.start(HOLDS)
    proc = tmp_path / "proc"
    home = proc / str(child.pid)
    mounted = home / "root/etc/vcuda"
    mounted.mkdir(parents=True)
    (mounted / "limits").hardlink_to(directory / "limits")
    for name in ("stat", "status", "comm", "cgroup"):
        (home / name).write_bytes(Path(f"/proc/{child.pid}/{name}").read_bytes())
    (home / "status").write_text(f"NSpid:\t{child.pid}\t14\n")
    [process] = Observer(store, machine.gpus, proc=proc).observe().processes
    assert (process.pid, process.share, process.namespace_known) == (child.pid, "x", False)
