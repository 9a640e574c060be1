"""Hit rates of the eviction policies of model files on a generated trace of jobs.

    python -m benchmark.model_eviction

A job names a base model, and none to three LoRAs. Bases and LoRAs have popularities by Zipf's law that drift as days
pass, callers come back with the same models for a while, and every day some files are used once and never again. The
trace is made from a fixed seed. For each disk size and policy: the share of files and of bytes found on disk, and the
hours that the other files take to fetch at 200 MB/s and 2 s each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from darkroom.worker.models.eviction import (
    FETCH_BYTES_PER_SECOND,
    FETCH_SECONDS,
    EvictionRules,
    FileUse,
    Policy,
    after_use,
    choose_victims,
    first_use,
)

GB: Final = 10**9
SEED: Final = 20
NUM_JOBS: Final = 20_000
JOBS_PER_DAY: Final = 1000
BASE_SIZES_GB: Final = (2.1, 2.1, 6.9, 6.9, 6.9, 6.9, 6.5, 11.6, 12.3, 17.2, 17.2, 20.4, 23.8, 35.5)
LORA_SIZES_GB: Final = (0.04, 0.15, 0.23, 0.34, 0.68, 1.2)
NUM_BASES, NUM_LORAS = 40, 400
DISKS_GB: Final = (50, 100, 200, 400)
POLICIES: Final[Sequence[Policy]] = ("lru", "gdsf", "ttl")
UNUSED_SECONDS: Final = 2 * 86400.0


@dataclass(frozen=True, slots=True)
class Request:
    """One file that a job names, at a time in seconds."""

    at_seconds: float
    place: str
    size_bytes: int


@dataclass(slots=True)
class Outcome:
    """Requests that found their file on disk, of all."""

    hits: int = 0
    requests: int = 0
    hit_bytes: int = 0
    bytes: int = 0
    fetch_seconds: float = 0.0

    def row(self) -> str:
        shares = f"{100 * self.hits / self.requests:.1f} % | {100 * self.hit_bytes / self.bytes:.1f} %"
        return f"{shares} | {self.fetch_seconds / 3600:.1f}"


def generated_trace(seed: int = SEED, num_jobs: int = NUM_JOBS) -> Iterator[Request]:
    """Yield the files that jobs name, in order."""
    chance = random.Random(seed)
    bases = [(f"base{n}", int(chance.choice(BASE_SIZES_GB) * GB)) for n in range(NUM_BASES)]
    loras = [(f"lora{n}", int(chance.choice(LORA_SIZES_GB) * GB)) for n in range(NUM_LORAS)]
    session: list[tuple[str, int]] = []
    for number in range(num_jobs):
        at = number * 86400.0 / JOBS_PER_DAY
        if number % JOBS_PER_DAY == 0:  # what is in fashion changes slowly
            for files in (bases, loras):
                newest = chance.randrange(len(files))
                files.insert(0, files.pop(newest))
        if not session or chance.random() < 0.3:
            session = [_by_zipf(bases, chance)]
            session += [_by_zipf(loras, chance) for _ in range(chance.choice((0, 1, 1, 2, 3)))]
            if chance.random() < 0.02:
                session.append((f"once{number}", int(chance.choice(LORA_SIZES_GB + BASE_SIZES_GB) * GB)))
        for place, size_bytes in session:
            yield Request(at, place, size_bytes)


def simulate(trace: Sequence[Request], rules: EvictionRules) -> Outcome:
    """Return the hits of a disk with these rules, in requests and bytes."""
    files: dict[str, FileUse] = {}
    clock, outcome = 0.0, Outcome()
    for request in trace:
        outcome.requests += 1
        outcome.bytes += request.size_bytes
        known = files.get(request.place)
        if known is not None:
            outcome.hits += 1
            outcome.hit_bytes += request.size_bytes
            files[request.place] = after_use(known, request.at_seconds, clock)
            continue
        outcome.fetch_seconds += FETCH_SECONDS + request.size_bytes / FETCH_BYTES_PER_SECOND
        now, size_bytes = request.at_seconds, request.size_bytes
        for victim in choose_victims(files.values(), (), rules, now, room_bytes=size_bytes):
            clock = max(clock, victim.worth)
            del files[victim.place]
        files[request.place] = first_use(request.place, size_bytes, now, clock)
    return outcome


def _by_zipf(files: Sequence[tuple[str, int]], chance: random.Random) -> tuple[str, int]:
    weights = [1 / (rank + 1) ** 0.9 for rank in range(len(files))]
    return chance.choices(files, weights)[0]


def main() -> None:
    trace = list(generated_trace())
    print("| Disk | Policy | Files | Bytes | Hours of download |\n| --- | --- | --- | --- | --- |")  # noqa: T201
    for disk in DISKS_GB:
        for policy in POLICIES:
            outcome = simulate(trace, EvictionRules(policy, disk * GB, UNUSED_SECONDS))
            print(f"| {disk} GB | `{policy}` | {outcome.row()} |")  # noqa: T201


if __name__ == "__main__":
    main()
