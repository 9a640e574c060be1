"""VOID's nodes: levels of masks, what is conditioned on, noise that moves with a video, and what they refuse."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.cogvideox.nodes import (
    num_latent_frames,
    rounded_length,
    void_inpaint_conditioning,
    void_quadmask_preprocess,
    void_sampler,
    void_warped_noise,
    void_warped_noise_source,
)
from darkroom.engine.families.cogvideox.void_sampler import VoidSampler
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.nodes.base import NodeContext
from tests.engine.nodes.small_store import node_context, small_store

TEXT = [[torch.zeros(1, 3, 8), {"kept": 1}]]
SIDE_PX = 256


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> NodeContext:
    folder = tmp_path_factory.mktemp("cogvideox")
    for name in ("cogvideox", "sd15"):
        path = folder / "checkpoints" / f"{name}.safetensors"
        write_random_checkpoint(path, family=registry.family_named(name))
    return node_context(small_store(folder))


def vae_of(context: NodeContext, name: str = "cogvideox") -> Any:
    return context.models.checkpoint(f"{name}.safetensors")[2]


def video(frames: int, side: int = 32) -> torch.Tensor:
    return torch.rand(frames, side, side, 3, generator=torch.Generator().manual_seed(frames))


class FlowOfOnePixel:
    """An estimator of one pixel to the right for each frame, which notes the images that it is given."""

    load_device = torch.device("cpu")

    def __init__(self) -> None:
        self.sizes: list[tuple[int, ...]] = []
        self.patcher = SimpleNamespace(in_use=self._in_use)
        self.working_bytes = 0

    def _in_use(self, *, working_bytes: int) -> Any:
        self.working_bytes = working_bytes
        return nullcontext()

    def flow(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        self.sizes.append(tuple(first.shape))
        flow = torch.zeros(1, 2, *first.shape[2:])
        flow[:, 0] = 1.0
        return flow


# --- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1 / 255])
def test_a_mask_is_rounded_to_four_levels_and_inverted(context: NodeContext, scale: float) -> None:
    given = torch.tensor([0.0, 30.0, 33.0, 94.0, 97.0, 190.0, 193.0, 255.0]) * scale
    (levels,) = void_quadmask_preprocess(context, mask=given.view(1, 1, 8))[0] * 255
    assert levels.tolist() == pytest.approx([255.0, 255.0, 192.0, 192.0, 128.0, 128.0, 0.0, 0.0])


@pytest.mark.parametrize("shape", [(2, 9, 9), (9, 9)])
def test_the_object_grows_by_a_number_of_pixels(context: NodeContext, shape: tuple[int, ...]) -> None:
    given = torch.ones(shape)
    given[..., 4, 4] = 0.0
    grown = void_quadmask_preprocess(context, mask=given, dilate_width=2)
    assert grown.shape == shape
    assert (grown == 1).sum() == 25 * (len(given) if len(shape) == 3 else 1)
    assert given.min() == 0.0 and (given == 0).sum() == (2 if len(shape) == 3 else 1)  # the given one is as it was


# --- conditioning ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "rounded", "latent_frames"), [(1, 5, 2), (5, 5, 2), (8, 8, 2), (9, 5, 2), (45, 45, 12), (49, 45, 12)]
)
def test_lengths_are_rounded_to_whole_tokens(length: int, rounded: int, latent_frames: int) -> None:
    assert (rounded_length(length), num_latent_frames(length)) == (rounded, latent_frames)


def test_the_mask_and_the_video_without_its_object_are_conditioned_on(context: NodeContext) -> None:
    vae, frames, mask = vae_of(context), video(5), torch.zeros(5, 32, 32)
    mask[:, 8:24, 8:24] = 1.0
    positive, negative, latent = void_inpaint_conditioning(
        context, positive=TEXT, negative=TEXT, vae=vae, video=frames, quadmask=mask, width=32, height=32, length=5,
        batch_size=3,
    )  # fmt: skip
    known = positive[0][1]["concat_latent_image"]
    assert torch.equal(known, negative[0][1]["concat_latent_image"]) and positive[0][1]["kept"] == 1
    kept = 1 - mask[..., None].expand(-1, -1, -1, 3)
    assert torch.allclose(known, torch.cat([vae.encode(kept), vae.encode(frames * kept)], dim=1))
    assert torch.equal(latent["samples"], torch.zeros(3, 16, 2, 4, 4))


@pytest.mark.parametrize("num_masks", [1, 3])
def test_a_short_video_has_its_last_latent_repeated(context: NodeContext, num_masks: int) -> None:
    positive, _, latent = void_inpaint_conditioning(
        context, positive=TEXT, negative=TEXT, vae=vae_of(context), video=video(3),
        quadmask=torch.zeros(num_masks, 8, 8), width=48, height=32, length=15,
    )  # fmt: skip
    known = positive[0][1]["concat_latent_image"]
    assert known.shape == (1, 32, 4, 4, 6) and latent["samples"].shape == (1, 16, 4, 4, 6)
    assert torch.equal(known[:, :, 1:], known[:, :, :1].expand(-1, -1, 3, -1, -1))


def test_masks_of_other_frames_and_vaes_of_other_latents_are_refused(context: NodeContext) -> None:
    given = {"positive": TEXT, "negative": TEXT, "video": video(5), "width": 32, "height": 32, "length": 5}
    with pytest.raises(ValueError, match="quadmask: it has other frames than the video; got 2, expected 1 or 5"):
        void_inpaint_conditioning(context, vae=vae_of(context), quadmask=torch.zeros(2, 32, 32), **given)
    with pytest.raises(ValueError, match="vae: it is not CogVideoX's; got one of 4 channels and 2 dimensions"):
        void_inpaint_conditioning(context, vae=vae_of(context, "sd15"), quadmask=torch.zeros(1, 32, 32), **given)


# --- noise -----------------------------------------------------------------------------------------------------------


def test_noise_of_every_latent_frame_is_chosen_among_those_of_the_frames(context: NodeContext) -> None:
    flow: Any = FlowOfOnePixel()
    torch.manual_seed(0)
    noise = void_warped_noise(
        context, optical_flow=flow, video=video(5), width=SIDE_PX, height=SIDE_PX + 8, length=9, batch_size=2
    )["samples"]
    assert noise.shape == (2, 16, 2, 33, 32)
    assert torch.equal(noise[0], noise[1])
    assert flow.sizes == [(1, 3, 128, 128)] * 4  # of half the size, on whole cells
    assert flow.working_bytes >= 4 * 16 * (4 * SIDE_PX) ** 2
    # A pixel of the small frames is a quarter of a latent cell, so that four frames move the noise by a cell.
    moved = torch.corrcoef(torch.stack([noise[0, :, 0, :, :-1].flatten(), noise[0, :, 1, :, 1:].flatten()]))
    assert moved[0, 1] > 0.9


def test_noise_of_one_frame_needs_no_flow(context: NodeContext) -> None:
    flow: Any = FlowOfOnePixel()
    noise = void_warped_noise(context, optical_flow=flow, video=video(1), width=32, height=16, length=45)["samples"]
    assert noise.shape == (1, 16, 12, 2, 4) and flow.sizes == []
    assert torch.equal(noise[:, :, 0], noise[:, :, 11])


@pytest.mark.parametrize(
    ("width", "height", "problem"),
    [
        (248, 256, "too small to estimate how the video moves; got 248x256 px, expected at least 256 px a side"),
        (16384, 16384, "does not fit into memory; got 16384x16384 px, expected at most 2088960 pixels"),
    ],
)
def test_sizes_without_a_flow_or_beyond_memory_are_refused(
    context: NodeContext, width: int, height: int, problem: str
) -> None:
    flow: Any = FlowOfOnePixel()
    with pytest.raises(ValueError, match=problem):
        void_warped_noise(context, optical_flow=flow, video=video(2), width=width, height=height)


def test_a_latent_is_the_noise_of_latents_of_its_size(context: NodeContext) -> None:
    samples = torch.randn(2, 16, 2, 4, 4)
    source = void_warped_noise_source(context, warped_noise={"samples": samples})
    for batch in (1, 2):
        assert torch.equal(source.generate_noise({"samples": torch.zeros(batch, 16, 2, 4, 4)}), samples)
    with pytest.raises(ValueError, match=r"noise: it has another size than latent_image; got \[2, 16, 2, 4, 4\]"):
        source.generate_noise({"samples": torch.zeros(2, 16, 2, 4, 6)})


def test_its_sampler_is_made(context: NodeContext) -> None:
    assert isinstance(void_sampler(context), VoidSampler)
