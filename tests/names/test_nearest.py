"""The nearest name: of models, node classes, fields and settings alike."""

from __future__ import annotations

import pytest

from names.nearest import MAX_NAME_LENGTH, nearest_name


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("Model-A.ckpt", ["other.ckpt", "model_a.safetensors"], "model_a.safetensors"),
        ("model.safetensors", ["sub/model.safetensors"], "sub/model.safetensors"),
        ("sub\\model.safetensors", ["model.safetensors"], "model.safetensors"),
        ("KSampIer", ["VAEDecode", "KSampler"], "KSampler"),
        ("text2image", ["Text2Image", "Upscale"], "Text2Image"),
        ("nothing alike", ["KSampler"], None),
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
