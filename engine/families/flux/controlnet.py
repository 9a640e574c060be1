"""ControlNets of Flux: a shorter transformer of the same blocks, whose image each block passes on to the steered one.

Four kinds of file: InstantX's (of latents, one or several modes; Shakker Labs, jasperai and alimama train the same),
with a mask for inpainting, XLabs' (of pixels) and MistoLine's (of pixels, with an activation behind each block). `B`
batch, `H W` pixels, `h w` latent cells (`H/8`), `T` tokens, `D` width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import nn

from darkroom.engine.families.flux.transformer import FluxConfig, FluxTrunk, places_of, trunk_config
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.filled import filled
from darkroom.engine.layers.patches import PATCH, pad_to_patches, patches_of
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.layers.transformer_layers import finite

STEERED_DOUBLE, STEERED_SINGLE = 19, 38  # blocks of the transformer that is steered, whatever its depth
HINT_CHANNELS = 16
# Convolutions of an image: (kernel, stride) of each.
HINT_LAYERS = ((3, 1), (3, 1), (3, 2), (3, 1), (3, 2), (3, 1), (3, 2), (3, 1))
ACTIVATED_HINT_LAYERS = ((3, 1), (1, 1), (3, 1), (3, 2), (3, 1), (3, 2), (3, 1), (3, 2), (1, 1), (3, 1))
PIXELS_MARK = "input_hint_block.0.weight"
ACTIVATED_MARK = "input_cond_block.encoder.0.weight"
MODES = "controlnet_mode_embedder.weight"


class HintKind(Enum):
    """Form of the image that a network reads."""

    LATENT = "latent"
    PIXELS = "pixels"
    PIXELS_ACTIVATED = "pixels activated"  # the additions pass an activation as well


@dataclass(frozen=True, slots=True)
class FluxControlNetConfig:
    """Configuration of the network. `hint_channels` are those of a latent, with its mask's; `num_modes` may be 0."""

    trunk: FluxConfig
    hint: HintKind
    hint_channels: int = HINT_CHANNELS
    num_modes: int = 0


def flux_controlnet_config(shapes: Shapes) -> FluxControlNetConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    hint = HintKind.LATENT
    if PIXELS_MARK in shapes:
        hint = HintKind.PIXELS
    elif ACTIVATED_MARK in shapes:
        hint = HintKind.PIXELS_ACTIVATED
    channels = shapes["pos_embed_input.weight"][1] // PATCH**2 if hint is HintKind.LATENT else HINT_CHANNELS
    return FluxControlNetConfig(trunk_config(shapes), hint, channels, shapes.get(MODES, (0,))[0])


class ActivatedLinear(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.linear(x))


