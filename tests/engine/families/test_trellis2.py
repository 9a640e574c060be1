"""TRELLIS 2: files, cells of batches, convolutions over them, surfaces, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from darkroom.engine.families import registry
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.trellis2.cells import MOST_CELLS, CellLists, cell_lists, joined
from darkroom.engine.families.trellis2.dual_grid import dual_grid_mesh
from darkroom.engine.families.trellis2.sparse_layers import (
    ConvNextBlock,
    SparseConv3d,
    SplittingBlock,
    neighbors_of,
)
from darkroom.engine.families.trellis2.transformer import Stage, Trellis2Transformer, trellis2_config, turns_of
from darkroom.engine.families.trellis2.vae import SparseDecoder, SparseDecoderConfig
from darkroom.engine.formats.unfilled import unfilled

FAMILY = registry.family_named("trellis2")
FULL = FAMILY.scales["full"]


def shapes_of(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def random(module: torch.nn.Module) -> Any:
    generator = torch.Generator().manual_seed(0)
    for weight in module.parameters():
        weight.data.normal_(0.0, 0.3, generator=generator)
    return module.requires_grad_(False)


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "diffusion_model."])
@pytest.mark.parametrize("stages", [tuple(Stage), (Stage.TEXTURE,), (Stage.STRUCTURE, Stage.SHAPE_512, Stage.SHAPE)])
@pytest.mark.parametrize("projected", [False, True], ids=["trellis2", "pixal3d"])
def test_full_networks_are_known_by_their_tensors(prefix: str, stages: tuple[Stage, ...], projected: bool) -> None:
    dims = tuple(1024 if stage is Stage.STRUCTURE else 2048 for stage in stages)
    config = replace(FULL.denoiser, stages=stages, projected_dims=dims if projected else ())
    with unfilled():
        shapes = shapes_of(Trellis2Transformer(config))
    found = registry.recognise(TensorIndex({prefix + name: shape for name, shape in shapes.items()}))
    assert found.family is FAMILY
    assert trellis2_config(shapes) == config


@pytest.mark.parametrize("network", [FAMILY.vae, *FAMILY.further_vaes], ids=["shape", "texture"])
def test_full_decoders_are_known_by_their_tensors(network: Any) -> None:
    config = network.sizes["full"]
    with unfilled():
        shapes = shapes_of(network.build(config))
    family, _ = registry.recognise_vae(shapes, {})
    assert (family.name, family.vae.build) == ("trellis2", network.build)
    assert network.configure(shapes) == config


def test_odd_numbers_of_heads_and_of_channels_are_refused() -> None:
    with unfilled():
        shapes = shapes_of(Trellis2Transformer(FAMILY.scales["small"].denoiser))
        decoder = shapes_of(FAMILY.vae.build(FAMILY.scales["small"].vae))
    gamma = "shape2txt.blocks.0.self_attn.q_rms_norm.gamma"
    with pytest.raises(ValueError, match="hidden size: got 96 for 7 heads"):
        trellis2_config({**shapes, gamma: (7, 8)})
    with pytest.raises(ValueError, match="channels of the levels: got .*, expected multiples of 8"):
        FAMILY.vae.configure({**decoder, "shape_dec.blocks.0.4.conv2.weight": (13, 3, 3, 3, 13)})
    with pytest.raises(LookupError):
        trellis2_config({})


# --- cells of batches ------------------------------------------------------------------------------------------------


def test_items_of_other_lengths_are_padded_and_split_again() -> None:
    cells = joined([torch.ones(2, 3), torch.zeros(3, 3)], 32)
    assert cells.counts == (2, 3) and cells.empty_latent().shape == (2, 32, 3, 1)
    rows = torch.arange(5.0)[:, None].expand(5, 32)
    padded = cells.padded(rows)
    assert padded[..., 0].tolist() == [[0, 1, 0], [2, 3, 4]]
    first, second = cells.split(padded.transpose(1, 2)[..., None])
    assert torch.equal(torch.cat([first, second]), rows)
    occupied = cells.occupied(torch.device("cpu"))
    assert occupied is not None and occupied.tolist() == [[True, True, False], [True, True, True]]
    assert joined([torch.ones(2, 3)]).occupied(torch.device("cpu")) is None


@pytest.mark.parametrize(
    ("coords", "said"),
    [
        (torch.zeros(3, 3), r"got \[3, 3\], expected \[cells, 4\]"),
        (torch.zeros(0, 4), "the structure is empty; got 0"),
        (torch.tensor([[0, 0, 0, 0], [2, 0, 0, 0]]), r"got \[1, 0, 1\] occupied voxels by item"),
        (torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0]]), "out of order"),
        (torch.zeros(1, 4).expand(MOST_CELLS + 1, 4), "too many cells to attend to; got 262145"),
    ],
)
def test_cells_of_no_latent_are_refused(coords: torch.Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cell_lists(coords.int())


def test_positions_turn_a_third_of_the_pairs_by_each_axis() -> None:
    turns = turns_of(torch.tensor([[[0, 0, 0], [5, 0, 0], [0, 0, 5]]]), 16)  # 8 pairs, two for each axis
    assert turns.shape == (1, 3, 2, 8)
    cos = turns[0, :, 0]
    assert (cos[0] == 1).all() and (cos[:, 6:] == 1).all()
    assert (cos[1, 2:] == 1).all() and (cos[2, :4] == 1).all()
    torch.testing.assert_close(cos[1, :2], torch.tensor([5.0, 5.0 / 100.0]).cos())
    torch.testing.assert_close(cos[1, :2], cos[2, 4:6])


def test_padding_does_not_change_the_prediction_of_cells() -> None:
    config = replace(FAMILY.scales["small"].denoiser, stages=(Stage.SHAPE,))
    network = random(Trellis2Transformer(config))
    x, context, times = torch.randn(1, 32, 5, 1), torch.randn(1, 3, 64), torch.tensor([500.0])
    turns = turns_of(torch.randint(0, 9, (1, 5, 3)), config.head_dim)
    plain = network(x, times, context, stage="img2shape", turns=turns)
    occupied = torch.tensor([[True] * 5 + [False] * 2])
    padded = functional.pad(x, (0, 0, 0, 2), value=3.0)
    found = network(
        padded, times, context, stage="img2shape", turns=functional.pad(turns, (0, 0, 0, 0, 0, 2)), occupied=occupied
    )
    torch.testing.assert_close(found[:, :, :5], plain)
    assert not found[:, :, 5:].any()


# --- layers on cells -------------------------------------------------------------------------------------------------


def dense_grid(cells: torch.Tensor, rows: torch.Tensor, side: int) -> torch.Tensor:
    grid = torch.zeros(1, rows.shape[1], side, side, side)
    grid[0, :, cells[:, 0], cells[:, 1], cells[:, 2]] = rows.T
    return grid


def test_a_sparse_convolution_is_a_dense_one_at_its_cells() -> None:
    cells = (torch.rand(6, 6, 6, generator=torch.Generator().manual_seed(1)) > 0.6).nonzero()
    conv, rows = random(SparseConv3d(3, 5)), torch.randn(len(cells), 3)
    dense = functional.conv3d(
        dense_grid(cells, rows, 6), conv.weight.permute(0, 4, 1, 2, 3).contiguous(), conv.bias, padding=1
    )
    expected = dense[0, :, cells[:, 0], cells[:, 1], cells[:, 2]].T
    torch.testing.assert_close(conv(rows, neighbors_of(cells)), expected)


def test_a_convolution_is_the_same_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, conv = torch.cartesian_prod(*[torch.arange(4)] * 3), random(SparseConv3d(3, 4))
    rows, neighbors = torch.randn(64, 3), neighbors_of(cells)
    whole = conv(rows, neighbors)
    monkeypatch.setattr("darkroom.engine.families.trellis2.sparse_layers.CHUNK_BYTES", 27 * 3 * 4 * 5)
    torch.testing.assert_close(conv(rows, neighbors), whole)


def test_cells_split_into_the_given_children() -> None:
    block = SplittingBlock(8, 4, predicts=False)
    given = torch.zeros(2, 8, dtype=torch.bool)
    given[0, 1], given[1, 0], given[1, 6] = True, True, True
    split = block.split(torch.zeros(2, 8), torch.tensor([[1, 2, 3], [4, 5, 6]]), given)
    assert split.cells.tolist() == [[3, 4, 6], [8, 10, 12], [8, 11, 13]]
    assert split.rows.tolist() == [1, 8, 14]
    with pytest.raises(ValueError, match="shape_subdivides: they are those of another shape; got 2 cells, expected 1"):
        block.split(torch.zeros(1, 8), torch.zeros(1, 3), given)


def test_a_shape_of_too_many_or_no_voxels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.engine.families.trellis2.sparse_layers.MOST_CELLS", 7)
    block = SplittingBlock(8, 4, predicts=False)
    with pytest.raises(ValueError, match="as many voxels is not decoded; got 8, expected 1 to 7"):
        block.split(torch.zeros(1, 8), torch.zeros(1, 3), torch.ones(1, 8, dtype=torch.bool))
    with pytest.raises(ValueError, match="got 0, expected 1 to 7"):
        block.split(torch.zeros(1, 8), torch.zeros(1, 3), torch.zeros(1, 8, dtype=torch.bool))


def test_a_block_adds_its_result_to_what_it_is_given() -> None:
    block, rows = random(ConvNextBlock(4)), torch.randn(3, 4)
    for weight in block.mlp[2].parameters():
        weight.zero_()
    assert torch.equal(block(rows, neighbors_of(torch.eye(3).long())), rows)


def test_the_finest_cells_are_those_of_the_whole_decoder() -> None:
    config = SparseDecoderConfig(channels=(16, 8, 8), num_blocks=(1, 1, 0), latent_channels=4)
    decoder, cells = random(SparseDecoder(config, predicts=True)), torch.cartesian_prod(*[torch.arange(3)] * 3)
    latent, told = torch.randn(len(cells), 4), []
    surface, finest, occupied = decoder(latent, cells, on_level=lambda done, total: told.append((done, total)))
    assert surface.shape == (len(finest), 7) and told == [(1, 2), (2, 2)]
    assert torch.equal(decoder.finest_cells(latent, cells), finest)
    again = random(SparseDecoder(replace(config, out_channels=6), predicts=False))
    colors, places, _ = again(latent, cells, occupied)
    assert colors.shape == (len(finest), 6) and torch.equal(places, finest)


# --- surfaces --------------------------------------------------------------------------------------------------------


def test_four_cells_around_a_crossed_edge_make_two_triangles() -> None:
    cells = torch.tensor([[1, 1, 1], [1, 1, 2], [1, 2, 2], [1, 2, 1]])
    surface = torch.zeros(4, 7)
    surface[:, 3:6] = -1.0
    surface[0, 3] = 1.0  # along x
    surface[[0, 2], 6] = 2.0
    corners, triangles = dual_grid_mesh(cells, surface, 4)
    torch.testing.assert_close(corners, (cells + 0.5) / 4 - 0.5)  # sigmoids of 0 are the middles of cells
    assert triangles.tolist() == [[0, 1, 2], [0, 2, 3]] and triangles.dtype == torch.int32
    surface[[1, 3], 6] = 9.0
    assert dual_grid_mesh(cells, surface, 4)[1].tolist() == [[0, 1, 3], [3, 1, 2]]
    assert not len(dual_grid_mesh(cells[:3], surface[:3], 4)[1])


def test_a_latent_of_cells_knows_its_longest_item() -> None:
    cells = CellLists(torch.zeros(3, 4, dtype=torch.int32), (1, 2))
    assert cells.longest == 2 and not cells.is_even
