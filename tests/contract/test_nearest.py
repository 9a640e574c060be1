"""The nearest name: of models, node classes, fields and settings alike."""

from __future__ import annotations

import difflib
import random

import pytest
from hypothesis import given, strategies

from darkroom.contract.nearest import MAX_COMPARISONS, MAX_NAME_LENGTH, nearest_name, nearest_names


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("Model-A.ckpt", ["other.ckpt", "model_a.safetensors"], "model_a.safetensors"),
        ("model.safetensors", ["sub/model.safetensors"], "sub/model.safetensors"),
        ("sub\\model.safetensors", ["model.safetensors"], "model.safetensors"),
        ("KSampIer", ["VAEDecode", "KSampler"], "KSampler"),
        ("text2image", ["Text2Image", "Upscale"], "Text2Image"),
        ("nothing alike", ["KSampler"], None),
        ("lora_name", ["vae_name", "ckpt_name"], None),
        ("lora_name", ["vae_name", "lora_names"], "lora_names"),
        ("strength_modle", ["strength_clip", "strength_model"], "strength_model"),
        ("sd_xl_base_1.0.safetensors", ["sd_xl_refiner_1.0.safetensors"], None),
        ("dreamshaper_7.safetensors", ["dreamshaper_8.safetensors"], "dreamshaper_8.safetensors"),
        ("S3_BUCKET", ["S3_BUCKET_NAME"], "S3_BUCKET_NAME"),
        ("", ["KSampler"], None),
    ],
)
def test_what_was_probably_meant(given: str, known: list[str], meant: str | None) -> None:
    assert nearest_name(given, known) == meant


def test_a_beginning_is_enough_where_that_is_asked_for() -> None:
    assert nearest_name("seed", ["seed_of_the_noise_of_it"]) is None
    assert nearest_name("seed", ["seed_of_the_noise_of_it"], by_start=True) == "seed_of_the_noise_of_it"


def test_a_higher_cutoff_asks_for_more() -> None:
    assert nearest_name("WORKER_PROT", ["WORKER_PORT"], cutoff=0.87) == "WORKER_PORT"
    assert nearest_name("WORK", ["WORKER_PORT"], cutoff=0.87) is None


def test_no_megabyte_is_compared_with_anything() -> None:
    assert nearest_name("a" * (MAX_NAME_LENGTH + 1), ["a" * MAX_NAME_LENGTH]) is None


NAMES = strategies.text("aeiouABC1é", min_size=1, max_size=8)


@given(name=NAMES, known=strategies.lists(NAMES, max_size=5), cutoff=strategies.sampled_from([0.5, 0.6, 0.87]))
def test_names_that_are_not_compared_would_not_have_been_chosen(name: str, known: list[str], cutoff: float) -> None:
    folded = {other.lower(): other for other in known}
    alike = [name.lower()] if name.lower() in folded else difflib.get_close_matches(name.lower(), folded, 1, cutoff)
    assert nearest_name(name, known, cutoff=cutoff) == (folded[alike[0]] if alike else None)


def test_names_made_to_be_compared_for_long_are_compared_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    num_compared = 0
    ratio = difflib.SequenceMatcher.ratio

    def counted(matcher: difflib.SequenceMatcher[str]) -> float:
        nonlocal num_compared
        num_compared += 1
        return ratio(matcher)

    monkeypatch.setattr(difflib.SequenceMatcher, "ratio", counted)
    letters = random.Random(1)
    known = ["".join(letters.choices("ab", k=150)) for _ in range(100)]
    given = "".join(letters.choices("ab", k=150))
    nearest_name(given, known)
    nearest_names(given, known, limit=8)
    assert 0 < num_compared <= 2 * MAX_COMPARISONS // 150**2
