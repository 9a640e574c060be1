"""Eviction of downloaded model files: the choice, and the level on disk that carries it out."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from darkroom.worker.models.disk_level import DiskLevel
from darkroom.worker.models.eviction import FileUse, after_use, choose_victims
from darkroom.worker.models.files import checksum_path

GB = 10**9


def places(victims: list[FileUse]) -> list[str]:
    return [victim.place for victim in victims]


def use(place: str, size_gb: float, used_at: float) -> FileUse:
    return FileUse(place, int(size_gb * GB), used_at)


FILES = [use("a", 6, 10.0), use("b", 6, 30.0), use("c", 0.2, 20.0), use("d", 6, 40.0)]


def test_the_longest_unused_go_first_as_far_as_files_are_free() -> None:
    assert choose_victims(FILES, (), 0) == []
    assert places(choose_victims(FILES, (), 7 * GB)) == ["a", "c", "b"]
    assert places(choose_victims(FILES, ("a",), 5 * GB)) == ["c", "b"]
    assert places(choose_victims(FILES, ("a", "b"), 100 * GB)) == ["c", "d"]


def test_a_use_makes_a_file_the_last_to_go() -> None:
    used = after_use(FILES[0], 50.0)
    assert (used.used_at_seconds, used.num_uses) == (50.0, 2)
    assert places(choose_victims([used, *FILES[1:]], (), GB)) == ["c", "b"]


@pytest.mark.parametrize("seed", range(5))
def test_held_files_stay_and_what_is_needed_is_freed_where_it_can_be(seed: int) -> None:
    chance = random.Random(seed)
    files = [use(f"f{n}", chance.uniform(0.1, 9), chance.uniform(0, 100)) for n in range(30)]
    held = {file.place for file in files if chance.random() < 0.3}
    needed = int(chance.uniform(5, 90) * GB)
    victims = choose_victims(files, held, needed)
    assert not held & set(places(victims)) and len(victims) == len(set(places(victims)))
    left = {file.place for file in files} - set(places(victims))
    assert sum(file.size_bytes for file in victims) >= needed or left == held


class Folder:
    """A folder of models with a level on it."""

    def __init__(self, tmp_path: Path, max_bytes: int = 0, pinned: tuple[str, ...] = ()) -> None:
        self.path = tmp_path / "models"
        self.evicted: list[str] = []
        self.level = DiskLevel(
            self.path, tmp_path / "uses.json", max_bytes, pinned, lambda place, size: self.evicted.append(place)
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
    folder = Folder(tmp_path, 250, pinned=("vae/pinned.safetensors",))
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
    folder = Folder(tmp_path, 10**6)
    folder.add("vae/a.safetensors", 100)
    for number in range(3):
        folder.level.use("vae/a.safetensors", f"job{number}")
    folder.level.sweep()
    (again,) = Folder(tmp_path).level.listed()
    assert (again.place, again.num_uses) == ("vae/a.safetensors", 3)
    earlier = {"place": "vae/a.safetensors", "size_bytes": 100, "used_at_seconds": 1.0, "num_uses": 7, "worth": 2.0}
    (tmp_path / "uses.json").write_text(json.dumps({"clock": 1.0, "files": [earlier]}))
    assert Folder(tmp_path).level.listed()[0].num_uses == 7
    (tmp_path / "uses.json").write_text("broken")
    assert Folder(tmp_path).level.listed()[0].num_uses == 1


def test_without_a_limit_nothing_is_evicted_even_on_a_full_disk(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.add("vae/a.safetensors", 100)
    folder.level.make_room(10**12)
    folder.level.sweep(10**12)
    assert folder.evicted == []
