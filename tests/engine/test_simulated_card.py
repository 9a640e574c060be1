"""The engine on a card that is too small: two checkpoints, a LoRA and a ControlNet, through prompts as clients send."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.contract.errors import PromptRejected
from darkroom.engine.engine import Engine
from darkroom.engine.events import MemoryRelieved
from darkroom.engine.memory import machine_memory
from darkroom.engine.settings import VramChoice
from tests.engine.simulated_card import GIB, MIB, engine_of, latent_of, run, workflow, write_small_models

SMALL: dict[str, Any] = {"second": None, "size": 32, "steps": 1}


@pytest.fixture(autouse=True)
def _plenty_of_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs here: which models of earlier prompts stay depends on it."""
    monkeypatch.setattr(machine_memory, "total_bytes", lambda: 64 * GIB)
    monkeypatch.setattr(machine_memory, "available_bytes", lambda: 48 * GIB)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    write_small_models(folder / "models")
    return folder


@pytest.fixture(scope="module")
def expected(base: Path) -> torch.Tensor:
    with engine_of(base) as engine:
        return latent_of(engine, run(engine, workflow())[0])


def check_card(engine: Engine) -> None:
    """Check the invariants that hold between prompts."""
    engine.memory.pool.check_integrity()
    report = engine.memory.report()
    assert report.unaccounted_bytes == 0 and report.buffers_bytes == 0
    assert report.peak_bytes is not None and report.peak_bytes <= report.device.vram_total_bytes
    assert report.pool.num_leaks == 0


@pytest.mark.parametrize(("card_mib", "is_in_part"), [(12, True), (1000, False)])
def test_a_workflow_of_several_models_gives_the_same_bits_on_a_card_of_any_size(
    base: Path, expected: torch.Tensor, card_mib: int, is_in_part: bool
) -> None:
    with engine_of(base, card_bytes=card_mib * MIB) as engine:
        outputs, events = run(engine, workflow())
        assert torch.equal(latent_of(engine, outputs), expected)
        assert not [event for event in events if isinstance(event, MemoryRelieved)]
        report = engine.memory.report()
        assert (report.num_streamed > 0) == is_in_part and (report.pool.num_evictions > 0) == is_in_part
        check_card(engine)


@pytest.mark.parametrize(
    ("vram", "flags"),
    [
        ("novram", {}),
        ("lowvram", {"async_offload_streams": 0, "pinned_memory": False}),
        ("normalvram", {"smart_memory": False}),
        ("highvram", {}),
        ("gpu_only", {}),
    ],
)
def test_every_memory_flag_gives_the_same_bits(
    base: Path, expected: torch.Tensor, vram: VramChoice, flags: dict[str, Any]
) -> None:
    with engine_of(base, card_bytes=1000 * MIB, vram=vram, **flags) as engine:
        assert torch.equal(latent_of(engine, run(engine, workflow())[0]), expected)
        check_card(engine)


def test_an_image_too_large_for_the_card_is_decoded_in_tiles_and_the_client_is_notified(base: Path) -> None:
    prompt = workflow(second=None, lora=None, control=False, size=192, steps=1)
    with engine_of(base, card_bytes=40 * MIB) as engine:
        outputs, events = run(engine, prompt)
        told = [event for event in events if isinstance(event, MemoryRelieved) and event.node.node_id == "10"]
        assert [event.step for event in told] == ["caches", "other_models", "partial_load", "partial_load", "tiled_vae"]
        assert [event.changes_arithmetic for event in told] == [False] * 4 + [True]
        assert outputs["21"]["images"] and engine.memory.report().relief_steps["tiled_vae"] == 1
        check_card(engine)


@pytest.mark.parametrize("num_prompts", [6, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("models_stay", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.timeout(600)
def test_alternating_prompts_leave_memory_where_it_was(base: Path, num_prompts: int, models_stay: bool) -> None:
    variants = [
        workflow(first=first, lora=lora, control=control, **SMALL)
        for first, lora, control in (("a", 0.5, True), ("b", None, False), ("a", 0.9, True), ("b", 0.5, True))
    ]
    with engine_of(base, card_bytes=24 * MIB, smart_memory=models_stay) as engine:
        seen = []
        for number in range(num_prompts):
            prompt = variants[number % len(variants)]
            prompt["9"]["inputs"]["seed"] = number  # so that nothing is answered from the cache
            run(engine, prompt)
            check_card(engine)
            if number % 4 == 3:
                gc.collect()
                report = engine.memory.report()
                num_tensors = sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())
                seen.append((report.allocated_bytes, report.pool.num_models, report.pool.ram_bytes, num_tensors))
        assert len(seen) == num_prompts // 4 and len(set(seen)) == 1, seen


@pytest.mark.parametrize("card_mib", [None, 12])
def test_a_checkpoint_that_is_downloaded_again_in_its_place_is_read_anew(
    base: Path, tmp_path: Path, card_mib: int | None
) -> None:
    source, target = base / "models" / "checkpoints", tmp_path / "models" / "checkpoints" / "a.safetensors"
    first, second = (source / f"{name}.safetensors" for name in "ab")
    target.parent.mkdir(parents=True)
    target.write_bytes(first.read_bytes())
    prompt, latents = workflow(lora=None, control=False, **SMALL), []
    with engine_of(tmp_path, card_bytes=None if card_mib is None else card_mib * MIB) as engine:
        latents.append(latent_of(engine, run(engine, prompt)[0]))
        with target.open("r+b") as download:
            download.truncate(first.stat().st_size // 2)
        with pytest.raises(PromptRejected) as refused:
            run(engine, prompt)
        assert "a.safetensors: a file cut off at" in str(refused.value.as_json())
        for path in (second, first):
            target.write_bytes(path.read_bytes())
            latents.append(latent_of(engine, run(engine, prompt)[0]))
    assert torch.equal(latents[0], latents[2]) and not torch.equal(latents[0], latents[1])
