"""The VAE of videos as nodes use it: numbers of frames, cropping, tiles along all axes."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.cogvideox.vae import CogVideoXVae, CogVideoXVaeConfig
from darkroom.engine.families.hunyuan_video.vae import HunyuanVideoVae, HunyuanVideoVaeConfig
from darkroom.engine.families.registry import family_named
from darkroom.engine.families.wan.vae import WanVae, WanVaeConfig
from darkroom.engine.layers.tiles import AxisScale, even_scale, run_in_tiles
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.memory.relief import MemorySavings
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.models.vae import Vae
from darkroom.engine.models.vae_of import vae_of
from darkroom.engine.models.video_vae import VideoVae
from darkroom.engine.settings import EngineSettings, MemorySettings


@pytest.fixture(scope="module")
def vae() -> VideoVae:
    torch.manual_seed(0)
    network = WanVae(WanVaeConfig(base_channels=8, latent_channels=4)).requires_grad_(False)
    for name, weight in network.named_parameters():
        if name.endswith(".gamma"):
            weight.fill_(1.0)
    made = vae_of(ModelMemory(EngineSettings(cpu=True)).keep("vae", network, role="vae"))
    assert isinstance(made, VideoVae)
    return made


def frames(number: int, height: int = 32, width: int = 40) -> torch.Tensor:
    return torch.rand(number, height, width, 3, generator=torch.Generator().manual_seed(number))


def test_images_are_the_frames_of_one_video(vae: VideoVae) -> None:
    latent = vae.encode(frames(5))
    assert latent.shape == (1, 4, 2, 4, 5)
    assert vae.decode(latent).shape == (1, 5, 32, 40, 3)
    assert vae.encode(frames(1, 35, 47)).shape == (1, 4, 1, 4, 5)  # cut to whole cells


def test_a_latent_of_an_image_is_decoded_as_one_frame(vae: VideoVae) -> None:
    latent = torch.randn(2, 4, 4, 5)
    assert torch.equal(vae.decode(latent), vae.decode(latent.unsqueeze(2)))


def test_frames_leave_the_network_in_pieces_of_the_same_bits(vae: VideoVae) -> None:
    latents = torch.randn(2, 4, 5, 4, 5, generator=torch.Generator().manual_seed(3))
    network = vae.first_stage_model
    pieces = [*network.decoded_pieces(latents)]
    assert [piece.shape[2] for piece in pieces] == [1, 4, 4, 4, 4]
    whole = vae.process_output(network.decode(latents)).movedim(1, -1)
    assert torch.equal(vae.decode(latents), whole)


@pytest.mark.parametrize("latent_frames", [5, 33])
def test_the_working_memory_of_decoding_does_not_grow_with_the_frames(vae: VideoVae, latent_frames: int) -> None:
    assert vae.decode_item_bytes((1, 4, latent_frames, 4, 5)) == vae.decode_item_bytes((1, 4, 2, 4, 5))


def test_tiles_that_hold_everything_are_no_tiles(vae: VideoVae) -> None:
    latent = vae.encode(frames(5))
    torch.testing.assert_close(vae.decode_tiled(latent, tile_x=8, tile_y=8, overlap=2), vae.decode(latent))
    torch.testing.assert_close(vae.encode_tiled(frames(5), tile_x=64, tile_y=64, overlap=16), latent)


def test_tiles_along_time_and_sides_have_the_size_of_the_whole(vae: VideoVae) -> None:
    latent = vae.encode(frames(13, 48, 64))
    assert latent.shape == (1, 4, 4, 6, 8)
    tiled = vae.decode_tiled(latent, tile_x=4, tile_y=4, overlap=1, tile_t=2, overlap_t=1)
    assert tiled.shape == (1, 13, 48, 64, 3) and torch.isfinite(tiled).all()
    encoded = vae.encode_tiled(frames(15, 48, 64), tile_x=32, tile_y=32, overlap=8, tile_t=8, overlap_t=4)
    assert encoded.shape == latent.shape and torch.isfinite(encoded).all()


def test_the_members_that_nodes_ask_for(vae: VideoVae) -> None:
    assert vae.latent_dim == 3 and vae.temporal_compression_decode() == 4
    assert vae.spacial_compression_decode() == vae.spacial_compression_encode() == 8
    assert [vae.num_frames(number) for number in (0, 1, 3)] == [0, 1, 9]
    assert [vae.num_latent_frames(number) for number in (0, 1, 4, 5, 9)] == [0, 1, 1, 2, 3]
    assert isinstance(vae, Vae)


def test_axes_of_tiles_may_have_scales_of_their_own() -> None:
    samples = torch.arange(1 * 1 * 6 * 5 * 5, dtype=torch.float32).view(1, 1, 6, 5, 5)
    time = AxisScale(lambda length: length * 2, lambda start: start * 2)
    doubled = run_in_tiles(
        samples, lambda part: part.repeat_interleave(2, dim=2), tile=(3, 4, 4), overlap=(1, 2, 2),
        scale=(time, even_scale(1), even_scale(1)), out_channels=1,
    )  # fmt: skip
    torch.testing.assert_close(doubled, samples.repeat_interleave(2, dim=2))


def test_streamed_frames_are_those_of_decoding(vae: VideoVae) -> None:
    latents = torch.randn(2, 4, 3, 4, 5, generator=torch.Generator().manual_seed(4))
    stream = vae.frame_stream(latents)
    assert stream is not None and stream.shape == (18, 32, 40, 3) and len(stream) == 18
    assert [len(piece) for piece in stream.pieces()] == [1, 4, 4, 1, 4, 4]
    one_by_one = torch.cat([vae.decode(item) for item in torch.split(latents, 1)]).flatten(0, 1)
    assert torch.equal(stream.whole(), one_by_one)
    assert torch.equal(torch.stack([*stream]), one_by_one)  # a second time, frame by frame
    assert vae.frame_stream(latents[:, :, :1]) is None


def test_streamed_frames_of_tiles_are_those_of_tiled_decoding(vae: VideoVae) -> None:
    latents = torch.randn(2, 4, 5, 5, 6, generator=torch.Generator().manual_seed(5))
    sizes = {"tile_x": 4, "tile_y": 4, "overlap": 1, "tile_t": 3, "overlap_t": 1}
    stream = vae.tiled_frame_stream(latents, **sizes)
    assert stream is not None
    assert max(len(piece) for piece in stream.pieces()) < 17
    assert torch.equal(stream.whole(), vae.decode_tiled(latents, **sizes).flatten(0, 1))


class WholeVideosVae(torch.nn.Module):
    """HunyuanVideo's network without its decoding in pieces."""

    latent_dim = 3
    works_on_whole_videos = True

    def __init__(self) -> None:
        super().__init__()
        own = HunyuanVideoVae(HunyuanVideoVaeConfig((32, 32, 32, 32), blocks_per_level=1)).requires_grad_(False)
        self.own, self.encode, self.decode = own, own.encode, own.decode
        self.frames_ratio, self.downscale_ratio, self.latent_channels = 4, own.downscale_ratio, own.latent_channels
        self.encode_bytes_per_pixel, self.decode_bytes_per_cell = 225, 24_000


