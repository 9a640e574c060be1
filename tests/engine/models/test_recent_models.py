"""Files whose models stay although no result holds them, through prompts as clients send them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from darkroom.engine.engine import Engine
from darkroom.engine.formats.quantised import open_model
from darkroom.engine.memory import machine_memory
from darkroom.engine.models import load
from darkroom.engine.models.recent_models import RecentModels
from darkroom.engine.settings import CacheSettings, EngineSettings, MemorySettings
from tests.engine.simulated_card import node, run, write_small_models

GIB = 1 << 30


class Handle:
    """Stands for a model's handle."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recent")
    write_small_models(folder / "models")
    return folder


@pytest.fixture(autouse=True)
def _plenty_of_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs here."""
    monkeypatch.setattr(machine_memory, "total_bytes", lambda: 64 * GIB)
    monkeypatch.setattr(machine_memory, "available_bytes", lambda: 48 * GIB)


@pytest.fixture
def num_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the checkpoints that were opened."""
    opened: list[str] = []
    really_open = open_model.open_model

    def opening(path: Path, *options: Any) -> Any:
        opened.append(path.name)
        return really_open(path, *options)

    monkeypatch.setattr(load, "open_model", opening)
    return opened


def draw(engine: Engine, names: Sequence[str]) -> None:
    """A text encoded by each checkpoint, one prompt after the other."""
    for number, name in enumerate(names):
        prompt = {
            "1": node("CheckpointLoaderSimple", ckpt_name=f"{name}.safetensors"),
            "2": node("VAEDecode", samples=["3", 0], vae=["1", 2]),
            "3": node("EmptyLatentImage", width=64 + 8 * number, height=64, batch_size=1),
            "4": node("PreviewImage", images=["2", 0]),
        }
        run(engine, prompt)


def test_what_was_asked_for_longest_ago_makes_place() -> None:
    recent = RecentModels(2)
    recent.note("a", [Handle()])
    recent.note("b", [Handle()])
    recent.use("a")
    recent.note("c", [Handle()])
    assert list(recent._handles) == ["a", "c"]
    recent.use("unknown")
    recent.forget()
    assert len(recent) == 0


def test_they_are_let_go_while_ram_is_short() -> None:
    free = [0]
    held = [Handle(), Handle(), Handle()]
    recent = RecentModels(8, lambda: free[0] < 2)
    free[0] = 2
    for number, handle in enumerate(held):
        recent.note(number, [handle])
        weakref.finalize(handle, lambda: free.__setitem__(0, free[0] + 1))
    del handle
    held.clear()
    recent.make_place()
    assert len(recent) == 3
    free[0] = 0
    recent.make_place()
    assert list(recent._handles) == [2]


@pytest.mark.parametrize("card_gb", [None, 1.0])
def test_prompts_of_two_checkpoints_in_turns_read_each_file_once(
    base: Path, num_read: list[str], card_gb: float | None
) -> None:
    memory = MemorySettings(simulate_vram_gb=card_gb)
    with Engine(EngineSettings(base_directory=base, cpu=True, memory=memory)) as engine:
        draw(engine, "abab")
        assert num_read == ["a.safetensors", "b.safetensors"]
        assert engine.memory.report().pool.num_models == 6
        engine.free(unload_models=False, free_memory=True)
        engine.preload("vae", "none").exception()  # what was asked before has been done
        gc.collect()
        assert engine.memory.report().pool.num_models == 0
        assert engine.memory.report().pool.num_leaks == 0


@pytest.mark.parametrize(
    "options",
    [
        {"memory": MemorySettings(smart_memory=False)},
        {"cache": CacheSettings("none")},
        {"memory": MemorySettings("gpu_only", simulate_vram_gb=0.06)},  # of a device with room for one of them
    ],
)
def test_nothing_stays_for_who_asked_for_that_or_where_it_would_never_leave(
    base: Path, num_read: list[str], options: dict[str, Any]
) -> None:
    with Engine(EngineSettings(base_directory=base, cpu=True, **options)) as engine:
        draw(engine, "aba")
        assert num_read == ["a.safetensors", "b.safetensors", "a.safetensors"]


def test_they_leave_ram_before_another_file_is_read_into_it(
    base: Path, num_read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(EngineSettings(base_directory=base, cpu=True)) as engine:
        draw(engine, "a")
        held_bytes = engine.memory.report().pool.ram_bytes
        file_bytes = (base / "models/checkpoints/b.safetensors").stat().st_size
        free_bytes = 2 * GIB + 2 * file_bytes - 1  # the floor, the file as float32, but for one byte
        seen: list[int] = []
        monkeypatch.setattr(machine_memory, "available_bytes", lambda: free_bytes)
        really_load = load._empty

        def note_and_load(*arguments: Any, **options: Any) -> Any:
            seen.append(engine.memory.report().pool.ram_bytes)
            return really_load(*arguments, **options)

        monkeypatch.setattr(load, "_empty", note_and_load)
        draw(engine, "b")
        assert len(seen) == 3 and seen[0] < held_bytes
        assert engine.memory.report().pool.num_dropped >= 1
