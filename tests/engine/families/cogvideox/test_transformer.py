"""CogVideoX's transformer: positions of text and video, odd sizes, tables of positions, and `ofs`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.families.cogvideox.transformer import (
    MAX_TEXT,
    STRETCH,
    CogVideoXConfig,
    CogVideoXTransformer,
    cogvideox_config,
    rotations_of,
)

TINY = CogVideoXConfig(
    hidden_size=128, num_layers=1, intermediate_size=64, time_embed_dim=32, text_dim=24, in_channels=4, out_channels=4
)
CPU = torch.device("cpu")


def network_of(config: CogVideoXConfig) -> CogVideoXTransformer:
    torch.manual_seed(0)
    network = CogVideoXTransformer(config).requires_grad_(False).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, 0, 0.05)
    return network


def inputs(frames: int = 4, height: int = 6, width: int = 4, channels: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(2, channels, frames, height, width, generator=generator),
        "timesteps": torch.tensor([999.0, 10.0]),
        "context": torch.randn(2, 5, 24, generator=generator),
    }


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        replace(TINY, in_channels=12),
        replace(TINY, patch_frames=1),
        replace(TINY, patch_frames=1, num_positions=MAX_TEXT + 24),
        replace(TINY, offset_dim=32),
    ],
)
def test_its_configuration_is_read_from_its_tensors(config: CogVideoXConfig) -> None:
    shapes = {name: tuple(item.shape) for name, item in network_of(config).state_dict().items()}
    assert cogvideox_config(shapes) == config


def test_the_text_is_not_turned_and_the_video_by_frame_row_and_column() -> None:
    cosines, sines = rotations_of((2, 1, 3), 2, 1.0, CPU)
    assert cosines.shape == sines.shape == (1, 2 + 6, 1, 32)
    assert torch.equal(cosines[0, :2], torch.ones(2, 1, 32))
    assert torch.equal(sines[0, :3], torch.zeros(3, 1, 32))  # the first cell of the first frame, too
    slowest_first = torch.atan2(sines, cosines)[0, :, 0]
    assert slowest_first[2 + 1, [0, 8, 20]].tolist() == pytest.approx([0.0, 0.0, 1.0])  # one column to the right
    assert slowest_first[2 + 3, [0, 8, 20]].tolist() == pytest.approx([1.0, 0.0, 0.0])  # one frame later


def test_rows_and_columns_of_the_first_version_are_stretched() -> None:
    plain, stretched = (torch.atan2(*reversed(rotations_of((2, 2, 2), 0, by, CPU)))[0, :, 0] for by in (1.0, STRETCH))
    assert torch.allclose(stretched[:, :8], plain[:, :8])
    assert torch.allclose(stretched[2, 8:20], plain[2, 8:20] * STRETCH)


@pytest.mark.parametrize("config", [TINY, replace(TINY, patch_frames=1)])
@pytest.mark.parametrize("size", [(3, 5, 7), (1, 2, 2), (4, 6, 4)])
def test_a_prediction_has_the_size_of_its_latent(config: CogVideoXConfig, size: tuple[int, int, int]) -> None:
    given = inputs(*size)
    assert network_of(config)(**given).shape == given["x"].shape


def test_an_odd_video_is_filled_up_from_its_other_end() -> None:
    network, given = network_of(TINY), inputs(3, 4, 4)
    filled = {**given, "x": torch.cat([given["x"], given["x"][:, :, :1]], dim=2)}
    assert torch.equal(network(**given), network(**filled)[:, :, :3])


def test_channels_beside_the_latent_are_read_and_not_predicted() -> None:
    network, given = network_of(replace(TINY, in_channels=12)), inputs(channels=12)
    predicted = network(**given)
    assert predicted.shape == (2, 4, 4, 6, 4)
    given["x"][:, 8:] += 1
    assert not torch.allclose(network(**given), predicted, atol=1e-4)


def test_a_video_beyond_the_table_of_positions_is_refused() -> None:
    network = network_of(replace(TINY, patch_frames=1, num_positions=MAX_TEXT + 24))
    assert network(**inputs(4)).shape == (2, 4, 4, 6, 4)
    with pytest.raises(ValueError, match="got 30 tokens, expected at most 24"):
        network(**inputs(5))


def test_a_network_with_ofs_is_conditioned_on_it() -> None:
    network, given = network_of(replace(TINY, offset_dim=32)), inputs()
    first, second = (network(**given, ofs=torch.full((2,), number)) for number in (2.0, 5.0))
    assert not torch.allclose(first, second, atol=1e-5)
    assert torch.equal(network_of(TINY)(**given, ofs=torch.full((2,), 2.0)), network_of(TINY)(**given))