def whole_video_vae(memory: ModelMemory) -> VideoVae:
    torch.manual_seed(0)
    made = vae_of(memory.keep("vae", WholeVideosVae(), role="vae"))
    assert isinstance(made, VideoVae)
    return made


def test_a_network_that_sees_whole_videos_decodes_in_tiles_of_time_once_memory_ran_out() -> None:
    memory = ModelMemory(EngineSettings(cpu=True))
    vae = whole_video_vae(memory)
    latents = torch.randn(1, 16, 17, 2, 2, generator=torch.Generator().manual_seed(6))
    assert vae.frame_stream(latents) is None  # it decodes them as a whole
    plain = vae.encode(frames(77, 16, 16))
    memory.pool.memory_savings = MemorySavings(tiles=True)
    stream = vae.frame_stream(latents)
    assert stream is not None and stream.shape == (65, 16, 16, 3)
    assert max(len(piece) for piece in stream.pieces()) < 64
    assert torch.equal(stream.whole(), vae.decode(latents).flatten(0, 1))
    assert vae.encode(frames(77, 16, 16)).shape == plain.shape


@pytest.mark.parametrize(("vram_gb", "is_whole"), [(None, False), (0.027, False), (4.0, True)])
def test_a_long_video_is_decoded_at_once_only_where_a_device_has_the_memory_for_it(
    vram_gb: float | None, is_whole: bool
) -> None:
    vae = whole_video_vae(
        ModelMemory(EngineSettings(cpu=vram_gb is None, memory=MemorySettings(simulate_vram_gb=vram_gb)))
    )
    latents = torch.randn(1, 16, 20, 2, 2, generator=torch.Generator().manual_seed(6))
    decoded, stream = vae.decode(latents), vae.frame_stream(latents)
    whole = vae.process_output(vae.first_stage_model.decode(latents)).movedim(1, -1)
    assert torch.equal(decoded, whole) == is_whole == (stream is None)
    if stream is not None:
        assert max(len(piece) for piece in stream.pieces()) < 64
        assert torch.equal(stream.whole(), decoded.flatten(0, 1))


