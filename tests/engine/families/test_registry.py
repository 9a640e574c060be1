"""The family that a file belongs to, with families made up for the purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import ComfyUiNames, ModelFamily, TensorIndex
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.models.load import LoadTypes, load_text_encoders, load_vae
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.nodes.built_in import built_in_nodes
from darkroom.engine.settings import DtypePolicy
from darkroom.engine.text.chunk_encoding import Encoded
from tests.engine.families.test_every_family import saved_index
from tests.engine.nodes.small_store import small_store
from tests.parity.layout import checkpoint_shapes

PAIR_TYPE = "a pair"


def side_by_side(encoded: Mapping[str, Encoded]) -> Encoded:
    """The tokens of all encoders, as wide as all together."""
    return Encoded(torch.cat([item.cond for item in encoded.values()], dim=-1), encoded["h"].pooled)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> ModelFamily:
    """A family with the text encoders of two others, the only one there is."""
    first, second = registry.family_named("sd15"), registry.family_named("sd2")
    family = replace(
        first, name="pair", text=(*first.text, *second.text), combine_text=side_by_side,
        comfyui=ComfyUiNames("Pair", (PAIR_TYPE,)),
    )  # fmt: skip
    monkeypatch.setattr(registry, "families", lambda: (family,))
    return family


@pytest.fixture
def files(pair: ModelFamily, tmp_path: Path) -> dict[str, Path]:
    """A file of each encoder, by slot."""
    _, text, _ = random_networks("small", 0, LoadTypes(), family=pair)
    folder = tmp_path / "text_encoders"
    for slot, encoder in text.encoders().items():
        write_safetensors(folder / f"{slot}.safetensors", encoder.transformer.state_dict())
    return {slot: folder / f"{slot}.safetensors" for slot in text.encoders()}


@pytest.mark.parametrize("order", ["lh", "hl"])
def test_the_text_encoders_of_a_set_are_distinguished_whatever_their_order(
    pair: ModelFamily, files: dict[str, Path], order: str
) -> None:
    text = load_text_encoders([files[slot] for slot in order], LoadTypes(), PAIR_TYPE)
    assert list(text.encoders()) == ["l", "h"] and text.family is pair
    assert text.encoders()["h"].num_layers == 24


def test_a_prompt_is_read_by_every_encoder_of_a_set(pair: ModelFamily, files: dict[str, Path], tmp_path: Path) -> None:
    clip = small_store(tmp_path).clip_set(["h.safetensors", "l.safetensors"], text_type=PAIR_TYPE)
    tokens = clip.tokenize("a (red:1.2) fox")
    assert tokens.keys() == {"l", "h"}
    cond, pooled = clip.encode_from_tokens(tokens, return_pooled=True)
    assert cond.shape == (1, 77, 128) and pooled.shape == (1, 64)
    keys = pair.text_lora_keys(clip.cond_stage_model.state_dict())
    assert {name.partition(".")[0] for name in keys.values()} == {"clip_l", "clip_h"}


@pytest.mark.parametrize("slots", ["l", "ll", "lhl"])
def test_a_set_that_no_family_has_is_refused(files: dict[str, Path], slots: str) -> None:
    with pytest.raises(BadModelFile):
        load_text_encoders([files[slot] for slot in slots], LoadTypes(), PAIR_TYPE)


def test_some_families_do_without_one_of_their_encoders(
    pair: ModelFamily, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "families", lambda: (replace(pair, takes_fewer_encoders=True),))
    assert list(load_text_encoders([files["h"]], LoadTypes(), PAIR_TYPE).encoders()) == ["h"]


def test_two_equal_matches_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    family = registry.default_family()
    monkeypatch.setattr(registry, "families", lambda: (family, replace(family, name="twin")))
    with pytest.raises(registry.AmbiguousFile, match="twin"):
        registry.recognise(saved_index(family, "small"))


def test_the_most_specific_match_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    family = registry.default_family()

    def detect(index: TensorIndex) -> object:
        found = family.detect(index)
        return None if found is None else replace(found, specificity=found.specificity + 1)

    special = replace(family, name="special", detect=detect)  # type: ignore[arg-type]
    monkeypatch.setattr(registry, "families", lambda: (family, special))
    assert registry.recognise(saved_index(family, "small")).family is special


def test_a_loader_of_pairs_that_no_family_has_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    single = registry.default_family()
    monkeypatch.setattr(registry, "families", lambda: (single,))
    loader: Any = next(item for item in built_in_nodes() if item.class_type == "DualCLIPLoader")
    assert registry.labels() == single.label
    assert registry.labels() in str(loader.check(None, type="sdxl"))


def test_a_loader_of_three_or_four_files_reads_the_family_whose_whole_set_they_are() -> None:
    """HiDream takes three of its four encoders too, but three files alone are those of Stable Diffusion 3."""
    assert "hidream" in registry.text_types(num_encoders=3)
    assert [registry.complete_set_type(number) for number in (3, 4, 5)] == ["sd3", "hidream", None]


def test_loaders_offer_comfyuis_types_and_then_those_of_families_that_it_does_not_have(pair: ModelFamily) -> None:
    assert registry.offered_text_types(num_encoders=2) == (
        "sdxl", "sd3", "flux", "hunyuan_video", "hidream", "hunyuan_image", "hunyuan_video_15", "kandinsky5",
        "kandinsky5_image", "ltxv", "newbie", "ace", PAIR_TYPE,
    )  # fmt: skip
    assert PAIR_TYPE not in registry.offered_text_types(num_encoders=1)


def test_a_further_vae_of_a_family_is_recognised_and_loaded_in_its_own_types(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ace_step, sdxl = registry.family_named("ace_step"), registry.family_named("sdxl")
    further = replace(ace_step.vae, dtypes=DtypePolicy(prefers=("float16",)))
    owner = replace(sdxl, further_vaes=(further,))
    monkeypatch.setattr(registry, "families", lambda: (owner,))
    network = further.build(further.sizes["small"])
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}

    found, names = registry.recognise_vae(shapes)

    assert (found.name, found.vae) == ("sdxl", further)
    assert set(names) == set(shapes)
    assert registry.recognise_vae(checkpoint_shapes(sdxl, "small"))[0] is owner
    path = tmp_path / "audio.safetensors"
    write_safetensors(path, network.state_dict(), {})
    types = LoadTypes(by_family=lambda family: LoadTypes(vae=getattr(torch, family.dtypes.vae.prefers[0])))
    loaded = load_vae(path, types)
    assert isinstance(loaded, type(network))
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float16}
