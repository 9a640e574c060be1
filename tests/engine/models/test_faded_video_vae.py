"""The VAE of videos in faded tiles: streams, stretches, and tiles of one are those of the whole."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.seedvr2.vae import SeedVr2Vae, SeedVr2VaeConfig
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.memory.relief import MemorySavings
from darkroom.engine.models.faded_video_vae import FadedVideoVae
from darkroom.engine.models.vae_of import vae_of
from darkroom.engine.settings import EngineSettings

CONFIG = SeedVr2VaeConfig(level_channels=(32, 32, 32, 32), blocks_per_level=1)


def made_of(network: torch.nn.Module) -> FadedVideoVae:
    made = vae_of(ModelMemory(EngineSettings(cpu=True)).keep("vae", network, role="vae"))
    assert isinstance(made, FadedVideoVae)
    return made


@pytest.fixture(scope="module")
def vae() -> FadedVideoVae:
    torch.manual_seed(0)
    return made_of(SeedVr2Vae(CONFIG).requires_grad_(False))


class ForgetfulVae(SeedVr2Vae):
    """The same network, of which a stretch is said to be one latent frame."""

    remembered_values_per_pixel = 1


def latents(frames: int, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 16, frames, 5, 6, generator=torch.Generator().manual_seed(frames))


def frames(number: int, height: int = 40, width: int = 48) -> torch.Tensor:
    return torch.rand(number, height, width, 3, generator=torch.Generator().manual_seed(number))


def test_tiles_that_hold_everything_are_no_tiles(vae: FadedVideoVae) -> None:
    torch.testing.assert_close(vae.decode_tiled(latents(3), tile_x=8, tile_y=8, overlap=2), vae.decode(latents(3)))
    torch.testing.assert_close(vae.encode_tiled(frames(5), tile_x=64, tile_y=64, overlap=16), vae.encode(frames(5)))


@pytest.mark.parametrize("number", [1, 4])
def test_streamed_frames_of_tiles_are_those_of_tiled_decoding(vae: FadedVideoVae, number: int) -> None:
    decoded = vae.decode_tiled(latents(number, 2), tile_x=4, tile_y=4, overlap=1)
    assert decoded.shape == (2, 4 * number - 3, 40, 48, 3)
    stream = vae.tiled_frame_stream(latents(number, 2), tile_x=4, tile_y=4, overlap=1)
    assert (stream is None) == (number == 1)  # of an image
    if stream is not None:
        assert torch.equal(stream.whole(), decoded.flatten(0, 1))


def test_a_long_video_is_decoded_in_stretches_of_the_same_bits(vae: FadedVideoVae) -> None:
    network = ForgetfulVae(CONFIG).requires_grad_(False)
    network.load_state_dict(vae.first_stage_model.state_dict())
    by_stretches = made_of(network)
    sizes = {"tile_x": 4, "tile_y": 4, "overlap": 1}
    stream = by_stretches.tiled_frame_stream(latents(4), **sizes)
    assert stream is not None
    assert [len(piece) for piece in stream.pieces()] == [1, 4, 4, 4]
    whole = vae.tiled_frame_stream(latents(4), **sizes)
    assert whole is not None and [len(piece) for piece in whole.pieces()] == [13]
    assert torch.equal(stream.whole(), whole.whole())


def test_it_decodes_in_tiles_once_memory_ran_out() -> None:
    memory = ModelMemory(EngineSettings(cpu=True))
    made = vae_of(memory.keep("vae", SeedVr2Vae(CONFIG).requires_grad_(False), role="vae"))
    plain = made.encode(frames(5))
    memory.pool.memory_savings = MemorySavings(tiles=True)
    assert isinstance(made, FadedVideoVae)
    stream = made.frame_stream(latents(3))
    assert stream is not None and torch.equal(stream.whole(), made.decode(latents(3)).flatten(0, 1))
    assert made.encode(frames(5)).shape == plain.shape


def test_sides_that_are_no_whole_cells_are_encoded_as_they_are(vae: FadedVideoVae) -> None:
    assert vae.encode(frames(1, 41, 47)).shape == vae.encode(frames(1, 40, 40)).shape
    assert not torch.equal(vae.encode(frames(1, 41, 47)), vae.encode(frames(1, 41, 47)[:, :40, :40]))
