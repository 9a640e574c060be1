"""HiDream-O1's network: its shapes, which tokens attend to which, and what stands in a text's positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.hidream_o1.transformer import HiDreamO1Config, HiDreamO1Transformer, hidream_o1_config
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.qwen3_vl_vision import Qwen3VlVisionConfig

FAMILY = registry.family_named("hidream_o1")
TINY = HiDreamO1Config(
    vision=Qwen3VlVisionConfig(
        width=64, inner_width=32, num_blocks=1, out_width=256, table_side=4, is_tapped=False
    ),
    hidden_size=256, intermediate_size=64, num_layers=2, key_heads=1, vocabulary_size=16,
)  # fmt: skip


@pytest.mark.parametrize("size", ["full", "small"])
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "model."])
def test_shapes_tell_the_network(size: str, prefix: str) -> None:
    with unfilled():
        network = HiDreamO1Transformer(FAMILY.sizes[size])
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    assert hidream_o1_config(shapes) == FAMILY.sizes[size]
    index = TensorIndex({prefix + name: shape for name, shape in shapes.items()}, {})
    assert registry.recognise(index).family is FAMILY


@pytest.fixture
def network() -> HiDreamO1Transformer:
    torch.manual_seed(0)
    made = HiDreamO1Transformer(TINY).requires_grad_(False).eval()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, 0, 0.1)
    return made


def inputs(tokens: list[int], num_patches: int) -> dict[str, Any]:
    num_tokens = len(tokens) + num_patches
    angles = torch.randn(1, num_tokens, 64, generator=torch.Generator().manual_seed(1))
    return {"input_ids": torch.tensor([tokens]), "cosines": angles.cos(), "sines": angles.sin()}


@torch.no_grad()
def test_an_image_is_predicted_from_its_noise(network: HiDreamO1Transformer) -> None:
    x, times = torch.randn(1, 3, 64, 96), torch.tensor([500.0])
    velocity = network(x, times, **inputs([1, 2, 3, 4], 6))
    assert velocity.shape == x.shape and velocity.dtype == torch.float32
    image = x - velocity * 0.5
    further = x - network(x, torch.tensor([100.0]), **inputs([1, 2, 3, 4], 6)) * 0.1
    assert not torch.allclose(image, further, atol=1e-3)


@torch.no_grad()
def test_the_last_token_of_a_text_is_the_time(network: HiDreamO1Transformer) -> None:
    x, times = torch.randn(1, 3, 32, 64), torch.tensor([500.0])
    one, other = (network(x, times, **inputs([1, 2, 3, last], 2)) for last in (4, 5))
    assert torch.equal(one, other)
    assert not torch.allclose(one, network(x, times, **inputs([1, 2, 9, 4], 2)), atol=1e-3)


@torch.no_grad()
def test_references_stand_in_the_text_and_behind_the_image(network: HiDreamO1Transformer) -> None:
    x, times = torch.randn(1, 3, 32, 64), torch.tensor([500.0])
    read = network.read_images([torch.rand(64, 64, 3)], torch.float32)
    assert read.shape == (1, 4, 256)
    given = {**inputs([1, 2, 7, 7, 7, 7, 3, 4], 3), "ref_spans": [(2, 4)]}
    patches = torch.randn(1, 1, 3072)
    drawn = network(x, times, **given, ref_tokens=read, ref_patches=patches)
    assert drawn.shape == x.shape
    assert not torch.allclose(drawn, network(x, times, **given, ref_tokens=read * 2, ref_patches=patches), atol=1e-4)
    assert not torch.allclose(drawn, network(x, times, **given, ref_tokens=read, ref_patches=-patches), atol=1e-4)
    other_ids = given | {"input_ids": torch.tensor([[1, 2, 8, 9, 8, 9, 3, 4]])}  # those of the image are not looked up
    assert torch.equal(drawn, network(x, times, **other_ids, ref_tokens=read, ref_patches=patches))


@torch.no_grad()
def test_tokens_of_a_text_do_not_attend_to_the_image(network: HiDreamO1Transformer) -> None:
    layer = network.language_model.layers[0]
    stream = torch.randn(1, 6, 256)
    changed = stream.clone()
    changed[:, 4:] += 1.0
    angles = torch.randn(1, 1, 6, 64)
    before, after = (layer(item, 3, (angles.cos(), angles.sin())) for item in (stream, changed))
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3], atol=1e-3)  # the time attends to all


@torch.no_grad()
def test_custom_nodes_replace_layers(network: HiDreamO1Transformer) -> None:
    x, times = torch.randn(1, 3, 32, 64), torch.tensor([500.0])
    given = inputs([1, 2, 3, 4], 2)
    plain = network(x, times, **given)

    def call(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, torch.Tensor]:
        return extra["original_block"](args)  # type: ignore[no-any-return]

    def skip(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, torch.Tensor]:
        return args

    through = network(x, times, None, None, None, {"patches_replace": {"dit": {("double_block", 1): call}}}, **given)
    assert torch.equal(plain, through)
    skipped = network(x, times, None, None, None, {"patches_replace": {"dit": {("double_block", 1): skip}}}, **given)
    assert not torch.allclose(plain, skipped, atol=1e-3)
