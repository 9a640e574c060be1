"""Simulation of a fleet: 1,000 workers of three kinds, jobs of several models, machines that come, go and are lost.

Every job is placed at its arrival by `worker/gateway/routing.py`, the code of the gateway. Speeds are those of
`worker/qualification/gpu_reference.toml`; start and load times were measured here (`results/engine_start.json`,
`results/model_loading.json`); prices, the time of a machine's boot and the rate at which spot machines are lost are
assumptions, in `KINDS` and `World`. Writes `results/fleet.json`.

    python -m benchmark.fleet [--jobs 20000] [--workers 1000] [--seed 1]
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from darkroom.worker.gateway.routing import Estimate, Need, Offer, Policy, Refusal, choose

RESULTS = Path(__file__).parent / "results" / "fleet.json"
STEP_PIXELS = 512 * 512
DAY_SECONDS = 86_400.0
DEADLINE = 60.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of machine. `its_per_second` is SD1.5 at 512x512; `losses_per_hour` those of a spot machine."""

    name: str
    its_per_second: float
    price_per_hour: float
    share: float
    losses_per_hour: float = 0.0

    @property
    def speed(self) -> float:
        return self.its_per_second * STEP_PIXELS


KINDS = (
    Kind("RTX 4090", 43.0, 0.50, 0.3),
    Kind("RTX 4090 spot", 43.0, 0.30, 0.5, losses_per_hour=0.2),
    Kind("A10", 16.9, 0.25, 0.2),
)


@dataclass(frozen=True, slots=True)
class World:
    """Properties of the jobs and machines. Times are in seconds; `steps` are of images of 1,024 pixels a side."""

    num_workers: int = 1000
    boot_seconds: float = 40.0
    start_seconds: float = 1.6
    load_seconds: float = 1.0
    idle_seconds: float = 300.0
    num_models: int = 20
    steps: tuple[int, int] = (20, 400)
    checkpoint_seconds: float | None = 5.0
    kinds: tuple[Kind, ...] = KINDS


@dataclass(slots=True)
class SimulatedJob:
    arrived_at: float
    model: str
    work: float
    began_at: float = 0.0
    ended_at: float = 0.0
    num_losses: int = 0


@dataclass(slots=True)
class Machine:
    """A worker. `free_at` is when it has done all that it was given; it is turned off some time after that."""

    number: int
    kind: Kind
    up_since: float | None = None
    free_at: float = 0.0
    dies_at: float = math.inf
    model: str = ""
    version: int = 0
    up_seconds: float = 0.0
    busy_seconds: float = 0.0
    jobs: list[tuple[float, float, SimulatedJob]] = field(default_factory=list)  # start, end


