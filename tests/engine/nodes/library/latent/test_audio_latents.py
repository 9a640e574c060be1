"""Nodes that decode audio, whole and in stretches. `B` batch, `C` channels, `L` latent cells, `S` samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.vae import Vae
from darkroom.engine.models.vae_of import vae_of
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.latent.audio_latents import vae_decode_audio, vae_decode_audio_tiled
from darkroom.engine.settings import EngineSettings
from tests.engine.nodes.small_store import node_context, small_store

SAMPLES_PER_CELL, CHANNELS = 16, 4
TILE, OVERLAP = 32, 8


class AudioNetwork(nn.Module):
    """A decoder of which a sample depends on `reach` cells at both sides of its own."""

    is_of_audio = True
    latent_dim = 1
    sample_rate_hz = 8000
    latent_channels = CHANNELS
    audio_channels = 2
    downscale_ratio = SAMPLES_PER_CELL

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.mix = nn.Conv1d(CHANNELS, 2, 2 * reach + 1, padding=reach)
        self.lengths: list[int] = []

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        return shape[-1]

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        """Decode a latent [B, C, L] to audio [B, 2, S]."""
        self.lengths.append(latent.shape[-1])
        audio: torch.Tensor = self.mix(latent).repeat_interleave(SAMPLES_PER_CELL, dim=-1) * 0.1
        return audio


def audio_vae(network: AudioNetwork) -> Vae:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network.mix.reset_parameters()
    return vae_of(ModelMemory(EngineSettings(cpu=True)).keep("vae", network, role="vae"))


@pytest.fixture
def context(tmp_path: Path) -> NodeContext:
    return node_context(small_store(tmp_path))


def latent(num_cells: int) -> dict[str, torch.Tensor]:
    return {"samples": torch.randn(2, CHANNELS, num_cells, generator=torch.Generator().manual_seed(1))}


def test_stretches_of_a_network_without_reach_are_the_whole(context: NodeContext) -> None:
    vae = audio_vae(AudioNetwork(reach=0))
    whole = vae_decode_audio(context, samples=latent(80), vae=vae)
    tiled = vae_decode_audio_tiled(context, samples=latent(80), vae=vae, tile_size=TILE, overlap=OVERLAP)
    assert tiled["sample_rate"] == whole["sample_rate"] == 8000
    assert torch.allclose(tiled["waveform"], whole["waveform"], atol=1e-6)


def test_stretches_differ_from_the_whole_only_where_two_are_blended_and_little(context: NodeContext) -> None:
    network = AudioNetwork(reach=1)
    vae = audio_vae(network)
    whole = vae_decode_audio(context, samples=latent(80), vae=vae)["waveform"]
    network.lengths.clear()
    tiled = vae_decode_audio_tiled(context, samples=latent(80), vae=vae, tile_size=TILE, overlap=OVERLAP)["waveform"]
    assert max(network.lengths) == TILE
    difference = (tiled - whole).abs().amax(dim=(0, 1)).reshape(80, SAMPLES_PER_CELL).amax(1)
    first_end, second_start = TILE, TILE - OVERLAP
    assert difference[:second_start].max() < 1e-6
    assert difference[first_end : first_end + 8].max() < 1e-6
    assert 0 < difference[second_start:first_end].max() < whole.abs().max() / OVERLAP


def test_wide_overlap_is_half_a_stretch_at_most(context: NodeContext) -> None:
    vae = audio_vae(AudioNetwork(reach=0))
    whole = vae_decode_audio(context, samples=latent(80), vae=vae)
    tiled = vae_decode_audio_tiled(context, samples=latent(80), vae=vae, tile_size=TILE, overlap=1024)
    assert torch.allclose(tiled["waveform"], whole["waveform"], atol=1e-6)


def test_short_latent_is_one_stretch(context: NodeContext) -> None:
    network = AudioNetwork(reach=1)
    vae = audio_vae(network)
    whole = vae_decode_audio(context, samples=latent(20), vae=vae)
    tiled = vae_decode_audio_tiled(context, samples=latent(20), vae=vae, tile_size=TILE, overlap=OVERLAP)
    assert set(network.lengths) == {20}
    assert torch.allclose(tiled["waveform"], whole["waveform"], atol=1e-6)
