"""Runs the chaos: `python -m tests.chaos --minutes 10 [--seed N]`, or `make chaos`.

Rounds of faults, each ended by calm, in which everything has to come right. Exit code 1 for a violation.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kubekit.errors import KubekitError
from kubekit.kube import Client
from tests.chaos.api_faults import ApiFault, ApiFaults
from tests.chaos.check import ChaosState, violations, waiting_in_vain
from tests.chaos.observing import observe
from tests.chaos.tenants import Tenants
from tests.chaos.world import Victim, World, make_base, send
from tests.support.until import until
from tinykube.kubelet.containers import MARK

FAULTS_SECONDS, CALM_SECONDS = 40.0, 150.0
LONGEST_STOP_SECONDS, LONGEST_JUMP_SECONDS = 8.0, 3600.0
_OWN_MOUNTS: Final = "GPUPLANE_CHAOS_MOUNTS"


class ChaosRun:
    """One run. `found` is each violation with the second in which it was seen first."""

    def __init__(self, world: World, client: Client, seed: int) -> None:
        self._world = world
        self._client = client
        self._random = random.Random(seed)
        self._tenants = Tenants(client, random.Random(seed + 1))
        self._began = time.monotonic()
        self._stopped: set[Victim] = set()
        self._looks = 0
        self.counts: Counter[str] = Counter()
        self.found: dict[str, float] = {}

    async def run(self, seconds: float) -> None:
        """Rounds until the time is over, then the removal."""
        ends = time.monotonic() + seconds
        watching = asyncio.create_task(self._watch())
        try:
            while time.monotonic() < ends:
                await self._faults(min(FAULTS_SECONDS, ends - time.monotonic()))
                await self._calm()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await self._tenants.leave()
        self._note(await self._world.uninstall(self._client))

    def summary(self) -> str:
        """Return the actions and findings, one line each."""
        parts = [f"{name}={count}" for name, count in sorted(self.counts.items())]
        parts += [f"pods {name}={count}" for name, count in sorted(self._tenants.counts.items())]
        lines = [f"looks={self._looks} {' '.join(parts)}"]
        lines += [f"turned away {count} times: {why}" for why, count in self._tenants.ends.most_common()]
        lines += [f"VIOLATION after {at:.0f} s: {what}" for what, at in self.found.items()]
        return "\n".join(lines)

    # -- steps -------------------------------------------------------------------------------------------------------

    async def _faults(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        kinds = [self._kill, self._kill, self._stop, self._stop, self._api, self._jump]
        if self._world.disk:
            kinds.append(self._full)
        while time.monotonic() < ends:
            for _ in range(self._random.randint(1, 3)):
                await self._tenants.step()
            if self._random.random() < 0.5:
                fault = self._random.choice(kinds)
                try:
                    await fault()
                except AssertionError as error:
                    self._note([str(error)])
            await asyncio.sleep(self._random.uniform(0.1, 1.5))

    async def _kill(self) -> None:
        victim = self._random.choice(self._world.victims())
        self._did("kill", victim.name)
        self._stopped = {one for one in self._stopped if one.pid != victim.pid}
        await self._world.kill(victim)

    async def _stop(self) -> None:
        victim = self._random.choice(self._world.victims())
        if victim in self._stopped:
            return
        self._did("stop", victim.name)
        self._stopped.add(victim)
        send(victim, signal.SIGSTOP)
        pause = self._random.uniform(0.5, LONGEST_STOP_SECONDS)
        asyncio.get_running_loop().call_later(pause, self._continue, victim)
        if victim.name in ("cluster", "supervisor"):
            await asyncio.sleep(pause)  # each of them starts the other again

    def _continue(self, victim: Victim) -> None:
        if victim in self._stopped:
            self._stopped.discard(victim)
            send(victim, signal.SIGCONT)

    async def _api(self) -> None:
        kinds = tuple(self._random.sample(list(ApiFault), self._random.randint(1, 3)))
        faults = ApiFaults(kinds=kinds, part=self._random.choice((0.05, 0.2, 0.5, 1.0)), seconds=2.0)
        self._did("api", f"{','.join(kinds)} {faults.part:.0%}")
        self._world.set_api(faults)
        await asyncio.sleep(self._random.uniform(1.0, 8.0))
        self._world.set_api(ApiFaults())

    async def _jump(self) -> None:
        seconds = self._random.uniform(-LONGEST_JUMP_SECONDS, LONGEST_JUMP_SECONDS)
        if self._random.random() < 0.7:
            seconds /= 60
        self._did("clock", f"{seconds:+.0f} s")
        self._world.set_clock(seconds)
        await asyncio.sleep(self._random.uniform(1.0, 8.0))

    async def _full(self) -> None:
        self._did("disk", "full")
        await asyncio.to_thread(self._world.fill)
        await asyncio.sleep(self._random.uniform(1.0, 5.0))
        self._world.heal()

    async def _calm(self) -> None:
        """End all faults; everything comes right, and no pod waits that fits."""
        for victim in list(self._stopped):
            self._continue(victim)
        self._world.heal()
        began, last = time.monotonic(), ChaosState()

        async def right() -> bool:
            nonlocal last
            last = await observe(self._world, self._client)
            settled = not any(pod.leaving for pod in last.pods) and not waiting_in_vain(last)
            paged = all(pod.page is not None for pod in last.pods if pod.phase == "Running" and pod.core)
            return settled and paged and await self._world.all_ready(self._client)

        try:
            await until(right, poll=1.0, seconds=CALM_SECONDS, ignored=(KubekitError, OSError), what="calm")
        except AssertionError:
            wrong = [f"{pod.name} does not end" for pod in last.pods if pod.leaving] + waiting_in_vain(last)
            self._note(wrong or ["not every node is ready and every share limited, in calm"])
        took = time.monotonic() - began
        phases = Counter(pod.phase for pod in last.pods)
        print(f"{self._now():5.0f} s  calm after {took:.0f} s  {dict(phases)}", flush=True)
        self.counts["calm"] += 1

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(KubekitError, OSError):
                self._note(violations(await observe(self._world, self._client)))
                self._looks += 1
            await asyncio.sleep(0.5)

    def _did(self, what: str, whom: str) -> None:
        self.counts[what] += 1
        print(f"{self._now():5.0f} s  {what:5}  {whom}", flush=True)

    def _note(self, wrong: list[str]) -> None:
        for what in wrong:
            if what not in self.found:
                self.found[what] = self._now()
                print(f"{self._now():5.0f} s  VIOLATION  {what}", flush=True)

    def _now(self) -> float:
        return time.monotonic() - self._began


async def chaos(world: World, minutes: float, seed: int, logs: Path | None = None) -> int:
    """Run once; 1 where something was violated. `logs` is a directory for the logs of the cluster."""
    try:
        await world.start()
        async with Client.connect(world.handle.kubeconfig) as client:
            run = ChaosRun(world, client, seed)
            try:
                await run.run(60 * minutes)
            finally:
                print(run.summary(), flush=True)
        print(f"seed {seed}: {len(run.found)} violations", flush=True)
        return 1 if run.found else 0
    finally:
        if logs is not None:
            world.copy_logs(logs)
        await world.stop()


@contextlib.contextmanager
def place(*, disk: bool) -> Iterator[Path]:
    """A directory for the cluster. Its processes end with the context, also where this process is killed."""
    base = make_base(disk)
    os.environ[MARK] = f"{base}/"
    watch = subprocess.Popen(
        [sys.executable, "-m", "tests.support.leftovers", str(base)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield base
    finally:
        watch.communicate()
        if disk:
            subprocess.run(["umount", "--lazy", str(base)], check=False)
        shutil.rmtree(base, ignore_errors=True)


def may_mount() -> bool:
    """Return whether this process has mounts of its own, in which it may have a small disk."""
    return os.environ.get(_OWN_MOUNTS) == "1"


def take_own_mounts() -> str:
    """Start this program again with mounts of its own; returns why not where the machine refuses."""
    if may_mount():
        return ""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "an ordinary user has no small disk to fill"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        return "this machine lets root have no mounts of its own"
    words = ["unshare", "--mount", sys.executable, "-m", "tests.chaos", *sys.argv[1:]]
    return os.execvpe(words[0], words, {**os.environ, _OWN_MOUNTS: "1"})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Break an embedded cluster at random.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of an earlier run (default: a random one)")
    parser.add_argument("--logs", type=Path, metavar="DIRECTORY", help="copy the logs of the cluster there")
    options = parser.parse_args()
    if why := take_own_mounts():
        print(f"without full disks: {why}")
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with place(disk=may_mount()) as base:
        return asyncio.run(chaos(World(base, disk=may_mount()), options.minutes, seed, options.logs))


if __name__ == "__main__":
    sys.exit(main())