class Fleet:
    """Machines by what they offer. `place` gives a job to one of them, `lose` takes one away."""

    def __init__(
        self, world: World, policy: Policy, chance: random.Random, deadline_seconds: float | None = None
    ) -> None:
        self._world, self._policy, self._chance = world, policy, chance
        self._deadline_seconds = deadline_seconds
        self.machines: list[Machine] = []
        for kind in world.kinds:
            self.machines += [Machine(0, kind) for _ in range(round(kind.share * world.num_workers))]
        self._off: dict[str, list[Machine]] = {kind.name: [] for kind in world.kinds}
        for number, machine in enumerate(self.machines):
            machine.number = number
            self._off[machine.kind.name].append(machine)
        self._ready: dict[tuple[str, str], list[tuple[float, int, int]]] = {}  # kind, model -> by the time it is free

    def place(self, job: SimulatedJob, now: float) -> Machine:
        """Give a job to the machine that the policy chooses."""
        found = list(self._offers(now))
        need = Need(job.work, (job.model,), self._deadline_seconds)
        chosen = choose(need, found, self._policy)
        if isinstance(chosen, Refusal):  # none is in time: as soon as may be
            chosen = choose(replace(need, deadline_seconds=None), found, Policy.SOONEST)
        assert isinstance(chosen, Estimate), "without limits there is a machine for every job"
        machine = self.machines[int(chosen.worker)]
        if machine.up_since is None:
            self._turn_on(machine, now)
        begin = now + chosen.start_seconds
        job.began_at, job.ended_at = begin + chosen.load_seconds, now + chosen.end_seconds
        machine.jobs = [item for item in machine.jobs if item[1] > now]
        machine.jobs.append((begin, job.ended_at, job))
        machine.busy_seconds += chosen.end_seconds - chosen.start_seconds
        machine.free_at, machine.model = job.ended_at, job.model
        self._file(machine)
        return machine

    def lose(self, machine: Machine, now: float) -> list[SimulatedJob]:
        """Take a machine away; return the jobs that it has not done, with what is left of their work."""
        left = []
        for begin, end, job in machine.jobs:
            if end <= now:
                continue
            machine.busy_seconds -= end - max(now, begin)
            if begin < now:
                job.num_losses += 1
                job.work *= 1 - self._kept_share(now - job.began_at, end - job.began_at)
            left.append(job)
        machine.jobs, machine.free_at = [], now
        self._turn_off(machine, now)
        return left

    def _kept_share(self, seconds: float, of_seconds: float) -> float:
        interval = self._world.checkpoint_seconds
        if interval is None or seconds <= 0:
            return 0.0
        return min(1.0, math.floor(seconds / interval) * interval / of_seconds)

    def close(self, now: float) -> None:
        """Turn every machine off, as it would be after its idle time."""
        for machine in self.machines:
            if machine.up_since is not None:
                self._turn_off(machine, min(now, machine.free_at + self._world.idle_seconds))

    def _offers(self, now: float) -> Iterator[Offer]:
        """Yield the best of each group: of machines with the same speed, price and model only the first free counts."""
        world = self._world
        for (_, model), heap in self._ready.items():
            while heap:
                free_at, number, version = heap[0]
                machine = self.machines[number]
                if machine.version != version:
                    heapq.heappop(heap)
                elif free_at + world.idle_seconds < now:
                    heapq.heappop(heap)
                    self._turn_off(machine, free_at + world.idle_seconds)
                else:
                    yield self._offer(machine, max(0.0, free_at - now), {model: 0.0})
                    break
        for name in self._off:
            if self._off[name]:
                yield self._offer(self._off[name][-1], world.boot_seconds + world.start_seconds, {})

    def _offer(self, machine: Machine, wait_seconds: float, loaded: dict[str, float]) -> Offer:
        kind = machine.kind
        return Offer(
            str(machine.number), kind.speed, kind.price_per_hour, wait_seconds, loaded, self._world.load_seconds
        )

    def _file(self, machine: Machine) -> None:
        machine.version += 1
        heap = self._ready.setdefault((machine.kind.name, machine.model), [])
        heapq.heappush(heap, (machine.free_at, machine.number, machine.version))

    def _turn_on(self, machine: Machine, now: float) -> None:
        self._off[machine.kind.name].remove(machine)
        machine.up_since = now
        rate = machine.kind.losses_per_hour / 3600
        machine.dies_at = now + self._chance.expovariate(rate) if rate else math.inf

    def _turn_off(self, machine: Machine, at: float) -> None:
        assert machine.up_since is not None
        machine.up_seconds += at - machine.up_since
        machine.up_since, machine.dies_at, machine.model = None, math.inf, ""
        machine.version += 1
        self._off[machine.kind.name].append(machine)


def simulate(
    world: World,
    policy: Policy,
    arrivals: list[float],
    seed: int,
    work_of: Callable[[random.Random], float] | None = None,
    deadline_seconds: float | None = None,
) -> dict[str, Any]:
    """Return the figures of one run: jobs arrive at those seconds, and nothing else happens by chance but losses."""
    chance, losses = random.Random(seed), random.Random(seed + 1)  # noqa: S311 - a simulation
    fleet = Fleet(world, policy, losses, deadline_seconds)
    weights = [1 / (rank + 1) for rank in range(world.num_models)]
    jobs = []
    for at in arrivals:
        (model,) = chance.choices(range(world.num_models), weights)
        work = 4 * STEP_PIXELS * chance.uniform(*world.steps) if work_of is None else work_of(chance)
        jobs.append(SimulatedJob(at, f"model-{model}", work))
    events: list[tuple[float, int, Any]] = [(job.arrived_at, number, job) for number, job in enumerate(jobs)]
    heapq.heapify(events)
    number, watched = len(jobs), set[int]()
    while events:
        now, _, item = heapq.heappop(events)
        placed = [item] if isinstance(item, SimulatedJob) else []
        if isinstance(item, Machine):
            watched.discard(item.number)
            if now < item.dies_at < math.inf:  # started anew since
                watched.add(item.number)
                heapq.heappush(events, (item.dies_at, (number := number + 1), item))
            elif now == item.dies_at and now < item.free_at + world.idle_seconds:
                placed = fleet.lose(item, now)
        for job in placed:
            machine = fleet.place(job, now)
            if machine.dies_at < math.inf and machine.number not in watched:
                watched.add(machine.number)
                heapq.heappush(events, (machine.dies_at, (number := number + 1), machine))
    fleet.close(max(job.ended_at for job in jobs) + world.idle_seconds)
    return figures(fleet, jobs)


