"""USO's style projector: a file of `model_patches` whose tokens stand before those of the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from darkroom.engine.families.base import Network, Shapes
from darkroom.engine.families.flux.uso import UsoProjector, UsoProjectorConfig
from darkroom.engine.families.layouts import behind_first

LAYERS = (-20, -11)  # of the image encoder, before the last but one


def _configure(shapes: Shapes) -> UsoProjectorConfig:
    num_styles, num_tokens = shapes["high_embedding_linear.0.weight"]
    inner_width, width = shapes["high_projection.weight"]
    return UsoProjectorConfig(num_tokens, num_styles, width, inner_width)


STYLE_PROJECTOR = Network(
    layouts=(behind_first(("feature_embedder.", ""), "mid_layer_norm.bias"),),
    in_checkpoint=(),
    configure=_configure,
    build=UsoProjector,
)


def layer_outputs(output: Any) -> torch.Tensor:
    """Return the outputs [3, B, T, D] of an image encoder that the projector reads.

    Raises ValueError for an encoder of which only one layer is given.
    """
    every = getattr(output, "all_hidden_states", None)
    if every is None:
        raise ValueError(
            "clip_vision_output: the style reference needs the outputs of several layers; got those of a CLIP vision "
            "model, expected those of SigLIP's"
        )
    return torch.stack((*(every[:, layer] for layer in LAYERS), output.penultimate_hidden_states))


class StyleTokens:
    """A patch of the transformer's embedded inputs: tokens of style before those of the text."""

    def __init__(self, projector: Any, outputs: torch.Tensor) -> None:
        self.projector = projector  # a `ModulePatcher`
        self.outputs = outputs

    def __deepcopy__(self, memo: object) -> StyleTokens:
        """Return itself: clones of a MODEL share the projector."""
        return self

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        text, places = inputs["txt"], inputs["txt_ids"]
        with self.projector.in_use() as network:
            tokens = network(self.outputs.to(text)).to(text)
        return {
            **inputs,
            "txt": torch.cat([tokens.expand(text.shape[0], -1, -1), text], dim=1),
            "txt_ids": torch.cat([places.new_zeros(places.shape[0], tokens.shape[1], places.shape[-1]), places], dim=1),
        }
