"""Latents of several streams: their packed form, their noise and masks, and sampling of both streams as one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.diffusion.nested_latent import (
    NestedLatent,
    by_stream,
    first_stream,
    last_stream,
    packed,
    packed_mask,
    shapes_of,
    streams_of,
    unpacked,
)
from darkroom.engine.diffusion.noise import prepare_empty_noise, prepare_noise
from darkroom.engine.diffusion.sample import resized_mask
from darkroom.engine.families.ltx_video.nodes.audio_streams import ltxv_concat_av_latent, ltxv_separate_av_latent
from darkroom.engine.runtime.cache.result_size import size_bytes

VIDEO, AUDIO = (1, 24, 2, 4, 6), (1, 32, 2, 8)
CONTEXT: Any = None


def streams() -> list[torch.Tensor]:
    return [torch.randn(VIDEO), torch.randn(AUDIO)]


def test_unpacks_what_it_packed_for_any_batch() -> None:
    given = streams()
    shapes = shapes_of(given)
    twice = torch.cat([packed(given)] * 2)
    assert packed(given).shape == (1, 1, 24 * 2 * 4 * 6 + 32 * 2 * 8)
    for stream, found in zip(given, unpacked(twice, shapes), strict=True):
        assert torch.equal(found, torch.cat([stream, stream]))


def test_applies_a_function_to_the_nested_form_of_a_packed_latent() -> None:
    given = streams()
    louder = by_stream(lambda latent: NestedLatent([latent.unbind()[0], latent.unbind()[1] * 4]), packed(given),
                       shapes_of(given))  # fmt: skip
    video, audio = unpacked(louder, shapes_of(given))
    assert torch.equal(video, given[0])
    assert torch.equal(audio, given[1] * 4)
    assert torch.equal(by_stream(lambda latent: latent * 2, given[0], ()), given[0] * 2)


def test_computes_with_each_stream() -> None:
    first, second = NestedLatent(streams()), NestedLatent(streams())
    for own, theirs, found in zip(first.unbind(), second.unbind(), (first + second).unbind(), strict=True):
        assert torch.equal(found, own + theirs)
    assert torch.equal((first * 2.0).unbind()[1], first.unbind()[1] * 2.0)
    assert first.shape == VIDEO
    assert size_bytes({"samples": first}) == sum(item.nbytes for item in first.unbind())


def test_tells_nested_latents_from_tensors() -> None:
    video, audio = streams()
    assert streams_of(video) == []
    assert first_stream(video) is video
    assert first_stream(NestedLatent([video, audio])) is video
    assert last_stream(NestedLatent([video, audio])) is audio


def test_draws_the_noise_of_streams_one_after_the_other() -> None:
    nested: Any = NestedLatent(streams())
    video, audio = streams_of(prepare_noise(nested, 7))
    generator = torch.Generator().manual_seed(7)
    assert torch.equal(video, torch.randn(VIDEO, generator=generator))
    assert torch.equal(audio, torch.randn(AUDIO, generator=generator))
    assert [bool(item.any()) for item in streams_of(prepare_empty_noise(nested))] == [False, False]


def test_paints_streams_without_a_mask_as_a_whole() -> None:
    mask = torch.zeros(1, 1, 4, 6)
    shapes = (VIDEO, AUDIO)
    video, audio = unpacked(packed_mask(mask, shapes, resized_mask), shapes)
    assert not video.any()
    assert audio.all()


def test_joins_and_parts_a_video_and_its_audio() -> None:
    video, audio = streams()
    mask = torch.zeros(1, 1, 2, 4, 6)
    joined = ltxv_concat_av_latent.function(
        CONTEXT, video_latent={"samples": video, "noise_mask": mask}, audio_latent={"samples": audio}
    )
    assert torch.equal(streams_of(joined["noise_mask"])[1], torch.ones(AUDIO))
    parts = ltxv_separate_av_latent.function(CONTEXT, av_latent=joined)
    assert [part["samples"].shape for part in parts] == [VIDEO, AUDIO]
    assert parts[0]["noise_mask"] is mask


@pytest.mark.parametrize("length", [5, 8, 11])
def test_fits_audio_to_the_audio_that_it_replaces(length: int) -> None:
    nested: Any = NestedLatent(streams())
    other = torch.randn(1, 32, 2, length)
    joined = ltxv_concat_av_latent.function(
        CONTEXT, video_latent={"samples": nested},
        audio_latent={"samples": other, "noise_mask": torch.zeros(1, 1, 2, length)},
    )  # fmt: skip
    audio = streams_of(joined["samples"])[1]
    kept = min(length, 8)
    assert audio.shape == AUDIO
    assert torch.equal(audio[..., :kept], other[..., :kept])
    assert not audio[..., kept:].any()
    if length != 8:
        mask = streams_of(joined["noise_mask"])[1]
        assert not mask[..., :kept].any()
        assert bool(mask[..., kept:].all())


def test_refuses_audio_of_another_model() -> None:
    nested: Any = NestedLatent(streams())
    with pytest.raises(ValueError, match=r"audio_latent: .*\[1, 8, 3, 8\]"):
        ltxv_concat_av_latent.function(
            CONTEXT, video_latent={"samples": nested}, audio_latent={"samples": torch.zeros(1, 8, 3, 8)}
        )


def test_refuses_to_part_a_latent_of_one_stream() -> None:
    with pytest.raises(ValueError, match="av_latent"):
        ltxv_separate_av_latent.function(CONTEXT, av_latent={"samples": torch.zeros(VIDEO)})


def test_functions_of_one_tensor_are_refused_with_advice() -> None:
    latent: Any = NestedLatent([torch.zeros(1, 2, 3), torch.zeros(1, 4)])
    with pytest.raises(ValueError, match="LTXVSeparateAVLatent"):
        torch.flip(latent, dims=[1])
    with pytest.raises(AttributeError, match=r"'movedim' takes a single tensor.*LTXVSeparateAVLatent"):
        latent.movedim(0, 1)


def test_networks_of_one_stream_refuse_several_before_they_compute() -> None:
    network = Denoiser(torch.nn.Identity())
    shapes = shapes_of(streams())
    given: dict[str, Any] = {"noise": torch.zeros(1, 1, 8), "device": torch.device("cpu"), "latent_shapes": shapes}
    with pytest.raises(ValueError, match="latent_image: it has 2 streams, .*LTXVSeparateAVLatent"):
        network.extra_conds(**given)
    network.takes_streams = True
    assert "latent_shapes" in network.extra_conds(**given)
