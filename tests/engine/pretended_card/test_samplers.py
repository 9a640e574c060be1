"""How often each sampler makes the host wait for the card, beyond the network's evaluation, which is one graph here.

A wait costs the launch-ahead of a step: the card idles until the host has launched the next kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.checkpoints.random_weights import write_random_checkpoint
from engine.diffusion.sampler_registry import SAMPLER_NAMES
from engine.engine import Engine
from tests.engine.pretended_card.captures import Captures, capture_with
from tests.engine.pretended_card.card import PretendedCard
from tests.engine.pretended_card.runs import choose, engine_on_card
from tests.engine.simulated_card import run, workflow

FEW, MANY = 3, 6
# Samplers that are not named make it wait as often in a run of many steps as in one of few.
MOST_WAITS_PER_STEP = {
    **dict.fromkeys((
        "euler_cfg_pp", "heun", "dpm_2", "dpmpp_2m", "dpmpp_2m_cfg_pp", "ddpm", "lcm", "ipndm", "ipndm_v",
        "gradient_estimation", "gradient_estimation_cfg_pp", "er_sde", "seeds_2", "seeds_3", "uni_pc", "uni_pc_bh2",
    ), 1),
    **dict.fromkeys((
        "euler_ancestral", "euler_ancestral_cfg_pp", "heunpp2", "dpm_2_ancestral", "res_multistep",
        "res_multistep_cfg_pp",
    ), 2),
    **dict.fromkeys((
        "dpmpp_2s_ancestral", "dpmpp_2s_ancestral_cfg_pp", "res_multistep_ancestral",
        "res_multistep_ancestral_cfg_pp", "sa_solver", "sa_solver_pece",
    ), 3),
    **dict.fromkeys(("deis", "dpmpp_2m_sde_gpu", "dpmpp_2m_sde_heun_gpu", "dpmpp_3m_sde_gpu"), 4),
    **dict.fromkeys(("dpmpp_2m_sde", "dpmpp_2m_sde_heun", "dpmpp_3m_sde"), 5),
    "dpmpp_sde_gpu": 9,
    "dpmpp_sde": 11,
}  # fmt: skip
OF_MANY_STEPS = "dpm_adaptive"  # which chooses them by errors, of which the card tells nothing

SmallCard = tuple[Engine, PretendedCard, Captures]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCard]:
    """An engine on a card with a small checkpoint of Stable Diffusion 1.5, whose evaluations are graphs."""
    base = tmp_path_factory.mktemp("samplers")
    write_random_checkpoint(base / "models" / "checkpoints" / "a.safetensors")
    with engine_on_card(base) as (engine, card):
        captures = capture_with(engine, card)
        choose(engine, "UnetModel", "cuda_graph")
        run(engine, sampled("euler", 1))  # reads the prompts, which later runs have already
        yield engine, card, captures


def sampled(name: str, steps: int) -> dict[str, Any]:
    """A workflow that ends with its latent."""
    prompt = workflow(second=None, lora=None, control=False, steps=steps)
    prompt["9"]["inputs"] |= {"sampler_name": name, "scheduler": "karras"}
    return {key: prompt[key] for key in prompt.keys() - {"10", "21"}}


def waits(small: SmallCard, name: str, steps: int) -> list[str]:
    """Return the lines at which the host waited in a run."""
    engine, card, _ = small
    before = len(card.log.waits)
    run(engine, sampled(name, steps))
    assert not card.log.faults
    return [str(entry) for entry in card.log.waits[before:]]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == OF_MANY_STEPS else ()) for name in SAMPLER_NAMES],
)
@pytest.mark.filterwarnings("ignore:Should have t[ab]..t[01]:UserWarning")  # torchsde's, of a level as a float32
def test_a_sampler_waits_for_the_card_no_more_often_than_it_may(small: SmallCard, name: str) -> None:
    few, many = (waits(small, name, steps) for steps in (FEW, MANY))
    per_step = (len(many) - len(few)) / (MANY - FEW)
    lines = [f"{many.count(line) - few.count(line)} × {line}" for line in sorted({*many, *few})]
    assert per_step <= MOST_WAITS_PER_STEP.get(name, 0), "\n".join(line for line in lines if line[0] != "0")
    _, refused = small[2].take()
    assert not refused
