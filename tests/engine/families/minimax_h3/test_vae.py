"""MiniMax H3's video VAE: sizes from shapes, clips of frames, tiles that fade, and what the VAE value makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from darkroom.engine.families.minimax_h3.vae import MiniMaxH3VideoVae, minimax_h3_video_vae_config, num_latent_frames
from darkroom.engine.families.minimax_h3.vae_decoder import clip_turns
from darkroom.engine.families.minimax_h3.vae_encoder import PastConv3d
from darkroom.engine.families.minimax_h3.vae_files import AUTOENCODER
from darkroom.engine.families.minimax_h3.vae_tiles import cross_fade, in_tiles, tile_spans
from darkroom.engine.families.registry import names_of
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.memory.relief import MemorySavings
from darkroom.engine.models.vae_of import vae_of
from darkroom.engine.models.video_vae import VideoVae
from darkroom.engine.settings import EngineSettings


def small_network() -> MiniMaxH3VideoVae:
    torch.manual_seed(0)
    network = MiniMaxH3VideoVae(AUTOENCODER.sizes["small"]).requires_grad_(False).eval()
    for name, weight in network.named_parameters():
        if name.endswith(("scale1", "scale2", "latents_std")):
            weight.fill_(1.0)
        elif name.endswith(("_tokens", "_token", "latents_mean")):
            weight.normal_()
    return network


@pytest.fixture(scope="module")
def network() -> MiniMaxH3VideoVae:
    return small_network()


@pytest.fixture(scope="module")
def vae(network: MiniMaxH3VideoVae) -> VideoVae:
    made = vae_of(ModelMemory(EngineSettings(cpu=True)).keep("vae", network, role="vae"))
    assert isinstance(made, VideoVae)
    return made


def latents(*shape: int) -> torch.Tensor:
    return torch.randn(1, 24, *shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("prefix", ["", "vae.", "first_stage_model."])
def test_shapes_tell_the_sizes(scale: str, prefix: str) -> None:
    with unfilled():
        built = AUTOENCODER.build(AUTOENCODER.sizes[scale])
    shapes = {prefix + name: tuple(weight.shape) for name, weight in built.state_dict().items()}
    names = names_of(AUTOENCODER, shapes)
    assert names is not None
    assert AUTOENCODER.configure({ours: shapes[str(theirs)] for ours, theirs in names.items()}) == built.config
    if scale == "full" and not prefix:
        weights = [weight.numel() for name, weight in built.named_parameters() if name.startswith("decoder.")]
        assert sum(weights) == pytest.approx(2.43e9, rel=0.01)


def test_a_file_without_a_level_is_told_from_one_with_all() -> None:
    with unfilled():
        shapes = {name: tuple(item.shape) for name, item in small_network().state_dict().items()}
    rest = {name: shape for name, shape in shapes.items() if not name.startswith("encoder.down.5.")}
    with pytest.raises(LookupError, match=r"encoder\.down\.5"):
        minimax_h3_video_vae_config(rest)


@pytest.mark.parametrize(
    ("latent_frames", "frames"), [(1, 1), (2, 5), (3, 9), (5, 17), (6, 18), (7, 22), (12, 39), (37, 124)]
)
def test_latent_frames_become_frames_by_clips_of_seventeen(latent_frames: int, frames: int) -> None:
    assert MiniMaxH3VideoVae.num_frames(latent_frames) == frames


@pytest.mark.parametrize(
    ("frames", "latent_frames"), [(1, 1), (2, 2), (5, 2), (17, 2), (18, 7), (22, 7), (34, 7), (39, 12), (124, 37)]
)
def test_frames_are_filled_up_to_whole_clips(vae: VideoVae, frames: int, latent_frames: int) -> None:
    assert num_latent_frames(frames) == latent_frames
    if frames < 30:
        assert vae.encode(torch.rand(frames, 32, 32, 3)).shape == (1, 24, latent_frames, 2, 2)


@pytest.mark.parametrize("latent_frames", [1, 2, 4, 7, 9, 12])
def test_a_video_leaves_the_network_clip_by_clip(network: MiniMaxH3VideoVae, latent_frames: int) -> None:
    z = latents(latent_frames, 2, 2)
    pieces = [*network.decoded_pieces(z)]
    assert sum(piece.shape[2] for piece in pieces) == network.num_frames(latent_frames)
    assert max(piece.shape[2] for piece in pieces) <= 17
    whole = torch.cat(pieces, dim=2)
    assert torch.equal(whole, network.decode(z)) and whole.min() >= 0.0 and whole.max() <= 1.0


def test_a_clip_fades_from_the_frames_that_the_one_before_decoded_of_it(network: MiniMaxH3VideoVae) -> None:
    z = latents(12, 2, 2)
    whole, first, second = (network.decode(part) for part in (z, z[:, :, :7], z[:, :, 5:]))
    torch.testing.assert_close(whole[:, :, :17], first[:, :, :17])
    torch.testing.assert_close(whole[:, :, 22:], second[:, :, 5:])
    halfway = first[:, :, 19] * 0.6 + second[:, :, 2] * 0.4
    free = (halfway > 0.01) & (halfway < 0.99)  # of pixels that are clamped before and after
    assert free.any()
    torch.testing.assert_close(whole[:, :, 19][free], halfway[free], atol=0.25, rtol=0)


def test_the_first_image_of_a_clip_reads_no_later_frames(network: MiniMaxH3VideoVae) -> None:
    video = torch.rand(1, 3, 17, 32, 32)
    changed = torch.cat([video[:, :, :16], video[:, :, :1]], dim=2)
    encoded = [network.quant_conv(network.encoder(item)) for item in (video, changed)]
    torch.testing.assert_close(encoded[0][:, :, :4], encoded[1][:, :, :4])
    assert not torch.allclose(encoded[0][:, :, 4], encoded[1][:, :, 4])


def test_a_single_frame_is_convolved_as_one_behind_black_ones() -> None:
    torch.manual_seed(1)
    layer = PastConv3d(2, 3).requires_grad_(False)
    frame = torch.rand(1, 2, 1, 4, 4)
    behind_zeros = layer(torch.cat([torch.zeros(1, 2, 2, 4, 4), frame], dim=2))
    torch.testing.assert_close(layer(frame), behind_zeros[:, :, -1:])


@pytest.mark.parametrize("cells", [1, 16, 17, 28, 29, 40, 84, 333])
def test_tiles_cover_a_side_and_share_at_least_four_cells(cells: int) -> None:
    spans = tile_spans(cells)
    assert spans[0].start == 0 and spans[-1].start + spans[-1].length == cells
    assert all(span.length == min(cells, 16) for span in spans)
    for before, after in zip(spans, spans[1:], strict=False):
        shared = before.start + before.length - after.start
        assert before.shared_behind == after.shared_before == shared and 4 <= shared < 16
    assert len(spans) == max(1, -(-(cells - 4) // 12))  # no more than needed


def test_a_function_of_single_cells_is_the_same_in_tiles() -> None:
    x = torch.rand(1, 2, 1, 30, 41)
    doubled = in_tiles(x, lambda tile: tile.repeat_interleave(2, -1).repeat_interleave(2, -2), cell_in=1, cell_out=2)
    torch.testing.assert_close(doubled, x.repeat_interleave(2, -1).repeat_interleave(2, -2))
    halved = in_tiles(x[..., :40], lambda tile: tile[..., ::2, ::2] * 3.0, cell_in=2, cell_out=1)
    torch.testing.assert_close(halved, x[..., :40][..., ::2, ::2] * 3.0)


def test_tiles_fade_into_each_other_linearly() -> None:
    seen: Iterator[float] = iter([0.0, 1.0])
    row = in_tiles(torch.zeros(1, 1, 1, 1, 28), lambda tile: torch.full_like(tile, next(seen)), cell_in=1, cell_out=1)
    assert row.flatten().tolist() == [0.0] * 12 + [0.0, 0.25, 0.5, 0.75] + [1.0] * 12
    faded = cross_fade(torch.zeros(2, 4, 3), torch.ones(2, 4, 3), dim=1)
    assert faded[0, :, 0].tolist() == [0.0, 0.25, 0.5, 0.75]


def test_positions_are_centred_and_registers_do_not_rotate() -> None:
    cos, sin = clip_turns((1, 2, 3), 5, torch.device("cpu"))
    assert cos.shape == (11, 1, 24)
    assert torch.equal(cos[6:], torch.ones(5, 1, 24)) and torch.equal(sin[6:], torch.zeros(5, 1, 24))
    torch.testing.assert_close(sin[0, 0, 8:], -sin[5, 0, 8:])  # opposite corners
    assert torch.equal(sin[:, 0, :8], torch.zeros(11, 8))  # one frame is in the centre of time


def test_an_image_of_less_than_two_cells_is_refused(vae: VideoVae) -> None:
    with pytest.raises(ValueError, match="too small for this VAE; got 48x16 pixels, expected at least 32x32"):
        vae.encode(torch.rand(1, 16, 48, 3))


def test_tiled_nodes_take_the_tiles_of_the_network(vae: VideoVae) -> None:
    z = latents(2, 18, 2)
    assert torch.equal(vae.decode_tiled(z, tile_x=4, tile_y=4, overlap=1, tile_t=2, overlap_t=1), vae.decode(z))
    frames = torch.rand(5, 288, 32, 3)
    assert torch.equal(
        vae.encode_tiled(frames, tile_x=64, tile_y=64, overlap=16, tile_t=8, overlap_t=4), vae.encode(frames)
    )


def test_frames_are_streamed_as_they_are_decoded(vae: VideoVae) -> None:
    z = latents(9, 2, 3)
    whole = vae.decode(z)[0]
    for stream in (vae.frame_stream(z), vae.tiled_frame_stream(z, 4, 4, 1, 2, 1)):
        assert stream is not None and stream.shape == (30, 32, 48, 3)
        assert torch.equal(torch.cat([*stream.pieces()]), whole)
    assert vae.frame_stream(latents(1, 2, 3)) is None


def test_the_result_is_the_same_after_memory_ran_out(network: MiniMaxH3VideoVae, vae: VideoVae) -> None:
    memory = ModelMemory(EngineSettings(cpu=True))
    saving = vae_of(memory.keep("vae", network, role="vae"))
    memory.pool.memory_savings = MemorySavings(tiles=True)
    z, image = latents(7, 18, 2), torch.rand(1, 32, 32, 3)
    assert torch.equal(saving.decode(z), vae.decode(z)) and torch.equal(saving.encode(image), vae.encode(image))
    assert isinstance(saving, VideoVae)
    stream = saving.frame_stream(z)
    assert stream is not None and torch.equal(stream.whole(), vae.decode(z)[0])


def test_working_memory_does_not_grow_with_the_frames(vae: VideoVae) -> None:
    def decoding(frames: int, dtype: torch.dtype = torch.float32) -> float:
        return vae.memory_used_decode((1, 24, frames, 48, 84), dtype)

    def encoding(frames: int) -> float:
        return vae.memory_used_encode((1, 3, frames, 768, 1344), torch.float32)

    assert decoding(37) == decoding(12) > decoding(2) > decoding(1)
    assert encoding(124) == encoding(17) > 0
    assert decoding(37, torch.float16) == decoding(37) / 2


def test_the_numbers_that_nodes_ask_for(vae: VideoVae) -> None:
    assert vae.temporal_compression_decode() == 3 and vae.downscale_index_formula == (4, 16, 16)
    assert vae.num_frames(37) == 124 and vae.num_latent_frames(124) == 37
    assert vae.latent_channels == 24 and vae.spacial_compression_encode() == 16
