"""Waits of the host for the card in each sampler, beyond the network's evaluation, which is one graph here.

A wait costs the launch-ahead of a step: the card idles until the host has launched the next kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from darkroom.engine.diffusion.samplers.registry import declared_samplers
from darkroom.engine.engine import Engine
from darkroom.engine.models.random_weights import write_random_checkpoint
from tests.engine.pretended_card.captures import Captures, capture_with
from tests.engine.pretended_card.card import PretendedCard
from tests.engine.pretended_card.runs import engine_on_card
from tests.engine.simulated_card import run, workflow
from tests.engine.tuning.outcomes import use_everywhere

FEW, MANY = 3, 6
# Only these make it wait more often in a run of many steps: they take noise that is drawn on the host.
MOST_WAITS_PER_STEP = {"dpmpp_2m_sde": 1, "dpmpp_2m_sde_heun": 1, "dpmpp_3m_sde": 1, "dpmpp_sde": 2}
VARIANTS = ("_cfg_pp", "_gpu", "_bh2", "_heun", "_pece", "_ancestral")  # of samplers that the fast share has
OF_MANY_STEPS = "dpm_adaptive"  # which chooses them by errors, of which the card tells nothing


def is_slow(name: str) -> bool:
    """Return True for a sampler that only the slow share runs."""
    return name == OF_MANY_STEPS or name.endswith(VARIANTS)


SmallCard = tuple[Engine, PretendedCard, Captures]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCard]:
    """An engine on a card with a small checkpoint of Stable Diffusion 1.5, whose evaluations are graphs."""
    base = tmp_path_factory.mktemp("samplers")
    write_random_checkpoint(base / "models" / "checkpoints" / "a.safetensors")
    with engine_on_card(base) as (engine, card):
        captures = capture_with(engine, card)
        use_everywhere(engine, {"same": ["cuda_graph"]})
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
    [pytest.param(name, marks=pytest.mark.slow if is_slow(name) else ()) for name in declared_samplers()],
)
@pytest.mark.filterwarnings("ignore:Should have t[ab]..t[01]:UserWarning")  # torchsde's, of a level as a float32
def test_a_sampler_waits_for_the_card_no_more_often_than_it_may(small: SmallCard, name: str) -> None:
    few, many = (waits(small, name, steps) for steps in (FEW, MANY))
    per_step = (len(many) - len(few)) / (MANY - FEW)
    lines = [f"{many.count(line) - few.count(line)} × {line}" for line in sorted({*many, *few})]
    assert per_step <= MOST_WAITS_PER_STEP.get(name, 0), "\n".join(line for line in lines if line[0] != "0")
    _, refused = small[2].take()
    assert not refused
