"""The inputs that MiniMax H3's network gets of a condition, the loudness of its audio, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.context_windows import WindowPlan
from darkroom.engine.diffusion.denoiser import ModelConfig
from darkroom.engine.diffusion.model_sampling_variants import Flow
from darkroom.engine.diffusion.nested_latent import NestedLatent, packed, streams_of, unpacked
from darkroom.engine.diffusion.windowed_batches import ContextWindows
from darkroom.engine.families.minimax_h3.denoiser import MiniMaxH3Denoiser
from darkroom.engine.families.minimax_h3.latents import AudioVideoLatentFormat
from darkroom.engine.families.minimax_h3.layout import Source, Time, from_flat
from darkroom.engine.families.minimax_h3.sampling import AudioVideoFlow
from tests.engine.layers.small_transformers import small_transformer

SHAPES = ((1, 4, 2, 4, 6), (1, 6, 2, 8))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def denoiser() -> MiniMaxH3Denoiser:
    network = small_transformer("minimax_h3")[0]
    config = ModelConfig(latent_format=AudioVideoLatentFormat())
    return MiniMaxH3Denoiser(network, model_sampling=AudioVideoFlow(12.0, 3.0), config=config)


def inputs_of(denoiser: MiniMaxH3Denoiser, **condition: Any) -> dict[str, Any]:
    noise = torch.zeros(1, 1, 4 * 2 * 4 * 6 + 6 * 2 * 8)
    given = {"cross_attn": torch.randn(1, 5, 24), "latent_shapes": SHAPES, "seed": 7, **condition}
    with torch.inference_mode():
        return denoiser.extra_conds(noise=noise, device=CPU, latent_image=noise, **given)


def test_a_prompt_is_refined_once_and_laid_out_before_the_streams(denoiser: MiniMaxH3Denoiser) -> None:
    inputs = inputs_of(denoiser)
    assert inputs["c_crossattn"].cond.shape == (1, 5, 256)
    assert [item.num_tokens for item in from_flat(inputs["stretches"].cond)] == [5, 16, 12]
    assert inputs["positions"].cond.shape == (1, 33, 3)
    assert inputs["audio_scale"].cond == 4.0
    assert not {"given_video", "given_audio", "video_levels", "audio_levels"} & inputs.keys()


def test_guides_and_references_are_mixed_with_the_noise_of_the_seed(denoiser: MiniMaxH3Denoiser) -> None:
    guide = {"resolved_frame_index": 1, "latent": torch.ones(1, 4, 1, 4, 6)}
    reference = {"kind": "audio", "audio_latent": torch.ones(1, 6, 2, 3), "ref_audio_t": 3}
    inputs = inputs_of(denoiser, minimax_keyframes=[guide], minimax_refs=[reference])
    noise = torch.randn(6, 16, generator=torch.Generator().manual_seed(7))
    assert torch.allclose(inputs["given_video"].cond[0], 0.999 + 0.001 * noise)
    assert torch.equal(inputs["given_audio"].cond, torch.ones(1, 6, 6))  # audio is given without noise
    assert [item.time for item in from_flat(inputs["stretches"].cond)[1:3]] == [Time.GIVEN_VIDEO, Time.GIVEN_AUDIO]
    louder = inputs_of(denoiser, minimax_keyframes=[guide], minimax_visual_cond_noise_aug=0.5)
    assert torch.allclose(louder["given_video"].cond[0], 0.5 + 0.5 * noise)
    assert louder["given_times"].cond == (0.5, 1.0)


def test_the_modality_of_text_tokens_parts_the_text(denoiser: MiniMaxH3Denoiser) -> None:
    inputs = inputs_of(denoiser, minimax_token_tags=torch.tensor([1, 0, 0, 0, 1]))
    found = [(item.source, item.num_tokens) for item in from_flat(inputs["stretches"].cond)[:3]]
    assert found == [(Source.TEXT, 1), (Source.TEXT, 3), (Source.TEXT, 1)]


def test_a_mask_gives_both_streams_levels(denoiser: MiniMaxH3Denoiser) -> None:
    mask = packed([torch.full(SHAPES[0], 0.5), torch.ones(SHAPES[1])])
    inputs = inputs_of(denoiser, denoise_mask=mask)
    assert inputs["video_levels"].cond.tolist() == [[0.5]]
    assert inputs["video_level_of"].cond.tolist() == [[0] * 12]
    assert "audio_levels" not in inputs


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ({"latent_shapes": None}, "latent_image: a latent of a video alone"),
        ({"cross_attn": torch.zeros(1, 5, 23)}, "width 23, expected 24"),
        ({"minimax_token_tags": torch.ones(4)}, "got 5 tokens and the kinds of 4"),
        (
            {"minimax_keyframes": [{"resolved_frame_index": 0, "latent": torch.zeros(1, 4, 1, 2, 2)}]},
            r"another size; got \[2, 2\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(denoiser: MiniMaxH3Denoiser, condition: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        inputs_of(denoiser, **condition)


def test_the_noise_levels_of_one_stream_are_refused() -> None:
    network = small_transformer("minimax_h3")[0]
    other = MiniMaxH3Denoiser(network, model_sampling=Flow(12.0, 1000.0))
    with pytest.raises(ValueError, match="model: .*got Flow, .*MiniMaxH3SigmaShift"):
        inputs_of(other)


def test_context_windows_are_refused(denoiser: MiniMaxH3Denoiser) -> None:
    windows = ContextWindows("standard_static", "flat", WindowPlan(1, 0), dim=2)
    x = packed([torch.zeros(shape) for shape in SHAPES])
    options: Any = {"transformer_options": {"sample_sigmas": torch.tensor([1.0, 0.0])}}
    sides: Any = [[{"model_conds": inputs_of(denoiser)}]]
    with pytest.raises(ValueError, match="context windows: MiniMax H3 has none; got a video of 2 latent frames"):
        windows.execute(lambda *_: [x], denoiser, sides, x, torch.ones(1), options)


def test_samplers_carry_louder_audio(denoiser: MiniMaxH3Denoiser) -> None:
    nested = NestedLatent([torch.ones(SHAPES[0]), torch.ones(SHAPES[1])])
    video, audio = streams_of(denoiser.process_latent_in(nested))
    assert bool((video == 1).all()) and bool((audio == 4).all())
    back = streams_of(denoiser.process_latent_out(NestedLatent([video, audio])))
    assert all(torch.equal(item, torch.ones_like(item)) for item in back)


def test_what_is_kept_is_nearly_clean_and_its_audio_as_loud_as_samplers_carry_it(denoiser: MiniMaxH3Denoiser) -> None:
    clean = packed([torch.ones(SHAPES[0]), torch.full(SHAPES[1], 4.0)])
    kept = denoiser.scale_latent_inpaint(
        torch.tensor([0.5]), torch.zeros_like(clean), clean, latent_shapes=SHAPES, x=None, denoise_mask=None
    )
    video, audio = unpacked(kept, SHAPES)
    assert torch.allclose(video, torch.tensor(0.999))
    own = 0.2  # of the audio where the video's level is 0.5, by shifts of 12 and 3
    assert torch.allclose(audio, torch.tensor(0.5 / own))


def test_a_cell_that_its_token_does_not_keep_stays_as_it_is(denoiser: MiniMaxH3Denoiser) -> None:
    mask = torch.zeros(SHAPES[0])
    mask[..., 0, 0] = 1.0  # one of the four cells of the first token
    given = packed([mask, torch.ones(SHAPES[1])])
    x = torch.full_like(given, 9.0)
    kept = denoiser.scale_latent_inpaint(
        torch.tensor([0.5]), torch.zeros_like(x), torch.zeros_like(x), latent_shapes=SHAPES, x=x, denoise_mask=given
    )
    video = unpacked(kept, SHAPES)[0]
    assert video[0, 0, 0, 1, 1] == 9.0
    assert video[0, 0, 0, 2, 2] == 0.0
