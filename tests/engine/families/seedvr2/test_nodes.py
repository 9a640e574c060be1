"""SeedVR2's nodes: parts of a video and their merge, conditioning, streams, and what they refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.seedvr2.nodes import (
    seedvr2_conditioning,
    seedvr2_post_processing,
    seedvr2_preprocess,
    seedvr2_temporal_chunk,
    seedvr2_temporal_merge,
)
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.nodes.base import NodeContext
from tests.engine.nodes.small_store import node_context, small_store

GIB = 1 << 30


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> NodeContext:
    folder = tmp_path_factory.mktemp("seedvr2")
    for name in ("seedvr2", "sd15"):
        path = folder / "checkpoints" / f"{name}.safetensors"
        write_random_checkpoint(path, family=registry.family_named(name))
    return node_context(small_store(folder))


def latent(frames: int, channels: int = 16, side: int = 4) -> dict[str, Any]:
    shape = (1, channels, frames, side, side)
    return {"samples": torch.randn(shape, generator=torch.Generator().manual_seed(frames))}


def parts_of(context: NodeContext, given: dict[str, Any], frames: int, overlap: int) -> tuple[list[Any], int]:
    mode = {"chunking_mode": "manual", "frames_per_chunk": frames}
    parts, shared = seedvr2_temporal_chunk(context, latent=given, temporal_overlap=overlap, chunking_mode=mode)
    return parts, shared


@pytest.mark.parametrize(
    ("length", "frames", "overlap", "starts", "shared"),
    [
        (7, 9, 0, [0, 3, 6], 0),
        (7, 9, 1, [0, 2, 4], 1),
        (7, 9, 99, [0, 1, 2, 3, 4], 2),
        (7, 1, 5, [0, 1, 2, 3, 4, 5, 6], 0),
        (3, 9, 2, [0], 0),
    ],
)
def test_a_video_is_cut_into_parts_that_reach_its_end(
    context: NodeContext, length: int, frames: int, overlap: int, starts: list[int], shared: int
) -> None:
    given, size = latent(length), (frames - 1) // 4 + 1
    parts, told = parts_of(context, given, frames, overlap)
    assert told == shared and len(parts) == len(starts)
    for start, part in zip(starts, parts, strict=True):
        assert torch.equal(part["samples"], given["samples"][:, :, start : start + size])
    assert starts[-1] + parts[-1]["samples"].shape[2] == length


@pytest.mark.parametrize("overlap", [0, 1, 3, 4])
@pytest.mark.parametrize("length", [5, 6, 11, 13])
def test_parts_that_nobody_changed_merge_to_the_video(context: NodeContext, length: int, overlap: int) -> None:
    given = latent(length)
    parts, shared = parts_of(context, given, 17, overlap)
    overlaps: Any = [shared]
    merged = seedvr2_temporal_merge(context, latents=parts, temporal_overlap=overlaps)
    torch.testing.assert_close(merged["samples"], given["samples"])


def merged_of(context: NodeContext, lengths: list[int], overlap: int) -> torch.Tensor:
    parts: Any = [{"samples": torch.full((1, 16, length, 1, 1), float(at))} for at, length in enumerate(lengths)]
    overlaps: Any = [overlap]
    made: torch.Tensor = seedvr2_temporal_merge(context, latents=parts, temporal_overlap=overlaps)["samples"]
    return made[0, 0, :, 0, 0]


def test_parts_fade_in_the_middle_third_of_what_they_share(context: NodeContext) -> None:
    made = merged_of(context, [9, 9], 7)
    assert made.tolist()[:5] == [0.0] * 5 and made.tolist()[6:] == [1.0] * 5
    assert made[5] == pytest.approx(0.5)


def test_the_mask_of_the_first_part_is_left_out_and_the_parts_stay(context: NodeContext) -> None:
    given = [latent(5) | {"noise_mask": torch.ones(1, 4, 4)}, latent(5)]
    overlaps: Any = [2]
    merged = seedvr2_temporal_merge(context, latents=given, temporal_overlap=overlaps)
    assert merged.keys() == {"samples"} and torch.equal(given[0]["samples"], latent(5)["samples"])


@pytest.mark.parametrize(
    ("lengths", "overlap", "problem"),
    [
        ([5, 4, 5], 1, "part 1 has another length; got 4 latent frames, expected 5"),
        ([5, 5, 2], 3, "temporal_overlap: longer than the last part; got 3 latent frames, expected at most 2"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(
    context: NodeContext, lengths: list[int], overlap: int, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        merged_of(context, lengths, overlap)


def test_parts_of_other_sizes_or_of_images_are_refused(context: NodeContext) -> None:
    with pytest.raises(ValueError, match="part 1 is of another video"):
        seedvr2_temporal_merge(context, latents=[latent(5), latent(5, side=6)], temporal_overlap=[0])
    image: Any = {"samples": torch.zeros(1, 4, 8, 8)}
    with pytest.raises(ValueError, match="latents: not those of videos"):
        seedvr2_temporal_merge(context, latents=[image], temporal_overlap=[0])


@pytest.mark.parametrize(("free_gib", "length"), [(0, 1), (12.0, 1), (80.0, 15), (10000.0, 20)])
def test_parts_are_as_long_as_the_free_memory_allows(context: NodeContext, free_gib: float, length: int) -> None:
    class Store:
        def free_device_bytes(self) -> int:
            return int(free_gib * GIB)

    given: dict[str, Any] = {"samples": torch.zeros(1, 16, 20, 1, 1).expand(-1, -1, -1, 270, 480)}  # 8.3 megapixels
    parts, _ = seedvr2_temporal_chunk(
        dataclasses.replace(context, models=Store()), latent=given, chunking_mode={"chunking_mode": "auto"}
    )
    assert parts[0]["samples"].shape[2] == length


@pytest.mark.parametrize("frames", [2, 4, 20])
def test_a_part_of_no_whole_latent_frames_is_refused(context: NodeContext, frames: int) -> None:
    with pytest.raises(ValueError, match=f"frames_per_chunk: no whole latent frames; got {frames}, expected 1, 5"):
        parts_of(context, latent(9), frames, 0)


def test_texts_come_with_the_model(context: NodeContext) -> None:
    model, _, _ = context.models.checkpoint("seedvr2.safetensors")
    positive, negative = seedvr2_conditioning(context, model=model, vae_conditioning=latent(2))
    network = model.model.diffusion_model
    for [[text, options]], own in (
        (positive, network.positive_conditioning),
        (negative, network.negative_conditioning),
    ):
        assert torch.equal(text[0], own.float())
        assert torch.equal(options["condition"][:, :16], latent(2)["samples"])
        assert options["condition"][:, 16:].eq(1).all()


def test_conditioning_refuses_other_models_and_other_latents(context: NodeContext) -> None:
    other, _, _ = context.models.checkpoint("sd15.safetensors")
    with pytest.raises(ValueError, match="model: not SeedVR2; got Unet"):
        seedvr2_conditioning(context, model=other, vae_conditioning=latent(2))
    with pytest.raises(ValueError, match="vae_conditioning: not a latent of SeedVR2's VAE"):
        seedvr2_conditioning(context, model=other, vae_conditioning=latent(2, channels=12))


def test_frames_of_one_pixel_are_refused(context: NodeContext) -> None:
    with pytest.raises(ValueError, match="resized_images: too small; got 8x1 pixels, expected at least 2 a side"):
        seedvr2_preprocess(context, resized_images=torch.zeros(1, 1, 8, 3))


def test_frames_too_large_for_the_free_memory_are_refused(context: NodeContext) -> None:
    @dataclasses.dataclass
    class Files:
        def free_bytes(self) -> int:
            return 1000

    small = dataclasses.replace(context, files=Files())
    with pytest.raises(ValueError, match="resized_images: too large for the free memory"):
        seedvr2_preprocess(small, resized_images=torch.zeros(1, 16, 16, 3))
    with pytest.raises(ValueError, match="images: too large for the free memory"):
        seedvr2_post_processing(
            small, images=torch.zeros(1, 16, 16, 3), original_resized_images=torch.zeros(1, 16, 16, 3)
        )


def test_restored_frames_are_corrected_one_by_one_where_they_are_taken_so(context: NodeContext) -> None:
    taken = []

    def decode() -> Iterator[torch.Tensor]:
        for index in range(0, 9, 3):
            taken.append(index)
            yield torch.rand(3, 16, 16, 3, generator=torch.Generator().manual_seed(index))

    given, originals = FrameStream((9, 16, 16, 3), decode, 100), torch.rand(7, 16, 16, 3)
    streamed = dataclasses.replace(context, output_is_streamed=lambda: True)
    made = seedvr2_post_processing(streamed, images=given, original_resized_images=originals)
    assert isinstance(made, FrameStream) and made.shape == (7, 16, 16, 3) and taken == []
    assert made.get_ram_usage() == 100 + originals.nbytes
    assert next(made.pieces()).shape == (1, 16, 16, 3) and taken == [0]
    held = seedvr2_post_processing(context, images=given, original_resized_images=originals)
    assert torch.equal(made.whole(), held)
