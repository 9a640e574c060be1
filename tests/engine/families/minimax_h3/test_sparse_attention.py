"""Sparse attention of MiniMax H3: cubes of the video, what is before it, and the node that sets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.sparse_schedule import SparseSchedule
from darkroom.engine.families.minimax_h3.layout import Sequencing, Source, Stretch, Time
from darkroom.engine.families.minimax_h3.nodes.sparse_attention import SparseBlock, block_sparse_attention
from darkroom.engine.families.minimax_h3.sparse_attention import (
    Method,
    Sinks,
    SparseBlocks,
    cube_tiles,
    ordered_tiles,
)
from darkroom.engine.families.minimax_h3.transformer import MiniMaxH3Transformer
from tests.engine.layers.small_transformers import small_transformer
from tests.engine.nodes.small_store import node_context, small_store

TEXT, AUDIO, VIDEO = Source.TEXT, Source.AUDIO, Source.VIDEO


def sequencing(grid: tuple[int, int, int]) -> Sequencing:
    """Return a text of 70 tokens in three parts, a guide of 6, audio of 130, and a video."""
    frames, rows, columns = grid
    stretches = (
        Stretch(TEXT, Time.VIDEO, TEXT, 30),
        Stretch(TEXT, Time.VIDEO, VIDEO, 10),
        Stretch(TEXT, Time.VIDEO, TEXT, 30),
        Stretch(VIDEO, Time.GIVEN_VIDEO, VIDEO, 6),
        Stretch(AUDIO, Time.AUDIO, AUDIO, 130),
        Stretch(VIDEO, Time.VIDEO, VIDEO, frames * rows * columns),
    )
    return Sequencing(stretches, (frames, 2 * rows, 2 * columns - 1))


def test_parts_before_the_video_have_tiles_of_their_own_and_the_video_cubes() -> None:
    tiles = cube_tiles(sequencing((5, 4, 6)))
    lengths = tiles.is_token.sum(dim=1).tolist()
    assert lengths[:6] == [64, 6, 6, 64, 64, 2]  # of text, of the guide, of audio
    assert (tiles.sinks, tiles.full) == ((0, 6), (0, 6))
    assert lengths[6:] == [64, 32, 16, 8]  # four frames of four columns, of two, the last frame's
    cube = tiles.tokens[6] - 206
    assert cube[:5].tolist() == [0, 1, 2, 3, 6]  # along a row, then the next of six columns
    assert cube[16] == 24  # the next frame
    assert (tiles.tokens[7][:3] - 206).tolist() == [4, 5, 10]
    assert sorted(tiles.slots.tolist()) == tiles.is_token.flatten().nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("sinks", "keys", "rows"),
    [
        (Sinks.KEYS, (0, 4), (0, 0)),
        (Sinks.KEYS_AND_ROWS, (0, 4), (1, 4)),  # 76 tokens before audio, 206 before the video
        (Sinks.NONE, (0, 0), (0, 0)),
    ],
)
def test_tokens_in_order_count_before_the_video(sinks: Sinks, keys: tuple[int, int], rows: tuple[int, int]) -> None:
    tiles = ordered_tiles(sequencing((5, 4, 6)), sinks)
    assert (tiles.sinks, tiles.full, tiles.keeps_means) == (keys, rows, True)
    assert torch.equal(tiles.slots, torch.arange(326))


@pytest.fixture
def network() -> tuple[MiniMaxH3Transformer, dict[str, Any]]:
    network, inputs = small_transformer("minimax_h3 with gates")
    assert isinstance(network, MiniMaxH3Transformer)
    return network, inputs


def made(network: MiniMaxH3Transformer, inputs: dict[str, Any], method: Method, **window: Any) -> list[torch.Tensor]:
    schedule = SparseSchedule(**{"highest": 1.0, "lowest": 0.0, "min_tokens": 0, **window})
    blocks = SparseBlocks(schedule, method, 0.1, Sinks.KEYS_AND_ROWS)
    replaced = {("double_block", index): SparseBlock(blocks, index) for index in range(network.config.num_layers)}
    options = {"patches_replace": {"dit": replaced}, "sigmas": torch.tensor([0.5])}
    out: list[torch.Tensor] = network(**inputs, transformer_options=options)
    return out


@torch.inference_mode()
def test_few_tiles_that_are_all_near_change_nothing(network: tuple[MiniMaxH3Transformer, dict[str, Any]]) -> None:
    transformer, inputs = network
    plain = transformer(**inputs)
    for a, b in zip(plain, made(transformer, inputs, Method.IN_ORDER), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    for name, weight in transformer.named_parameters():
        if name.endswith("to_gate_compress.weight"):
            weight.zero_()
    for a, b in zip(plain, made(transformer, inputs, Method.CUBES), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@torch.inference_mode()
def test_gates_count_within_the_schedule_alone(network: tuple[MiniMaxH3Transformer, dict[str, Any]]) -> None:
    transformer, inputs = network
    plain, gated = transformer(**inputs), made(transformer, inputs, Method.CUBES)
    assert all(not torch.allclose(a, b, atol=1e-3) for a, b in zip(plain, gated, strict=True))
    for window in ({"highest": 0.4}, {"lowest": 0.6}, {"min_tokens": 10_000}, {"dense_blocks": (range(9),)}):
        late = made(transformer, inputs, Method.CUBES, **window)
        assert all(torch.equal(a, b) for a, b in zip(plain, late, strict=True)), window


@torch.inference_mode()
def test_a_function_that_another_node_has_put_there_is_called(
    network: tuple[MiniMaxH3Transformer, dict[str, Any]],
) -> None:
    transformer, inputs = network
    called: list[bool] = []

    def before(args: Any, extra: Any) -> Any:
        called.append("attention" in args)
        return extra["original_block"](args)

    blocks = SparseBlocks(SparseSchedule(1.0, 0.0, 0), Method.CUBES, 0.1, Sinks.NONE)
    options = {"patches_replace": {"dit": {("double_block", 1): SparseBlock(blocks, 1, before)}}}
    transformer(**inputs, transformer_options=options)
    assert called == [True]


def test_the_node_sets_functions_in_all_blocks_or_attention_of_other_models(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    context = node_context(store)
    video, _, _ = store.random_checkpoint("minimax_h3", "small")
    other, _, _ = store.random_checkpoint("sd15", "small")
    cubes, order = ({"selection": name, "keep_percent": 10.0} for name in ("vsa", "sla"))

    def options_of(model: Any, selection: Any) -> Any:
        return block_sparse_attention(context, model=model, selection=selection).model_options["transformer_options"]

    replaced = options_of(video, cubes)["patches_replace"]["dit"]
    assert list(replaced) == [("double_block", 0), ("double_block", 1)]
    assert "optimized_attention_override" not in options_of(video, order)
    assert "optimized_attention_override" in options_of(other, order)
    assert "patches_replace" not in options_of(video, {"selection": "sol-attn", "tau": 1.3})
    assert "patches_replace" not in video.model_options["transformer_options"]
    with pytest.raises(ValueError, match="vsa needs the cubes of a video of MiniMax H3"):
        options_of(other, cubes)