class HintEncoder(nn.Module):
    """The convolutions of an image, as the layers `encoder` of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _hint_layers(ACTIVATED_HINT_LAYERS)

    def forward(self, hint: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.encoder(hint)
        return out


class FluxControlNet(FluxTrunk):
    """`forward` returns additions to the image's tokens by block: `input` those of two streams, `output` of one."""

    def __init__(self, config: FluxControlNetConfig) -> None:
        super().__init__(config.trunk)
        self.control_config = config
        width = config.trunk.width
        layer = ActivatedLinear if config.hint is HintKind.PIXELS_ACTIVATED else Linear
        widths = (width,) if config.hint is HintKind.PIXELS_ACTIVATED else (width, width)
        self.controlnet_blocks = nn.ModuleList(layer(*widths) for _ in range(config.trunk.num_double))
        self.controlnet_single_blocks = nn.ModuleList(layer(*widths) for _ in range(config.trunk.num_single))
        self.pos_embed_input = Linear(config.hint_channels * PATCH**2, width)
        if config.num_modes:
            self.controlnet_mode_embedder = nn.Embedding(config.num_modes, width)
        if config.hint is HintKind.PIXELS:
            self.input_hint_block = _hint_layers(HINT_LAYERS)
        elif config.hint is HintKind.PIXELS_ACTIVATED:
            self.input_cond_block = HintEncoder()

    def forward(
        self,
        x: torch.Tensor,
        hint: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        guidance: torch.Tensor | None = None,
        control_type: Sequence[int] = (),
        **kwargs: object,
    ) -> dict[str, list[torch.Tensor]]:
        """Return additions [B, P, D] for `x` [B, C, h, w], by a `hint` that is [B, C, h, w] or pixels [B, 3, H, W].

        `control_type` are the modes asked for, of a network that has several. Raises ValueError for one that it lacks.
        """
        latent = pad_to_patches(x, PATCH)
        labels = x.new_zeros(x.shape[0], self.config.label_dim) if y is None else y
        vec = self.vector(timesteps, labels, guidance, x.dtype)
        img = self.img_in(patches_of(latent)) + self.pos_embed_input(patches_of(self._hint(hint)))
        txt = self.txt_in(context)
        if self.control_config.num_modes and len(control_type):
            txt = torch.cat([self._modes(control_type, txt), txt], dim=1)
        places = places_of(latent)
        pe = rotations(torch.cat([places.new_zeros(places.shape[0], txt.shape[1], places.shape[-1]), places], dim=1))
        double, single = self._blocks(img, txt, vec, pe)
        repeats_each = self.control_config.hint is HintKind.LATENT
        return {
            "input": _spread(double, STEERED_DOUBLE, repeats_each=repeats_each),
            "output": _spread(single, STEERED_SINGLE, repeats_each=repeats_each),
        }

    def _hint(self, hint: torch.Tensor) -> torch.Tensor:
        """Return the image as [B, C, h, w], of whole patches."""
        if self.control_config.hint is HintKind.PIXELS:
            hint = self.input_hint_block(hint * 2.0 - 1.0)
        elif self.control_config.hint is HintKind.PIXELS_ACTIVATED:
            hint = self.input_cond_block(hint * 2.0 - 1.0)
        return pad_to_patches(hint, PATCH)

    def _modes(self, control_type: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """Return a token for each mode [B, modes, D]."""
        if max(control_type) >= self.control_config.num_modes:
            raise ValueError(
                f"ControlNet: it has no such control type; got number {max(control_type)}, "
                f"expected less than {self.control_config.num_modes}"
            )
        numbers = filled(control_type, device=like.device, dtype=torch.int64)
        tokens: torch.Tensor = self.controlnet_mode_embedder(numbers)
        return tokens.to(like.dtype).expand(like.shape[0], -1, -1)

    def _blocks(
        self, img: torch.Tensor, txt: torch.Tensor, vec: torch.Tensor, pe: torch.Tensor
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the additions of each block of two streams, and of each block of one."""
        double, single = [], []
        for block, onward in zip(self.double_blocks, self.controlnet_blocks, strict=True):
            img, txt = block(img, txt, vec, pe)
            double.append(onward(img))
        x = torch.cat([txt, finite(img)], dim=1)
        for block, onward in zip(self.single_blocks, self.controlnet_single_blocks, strict=True):
            x = block(x, vec, pe)
            single.append(onward(x[:, txt.shape[1] :]))
        return double, single


def _hint_layers(layers: Sequence[tuple[int, int]]) -> nn.Sequential:
    modules: list[nn.Module] = []
    channels = 3
    for kernel, stride in layers:
        modules += [Conv2d(channels, HINT_CHANNELS, kernel, padding=kernel // 2, stride=stride), nn.SiLU()]
        channels = HINT_CHANNELS
    return nn.Sequential(*modules[:-1])


def _spread(items: Sequence[torch.Tensor], number: int, *, repeats_each: bool) -> list[torch.Tensor]:
    """Return that many items: each repeated for a stretch of its own, or all of them from the start again."""
    if not items:
        return []
    times = math.ceil(number / len(items))
    spread = [item for item in items for _ in range(times)] if repeats_each else [*items] * times
    return spread[:number]