def figures(fleet: Fleet, jobs: list[SimulatedJob]) -> dict[str, Any]:
    waits = sorted(job.began_at - job.arrived_at for job in jobs)
    up = sum(machine.up_seconds for machine in fleet.machines)
    cost = sum(machine.up_seconds * machine.kind.price_per_hour / 3600 for machine in fleet.machines)
    return {
        "cost_per_1000": round(1000 * cost / len(jobs), 3),
        "wait_p50_seconds": round(waits[len(waits) // 2], 2),
        "wait_p99_seconds": round(waits[int(len(waits) * 0.99)], 2),
        "utilisation": round(sum(machine.busy_seconds for machine in fleet.machines) / up, 3),
        "most_workers": sum(1 for machine in fleet.machines if machine.up_seconds),
        "losses": sum(job.num_losses for job in jobs),
    }


def poisson(chance: random.Random, num_jobs: int, per_second: float) -> list[float]:
    return thinned(chance, num_jobs, per_second, lambda at: 1.0)


def daily(chance: random.Random, num_jobs: int, per_second: float) -> list[float]:
    """Return arrivals that swing between a tenth of the peak at night and the peak at noon."""
    return thinned(chance, num_jobs, per_second, lambda at: 0.55 - 0.45 * math.cos(2 * math.pi * at / DAY_SECONDS))


def bursts(chance: random.Random, num_jobs: int, per_second: float) -> list[float]:
    """Return arrivals of which a minute in ten has all that the other nine do not have."""
    return thinned(chance, num_jobs, per_second, lambda at: 1.0 if at % 600 < 60 else 0.05)


def thinned(
    chance: random.Random, num_jobs: int, peak_per_second: float, share: Callable[[float], float]
) -> list[float]:
    found: list[float] = []
    now = 0.0
    while len(found) < num_jobs:
        now += chance.expovariate(peak_per_second)
        if chance.random() < share(now):
            found.append(now)
    return found


ARRIVALS = {"poisson": (poisson, 20.0), "daily": (daily, 2.0), "bursts": (bursts, 60.0)}


def run(num_jobs: int, num_workers: int, seed: int) -> dict[str, Any]:
    rows = []
    for name, (make, per_second) in ARRIVALS.items():
        arrivals = make(random.Random(seed), num_jobs, per_second)  # noqa: S311 - a simulation
        for policy in Policy:
            world = World(num_workers=num_workers)
            rows.append({"arrivals": name, "policy": policy.value, **simulate(world, policy, arrivals, seed)})
        in_time = simulate(World(num_workers=num_workers), Policy.CHEAPEST, arrivals, seed, deadline_seconds=DEADLINE)
        rows.append({"arrivals": name, "policy": f"cheapest within {DEADLINE:g} s", **in_time})
        world = World(num_workers=num_workers, checkpoint_seconds=None)
        without = simulate(world, Policy.BALANCED, arrivals, seed)
        rows.append({"arrivals": name, "policy": f"{Policy.BALANCED.value}, no checkpoints", **without})
    return {
        "what": f"{num_jobs} jobs each, up to {num_workers} workers",
        "peak_per_second": {name: rate for name, (_, rate) in ARRIVALS.items()},
        "seed": seed,
        "when": time.strftime("%Y-%m-%d"),
        "rows": rows,
    }


def show(result: dict[str, Any]) -> None:
    table = Table(title=result["what"])
    for name in result["rows"][0]:
        table.add_column(name)
    for row in result["rows"]:
        table.add_row(*map(str, row.values()))
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    result = run(given.jobs, given.workers, given.seed)
    show(result)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
