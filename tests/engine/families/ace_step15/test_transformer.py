"""ACE-Step 1.5's network: sizes from shapes, codes, drafts, the empty condition, timbres of a batch."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.ace_step15.attention import Width, turns_of, window_mask
from darkroom.engine.families.ace_step15.audio_codes import LEVELS, NUM_CODES, SILENT_CODE, code_levels, quantised
from darkroom.engine.families.ace_step15.condition_encoder import TimbreEncoder
from darkroom.engine.families.ace_step15.silence import START, silent_latent
from darkroom.engine.families.ace_step15.transformer import AceStep15Transformer, ace_step15_config
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.registry import family_named, recognise
from darkroom.engine.formats.unfilled import unfilled
from tests.engine.layers.small_transformers import small_transformer

FAMILY = family_named("ace_step15")


@pytest.fixture(scope="module")
def network() -> AceStep15Transformer:
    made, _ = small_transformer("ace_step15")
    assert isinstance(made, AceStep15Transformer)
    return made.requires_grad_(False)


def inputs(length: int = 11, batch: int = 1) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(length)
    shapes = {"x": (8, length), "context": (5, 24), "lyric_embed": (4, 24), "refer_audio": (8, length)}
    made = {name: torch.randn(batch, *shape, generator=draw) for name, shape in shapes.items()}
    return {**made, "timesteps": torch.full((batch,), 0.7)}


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "diffusion_model."])
def test_a_file_of_it_is_known_by_its_tensors(scale: str, prefix: str) -> None:
    with unfilled():
        built = FAMILY.denoiser.build(FAMILY.scales[scale].denoiser)
    shapes = {prefix + name: tuple(weight.shape) for name, weight in built.state_dict().items()}
    found = recognise(TensorIndex(shapes))
    assert found.family is FAMILY
    assert ace_step15_config({ours: shapes[str(theirs)] for ours, theirs in found.match.names.items()}) == built.config


def test_the_wider_network_of_narrower_encoders_is_told_by_its_shapes() -> None:
    config = FAMILY.scales["full"].denoiser
    wide = type(config)(width=Width(2560, 9728, 20, 8), encoder_width=config.encoder_width, num_layers=32)
    with unfilled():
        shapes = {name: tuple(item.shape) for name, item in AceStep15Transformer(wide).state_dict().items()}
    assert ace_step15_config(shapes) == wide


def test_codes_are_combinations_of_levels() -> None:
    levels = code_levels(torch.arange(NUM_CODES))
    assert levels.shape == (NUM_CODES, 6) and len(set(map(tuple, levels.tolist()))) == NUM_CODES
    assert [len(column.unique()) for column in levels.T] == list(LEVELS)
    assert levels.min() == -1.0 and levels.max() == 1.0
    torch.testing.assert_close(code_levels(torch.tensor(1)), torch.tensor([-5 / 7, -1.0, -1.0, -1.0, -1.0, -1.0]))


def test_numbers_are_quantised_to_levels_of_codes() -> None:
    drawn = torch.randn(50, 6, generator=torch.Generator().manual_seed(1)) * 2
    taken = quantised(drawn)
    known = code_levels(torch.arange(NUM_CODES))
    for column, levels in zip(taken.T, known.T, strict=True):
        assert all((levels - number).abs().min() < 1e-6 for number in column)
    least, most = (quantised(torch.full((6,), number)) for number in (-9.0, 9.0))
    assert (least <= taken).all() and (taken <= most).all()


def test_a_draft_of_too_few_codes_ends_with_silent_ones(network: AceStep15Transformer) -> None:
    audio = torch.zeros(1, 11, 8)
    short = network.draft(audio, torch.tensor([[5]]), 11)
    assert torch.equal(short, network.draft(audio, torch.tensor([[5, SILENT_CODE, SILENT_CODE]]), 11))
    assert short.shape == (1, 11, 8)
    longer = network.draft(audio, torch.tensor([[5, 6, 7, 8]]), 4)
    torch.testing.assert_close(longer, network.draft(audio, torch.tensor([[5]]), 4))


def test_the_draft_is_of_codes_or_of_reference_audio_or_is_that_audio(network: AceStep15Transformer) -> None:
    given = inputs()
    codes, cover, plain = (
        network(**given, **more)
        for more in ({"audio_codes": torch.tensor([[1, 2, 3]])}, {"is_covers": True}, {"is_covers": False})
    )
    assert codes.shape == given["x"].shape
    assert not torch.allclose(codes, cover) and not torch.allclose(cover, plain)
    assert torch.equal(cover, network(**given))


def test_the_empty_condition_hears_no_text(network: AceStep15Transformer) -> None:
    given = inputs()
    other = {**given, "context": given["context"] + 1.0}
    empty, same = (network(**item, replace_with_null_embeds=True) for item in (given, other))
    assert torch.equal(empty, same) and not torch.allclose(network(**given), network(**other))


def test_an_odd_length_is_filled_up_for_the_network_alone(network: AceStep15Transformer) -> None:
    assert network(**inputs(7)).shape == (1, 8, 7)
    assert network(**inputs(1)).shape == (1, 8, 1)


def test_timbres_of_a_batch_are_those_of_its_first_item() -> None:
    torch.manual_seed(0)
    encoder = TimbreEncoder(8, Width(32, 64, 2, 1), 1).requires_grad_(False)
    audio = torch.randn(3, 5, 8)
    alone = torch.cat([encoder(item) for item in torch.split(audio, 1)])[:, 0]
    packed = encoder(audio)
    assert packed.shape == (3, 3, 32)
    torch.testing.assert_close(packed[0], alone)
    assert torch.equal(packed[1:], torch.zeros(2, 3, 32))


def test_a_window_hides_what_is_farther() -> None:
    mask = window_mask(6, 2, torch.zeros(1))
    assert mask.shape == (1, 1, 6, 6)
    assert ((mask[0, 0] == 0).sum(dim=1)).tolist() == [3, 4, 5, 5, 4, 3]


def test_positions_rotate_from_the_first_one_on() -> None:
    cos, sin = turns_of(3, torch.device("cpu"), torch.float32)
    assert torch.equal(cos[0], torch.ones(64)) and torch.equal(sin[0], torch.zeros(64))
    torch.testing.assert_close(cos[2, 0], torch.tensor(2.0).cos())


@pytest.mark.parametrize("length", [1, 4, 9])
def test_silence_begins_with_its_own_frames(length: int) -> None:
    silence = silent_latent(length, torch.device("cpu"))
    assert silence.shape == (1, 64, length)
    assert silence[0, :, 0].tolist() == pytest.approx(START[0])
    if length > 5:
        assert torch.equal(silence[..., 4], silence[..., 8]) and not torch.equal(silence[..., 3], silence[..., 4])
