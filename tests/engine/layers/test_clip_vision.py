"""CLIP's image encoder beside torch's own transformer layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.clip_layers import ClipLayer, gelu
from darkroom.engine.layers.clip_vision import ClipVisionConfig, ClipVisionModel

CONFIG = ClipVisionConfig(3, 32, 4, 48, "gelu", patch_px=4, image_px=16, projection_width=8)


@pytest.fixture(scope="module")
def network() -> ClipVisionModel:
    torch.manual_seed(0)
    made = ClipVisionModel(CONFIG).requires_grad_(False)
    for weight in made.parameters():
        weight.normal_(0, 0.2)
    return made


def _reference(layer: ClipLayer) -> nn.TransformerEncoderLayer:
    made = nn.TransformerEncoderLayer(
        CONFIG.width, CONFIG.heads, CONFIG.inner_width, 0.0, functional.gelu, batch_first=True, norm_first=True
    )
    weights = layer.state_dict()
    joined = {
        f"self_attn.in_proj_{kind}": torch.cat([weights[f"self_attn.{name}_proj.{kind}"] for name in "qkv"])
        for kind in ("weight", "bias")
    }
    names = {"layer_norm1": "norm1", "layer_norm2": "norm2", "mlp.fc1": "linear1", "mlp.fc2": "linear2",
             "self_attn.out_proj": "self_attn.out_proj"}  # fmt: skip
    same = {f"{names[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": weight for key, weight in weights.items()
            if key.rpartition(".")[0] in names}  # fmt: skip
    made.load_state_dict({**joined, **same})
    return made.eval()


def test_layers_compute_what_torchs_do(network: ClipVisionModel) -> None:
    layer = network.vision_model.encoder.layers[0]
    assert isinstance(layer, ClipLayer) and layer.mlp.activation is gelu
    x = torch.randn(2, 5, CONFIG.width)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), _reference(layer)(x), atol=1e-5, rtol=1e-4)


def test_what_is_asked_for_is_the_output_of_that_layer(network: ClipVisionModel) -> None:
    pixels = torch.randn(2, 3, 16, 16)
    last, before, embeds, projected = network(pixel_values=pixels, intermediate_output=-2)
    every = network(pixels, intermediate_output="all")[1]
    assert every.shape == (2, 3, 17, 32) and embeds.shape == (2, 8) and projected is None
    assert torch.equal(every[:, -1], last) and torch.equal(every[:, -2], before)
    assert network(pixels)[1] is None


def test_the_embedding_comes_from_the_first_token(network: ClipVisionModel) -> None:
    last, _, embeds, _ = network(torch.randn(1, 3, 16, 16))
    normed = network.vision_model.post_layernorm(last[:, 0])
    torch.testing.assert_close(embeds, normed @ network.visual_projection.weight.T)