def test_two_latent_frames_of_hunyuan_video_are_decoded_at_a_time() -> None:
    torch.manual_seed(0)
    network = HunyuanVideoVae(HunyuanVideoVaeConfig((32, 32, 32, 32), blocks_per_level=1)).requires_grad_(False)
    latents = torch.randn(1, 16, 6, 2, 2)
    assert [piece.shape[2] for piece in network.decoded_pieces(latents)] == [5, 8, 8]
    assert [piece.shape[2] for piece in network.decoded_pieces(latents[:, :, :3])] == [5, 4]
    assert network.encode(torch.rand(1, 3, 23, 16, 16)).shape == (1, 16, 6, 2, 2)  # frames beyond 1 + 4n are left out
    assert network.encode(torch.rand(1, 3, 3, 16, 16)).shape == (1, 16, 1, 2, 2)


def test_an_image_of_hunyuan_video_takes_the_memory_of_one_frame_and_videos_that_of_a_piece() -> None:
    network = HunyuanVideoVae(HunyuanVideoVaeConfig((32, 32, 32, 32), blocks_per_level=1)).requires_grad_(False)
    vae = vae_of(ModelMemory(EngineSettings(cpu=True)).keep("vae", network, role="vae"))
    image, piece, longer = (vae.decode_item_bytes((1, 16, frames, 8, 8)) for frames in (1, 3, 33))
    assert piece == longer and 7 < piece / image < 8.5  # pieces have eight frames


def test_an_even_number_of_latent_frames_makes_three_frames_more_unless_tiles_are_asked_for() -> None:
    memory = ModelMemory(EngineSettings(cpu=True))
    network = CogVideoXVae(CogVideoXVaeConfig((32, 32, 32, 32), blocks_per_level=1)).requires_grad_(False)
    vae = vae_of(memory.keep("vae", network, role="vae"))
    assert isinstance(vae, VideoVae)
    latents = torch.randn(1, 16, 20, 2, 3, generator=torch.Generator().manual_seed(6))
    whole = vae.decode(latents[:, :, :6])
    assert whole.shape[1] == 24
    one_tile = vae.decode_tiled(latents[:, :, :6], tile_x=8, tile_y=8, overlap=2)
    torch.testing.assert_close(one_tile, whole)
    for tiles in ({"tile_t": 4, "overlap_t": 1}, {"tile_x": 2, "tile_y": 2, "overlap": 1}, {"tile_t": 3}):
        stream = vae.tiled_frame_stream(latents[:, :, :6], **tiles)
        assert stream is not None and stream.shape == (21, 16, 24, 3)
        tiled = vae.decode_tiled(latents[:, :, :6], **tiles)
        assert torch.isfinite(tiled).all() and torch.equal(stream.whole(), tiled.flatten(0, 1))
    memory.pool.memory_savings = MemorySavings(tiles=True)
    stream = vae.frame_stream(latents)
    assert stream is not None and stream.shape == (80, 16, 24, 3)
    assert torch.equal(stream.whole(), vae.decode(latents).flatten(0, 1))


@pytest.mark.parametrize("family", ["wan", "wan22", "ltx_video", "mochi", "cosmos1", "seedvr2", "cogvideox"])
def test_the_frames_of_every_family_are_the_same_bits_streamed_and_in_a_tensor(family: str) -> None:
    _, _, network = random_networks("small", 1, LoadTypes(vae=torch.float32), family=family_named(family))
    vae = vae_of(ModelMemory(EngineSettings(cpu=True)).keep("vae", network, role="vae"))
    assert isinstance(vae, VideoVae)
    latents = torch.randn(1, vae.latent_channels, 4, 3, 2, generator=torch.Generator().manual_seed(7))
    torch.manual_seed(8)
    decoded = vae.decode(latents)
    torch.manual_seed(8)
    whole = vae.process_output(network.decode(latents)).movedim(1, -1)
    torch.testing.assert_close(decoded, whole, rtol=0, atol=1e-4)
    torch.manual_seed(8)
    stream = vae.frame_stream(latents)
    assert stream is not None and len([*stream.pieces()]) > 3
    assert torch.equal(stream.whole(), decoded.flatten(0, 1))
