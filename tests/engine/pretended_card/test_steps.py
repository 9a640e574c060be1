"""Steps of a sampler wait for nothing: what a run waits for is the same for few steps and for many."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from darkroom.engine.engine import Engine
from darkroom.engine.models.random_weights import write_random_checkpoint
from tests.engine.pretended_card.card import PretendedCard
from tests.engine.pretended_card.log import Kind
from tests.engine.pretended_card.runs import engine_on_card
from tests.engine.simulated_card import node, run

SAMPLERS = ("uni_pc", "heun", "lms", "ipndm_v", "deis", "res_multistep", "gradient_estimation")
TO_SAMPLE = ("dpmpp_2m", *(pytest.param(name, marks=pytest.mark.slow) for name in SAMPLERS))
DRAWN_ON_THE_HOST = "dpmpp_2m_sde"  # its noise, which is brought to the card in each step
CHECKPOINT = "sd15.safetensors"
RANGES = {"start": 0.2, "end": 0.9}


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Any:
    base = tmp_path_factory.mktemp("card")
    write_random_checkpoint(base / "models" / "checkpoints" / CHECKPOINT)
    with engine_on_card(base) as found:
        waits(found, prompt("euler", 1))  # what is made once: weights, the prompt
        yield found


def prompt(sampler: str, steps: int, *, has_ranges: bool = False) -> dict[str, Any]:
    nodes = {
        "1": node("CheckpointLoaderSimple", ckpt_name=CHECKPOINT),
        "2": node("CLIPTextEncode", clip=["1", 1], text="a lighthouse"),
        "3": node("CLIPTextEncode", clip=["1", 1], text="blurry"),
        "4": node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "5": node("ConditioningSetTimestepRange", conditioning=["2", 0], **RANGES),
        "6": node("ConditioningCombine", conditioning_1=["2", 0], conditioning_2=["5", 0]),
        "7": node("ModelSamplingDiscrete", model=["1", 0], sampling="eps", zsnr=False),
        "9": node(
            "KSampler", model=["7" if has_ranges else "1", 0], positive=["6" if has_ranges else "2", 0],
            negative=["3", 0], latent_image=["4", 0], seed=1, steps=steps, cfg=4.0, sampler_name=sampler,
            scheduler="karras", denoise=1.0,
        ),
        "10": node("SaveLatent", samples=["9", 0], filename_prefix="steps"),
    }  # fmt: skip
    return nodes if has_ranges else {key: item for key, item in nodes.items() if key not in ("5", "6", "7")}


def waits(card: tuple[Engine, PretendedCard], workflow: dict[str, Any]) -> Counter[tuple[Kind, str]]:
    engine, device = card
    device.log.entries.clear()
    run(engine, workflow)
    return Counter((entry.kind, entry.line) for entry in device.log.waits if "engine/memory/" not in entry.line)


@pytest.mark.parametrize("sampler", TO_SAMPLE)
def test_a_step_waits_for_nothing(card: tuple[Engine, PretendedCard], sampler: str) -> None:
    assert waits(card, prompt(sampler, 3)) == waits(card, prompt(sampler, 5))


def test_ranges_of_conditions_and_levels_of_nodes_wait_for_nothing(card: tuple[Engine, PretendedCard]) -> None:
    few, many = (waits(card, prompt("euler", steps, has_ranges=True)) for steps in (3, 5))
    assert not many - few  # the first run brings the table of timesteps


@pytest.mark.slow
def test_noise_of_the_host_is_brought_in_each_step_and_asks_for_no_level(card: tuple[Engine, PretendedCard]) -> None:
    few, many = (waits(card, prompt(DRAWN_ON_THE_HOST, steps)) for steps in (3, 5))
    more = many - few
    assert more and {(kind, line.split(":")[0]) for kind, line in more} == {
        (Kind.UPLOAD, "engine/diffusion/brownian.py")
    }
