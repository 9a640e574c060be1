"""Model memory on a real card: the essentials of what the simulated one shows."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from benchmark.gpu_parts.memory import MODES, hooked_workflow, memory_of
from benchmark.gpu_parts.runs import prompt_engine, run_prompt
from darkroom.engine.memory.device import device_of
from darkroom.engine.memory.model_pool import ModelPool
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.plan import Limits
from darkroom.engine.memory.relief import MemorySavings
from darkroom.engine.memory.residency import Residency
from darkroom.engine.memory.state import VramState
from darkroom.engine.memory.transfer_streams import PinnedMemory, TransferStreams
from tests.engine.memory.simulated import network, patch
from tests.engine.simulated_card import engine_of, latent_of, run, workflow, write_small_models
from tests.gpu.benches import bench_in

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

X = torch.linspace(-1, 1, 32).reshape(2, 16)


def add(pool: ModelPool, seed: int, streams: int) -> Residency:
    device = device_of("cuda:0")
    weights = ModuleWeights(
        str(seed),
        network(seed, 40),
        device=device,
        streams=TransferStreams(device, streams),
        pinned=PinnedMemory(device, 1 << 30),
    )
    return pool.add(weights, "unet")


@pytest.mark.parametrize("streams", [0, 1, 2, 3])
def test_blocks_that_come_just_in_time_give_the_same_bits(streams: int) -> None:
    pool = ModelPool(VramState.NORMAL_VRAM, limits=Limits(0, 0))
    handle = add(pool, 0, streams)
    patches = patch(network(0, 40), 1)
    results = []
    for share in (1.0, 0.5, 0.1, 0.0):
        pool.memory_savings = MemorySavings(weights_share=share)
        with handle.in_use(patches=patches, patches_id="one") as module:
            results += [module(X.cuda()).cpu() for _ in range(3)]
        pool.check_integrity()
    assert all(torch.equal(result, results[0]) for result in results)


def test_patches_are_undone_bit_for_bit_and_memory_is_given_back() -> None:
    pool = ModelPool(VramState.NORMAL_VRAM, limits=Limits(0, 0))
    gc.collect()  # what other tests have left goes before, not meanwhile
    before = torch.cuda.memory_allocated()
    handle = add(pool, 0, 2)
    originals = network(0, 40).state_dict()
    with handle.in_use(patches=patch(network(0, 40), 1), patches_id="one"):
        pass
    with handle.in_use() as module:
        shown = module.state_dict()
        assert all(torch.equal(shown[name].cpu(), weight) for name, weight in originals.items())
        del shown
    pool.unload_all()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("flags", [{"vram": "novram"}, {"vram": "lowvram", "async_offload_streams": 0}, {}])
def test_a_workflow_of_several_models_draws_the_same_in_every_state(tmp_path: Path, flags: dict[str, object]) -> None:
    write_small_models(tmp_path / "models")
    latents = []
    for options in ({"vram": "highvram"}, flags):
        with engine_of(tmp_path, cpu=False, **options) as engine:
            figures = []
            for seed in (1, 2, 3):
                prompt = workflow()
                prompt["9"]["inputs"]["seed"] = seed  # so that nothing is answered from the cache
                latents.append(latent_of(engine, run(engine, prompt)[0]))
                engine.memory.pool.check_integrity()
                gc.collect()
                report = engine.memory.report()
                figures.append((report.unaccounted_bytes, report.pool.num_models, report.pool.device_bytes))
            # The first run also takes what libraries keep, which may be as much as these small models.
            assert figures[1] == figures[2] and figures[0][1] == figures[2][1], figures
            assert report.unaccounted_bytes is not None and report.pool.num_leaks == 0
    assert all(torch.equal(latent, latents[index % 3]) for index, latent in enumerate(latents))


def test_a_workflow_draws_the_same_however_much_of_each_model_is_away(tmp_path: Path) -> None:
    write_small_models(tmp_path / "models")
    latents = []
    for share in (1.0, 0.5, 0.0):
        with engine_of(tmp_path, cpu=False) as engine:
            engine.memory.pool.memory_savings = MemorySavings(weights_share=share)
            latents.append(latent_of(engine, run(engine, workflow())[0]))
            assert (engine.memory.report().num_streamed > 0) == (share < 1.0 or engine.memory.facts.computes_float16)
    assert all(torch.equal(latent, latents[0]) for latent in latents)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "highvram"])
def test_a_mode_of_memory_has_the_bits_of_the_one_that_keeps_all_on_the_card(tmp_path: Path, mode: str) -> None:
    write_small_models(tmp_path / "models")
    bench = bench_in(tmp_path)
    for prompt in (workflow(), hooked_workflow()):
        latents = []
        for flags in (MODES["highvram"], MODES[mode]):
            with prompt_engine(bench, tmp_path, memory=memory_of(bench, flags)) as engine:
                latents.append(latent_of(engine, run_prompt(engine, prompt)))
                engine.memory.pool.check_integrity()
        assert torch.equal(*latents)
