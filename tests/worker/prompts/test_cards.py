"""Seconds of a run on a card, beside those that others have published."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from darkroom.contract.graph.cost import sampler_works
from darkroom.contract.graph.prompt_graph import ModelFile
from darkroom.contract.graph.work import PromptWork
from darkroom.engine.families import registry
from darkroom.worker.engines.families import Family, read_families
from darkroom.worker.prompts.cards import CARDS, card_named, seconds_on

PUBLISHED = Path(__file__).parents[3] / "benchmark" / "published_seconds.toml"
RUNS = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["run"]
FACTOR = 2.0


def families() -> dict[str, Family]:
    described = [
        {"name": family.name, "default": registry.described_defaults(family, family.default)}
        for family in registry.families()
    ]
    return {family.name: family for family in read_families(described)}


def prompt_of(run: dict[str, Any]) -> dict[str, Any]:
    latent = {"width": run["width"], "height": run["height"], "batch_size": 1}
    if "frames" in run:
        latent["length"] = run["frames"]
    sampling = {"model": ["1", 0], "latent_image": ["2", 0], "steps": run["steps"], "cfg": float(run["cfg"])}
    return {
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "it.safetensors"}},
        "2": {"class_type": "EmptyLatent", "inputs": latent},
        "3": {"class_type": "KSampler", "inputs": {**sampling, "sampler_name": "euler"}},
    }


@pytest.mark.parametrize("run", RUNS, ids=[f"{run['family']} on {run['card']} {run['seconds']}" for run in RUNS])
def test_the_estimate_is_within_a_factor_of_two_of_what_was_published(run: dict[str, Any]) -> None:
    billions = run.get("billions")
    family = families()[run["family"]].of_size(None if billions is None else billions * 1e9)
    works = sampler_works(PromptWork(prompt_of(run)), {ModelFile("diffusion_models", "it.safetensors"): family})
    card = card_named(run["card"])
    assert card is not None
    seconds = seconds_on(card, works)
    assert run["seconds"] / FACTOR < seconds < run["seconds"] * FACTOR, seconds


def test_ten_pairs_of_card_and_model_are_checked_each_with_its_source() -> None:
    pairs = {(run["card"], run["family"], run.get("billions")) for run in RUNS}
    assert len(pairs) >= 10 and len({run["family"] for run in RUNS}) >= 6
    assert all("." in run["source"] and ":" in run["source"] for run in RUNS)


def test_a_model_of_unknown_family_has_no_seconds() -> None:
    works = sampler_works(PromptWork(prompt_of(RUNS[0])), {})
    assert [(work.tflop, work.model) for work in works] == [(None, "it.safetensors")]
    with pytest.raises(ValueError, match="3"):
        seconds_on(CARDS["h100"], works)


def test_every_family_takes_longer_on_a_smaller_card() -> None:
    for family in families().values():
        shown = {"1": {"class_type": "KSampler", "inputs": {"latent_image": ["2", 0], "model": ["3", 0], "steps": 8}}}
        shown |= {"2": {"class_type": "Odd", "inputs": {}}}
        shown |= {"3": {"class_type": "UNETLoader", "inputs": {"unet_name": "it.safetensors"}}}
        works = sampler_works(PromptWork(shown), {ModelFile("diffusion_models", "it.safetensors"): family})
        slow, fast, fastest = (seconds_on(CARDS[name], works) for name in ("rtx3060", "rtx4090", "b200"))
        assert slow > fast > fastest > 0, family.name


def test_cards_have_memory_and_a_rate() -> None:
    assert all(card.gib > 0 and card.tflop_per_second > 10 and card.gb_per_second > 100 for card in CARDS.values())
