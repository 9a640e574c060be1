"""Eviction of downloaded model files: the policies, and the level on disk that carries them out."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from benchmark.model_eviction import generated_trace, simulate
from darkroom.worker.models.disk_level import DiskLevel
from darkroom.worker.models.eviction import (
    EvictionRules,
    FileUse,
    Policy,
    after_use,
    choose_victims,
    first_use,
    victims_for_room,
)
from darkroom.worker.models.files import checksum_path

GB = 10**9


def use(place: str, size_gb: float, used_at: float, num_uses: int = 1) -> FileUse:
    made = first_use(place, int(size_gb * GB), used_at, 0.0)
    for _ in range(num_uses - 1):
        made = after_use(made, used_at, 0.0)
    return made


def places(victims: list[FileUse]) -> list[str]:
    return [victim.place for victim in victims]


FILES = [use("a", 6, 10.0), use("b", 6, 30.0), use("c", 0.2, 20.0), use("d", 6, 40.0, num_uses=9)]


def test_lru_removes_the_longest_unused_until_the_rest_fits() -> None:
    rules = EvictionRules("lru", max_bytes=12 * GB)
    assert places(choose_victims(FILES, (), rules, 50.0)) == ["a", "c"]
    assert places(choose_victims(FILES, ("a",), rules, 50.0)) == ["c", "b"]
    assert places(choose_victims(FILES, ("a", "b", "d"), rules, 50.0, room_bytes=GB)) == ["c"]
    assert choose_victims(FILES, (), EvictionRules("lru"), 50.0, room_bytes=100 * GB) == []


def test_gdsf_keeps_what_is_used_often_and_what_is_small() -> None:
    rules = EvictionRules("gdsf", max_bytes=12 * GB)
    assert places(choose_victims(FILES, (), rules, 50.0)) == ["a", "b"]


def test_ttl_removes_what_was_unused_even_where_there_is_room() -> None:
    rules = EvictionRules("ttl", max_bytes=100 * GB, unused_seconds=25.0)
    assert places(choose_victims(FILES, (), rules, 50.0)) == ["a", "c"]
    assert places(choose_victims(FILES, ("c",), rules, 50.0)) == ["a"]


def test_room_is_made_as_far_as_files_are_free() -> None:
    rules = EvictionRules("lru", max_bytes=GB)
    assert places(victims_for_room(FILES, (), rules, 7 * GB)) == ["a", "c", "b"]
    assert places(victims_for_room(FILES, ("a", "b"), rules, 100 * GB)) == ["c", "d"]


def test_old_uses_count_less_as_the_clock_goes_on() -> None:
    old = use("old", 6, 0.0, num_uses=3)
    new = first_use("new", 6 * GB, 9.0, clock=old.worth)
    assert new.worth > old.worth


@pytest.mark.parametrize("policy", ["lru", "gdsf", "ttl"])
@pytest.mark.parametrize("seed", range(5))
def test_held_files_stay_and_the_limit_is_kept_where_it_can_be(policy: Policy, seed: int) -> None:
    chance = random.Random(seed)
    files = [use(f"f{n}", chance.uniform(0.1, 9), chance.uniform(0, 100), chance.randint(1, 5)) for n in range(30)]
    held = {file.place for file in files if chance.random() < 0.3}
    rules = EvictionRules(policy, max_bytes=int(chance.uniform(5, 90) * GB), unused_seconds=50.0)
    victims = choose_victims(files, held, rules, 100.0)
    assert not held & set(places(victims)) and len(victims) == len(set(places(victims)))
    left = [file for file in files if file not in victims]
    fits = sum(file.size_bytes for file in left) <= rules.max_bytes
    assert fits or {file.place for file in left} == held


class Folder:
    """A folder of models with a level on it."""

    def __init__(self, tmp_path: Path, rules: EvictionRules, pinned: tuple[str, ...] = ()) -> None:
        self.path = tmp_path / "models"
        self.evicted: list[str] = []
        self.level = DiskLevel(
            self.path, tmp_path / "uses.json", rules, pinned, lambda place, size: self.evicted.append(place)
        )

    def add(self, place: str, num_bytes: int, *, is_download: bool = True, age_seconds: float = 0.0) -> None:
        path = self.path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(num_bytes))
        if is_download:
            checksum_path(path).write_text("x")
        os.utime(path, (path.stat().st_mtime - age_seconds,) * 2)

    def there(self) -> set[str]:
        return {path.name for path in self.path.rglob("*.safetensors")}


def test_only_downloads_that_nobody_needs_are_evicted(tmp_path: Path) -> None:
    folder = Folder(tmp_path, EvictionRules("lru", max_bytes=250), pinned=("vae/pinned.safetensors",))
    folder.add("vae/pinned.safetensors", 100, age_seconds=90)
    folder.add("vae/own.safetensors", 1000, is_download=False, age_seconds=90)
    folder.add("vae/held.safetensors", 100, age_seconds=80)
    folder.add("vae/old.safetensors", 100, age_seconds=70)
    folder.add("vae/new.safetensors", 40)
    folder.level.use("vae/held.safetensors", "job")
    folder.level.sweep()
    assert folder.evicted == ["vae/old.safetensors"]
    assert folder.there() == {f"{name}.safetensors" for name in ("pinned", "own", "held", "new")}
    folder.level.release("job")
    folder.level.sweep(room_bytes=100)
    assert folder.evicted == [f"vae/{name}.safetensors" for name in ("old", "new", "held")]
    assert folder.level.check_integrity() == []


def test_uses_survive_a_restart(tmp_path: Path) -> None:
    folder = Folder(tmp_path, EvictionRules("gdsf", max_bytes=10**6))
    folder.add("vae/a.safetensors", 100)
    for number in range(3):
        folder.level.use("vae/a.safetensors", f"job{number}")
    folder.level.sweep()
    (again,) = Folder(tmp_path, EvictionRules("gdsf")).level.listed()
    assert (again.place, again.num_uses) == ("vae/a.safetensors", 3)
    (tmp_path / "uses.json").write_text("broken")
    assert Folder(tmp_path, EvictionRules("gdsf")).level.listed()[0].num_uses == 1


def test_without_a_limit_nothing_is_evicted_even_on_a_full_disk(tmp_path: Path) -> None:
    folder = Folder(tmp_path, EvictionRules("gdsf"))
    folder.add("vae/a.safetensors", 100)
    folder.level.make_room(10**12)
    folder.level.sweep(10**12)
    assert folder.evicted == []


@pytest.mark.parametrize("policy", ["lru", "gdsf"])
def test_a_larger_disk_has_more_of_what_is_asked_for(policy: Policy) -> None:
    trace = list(generated_trace(num_jobs=300))
    small, large = (simulate(trace, EvictionRules(policy, disk * GB)) for disk in (40, 200))
    assert 0 < small.hits < large.hits < large.requests == len(trace)
    assert small.fetch_seconds > large.fetch_seconds
