"""The transformer of HuMo (Chen et al. 2025, arXiv 2509.08519): Wan with attention to speech in every block.

`B` batch, `C` channels, `F` latent frames, `T` tokens, `D` width.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.wan.blocks import Attention, WanBlock
from darkroom.engine.families.wan.config import NORM_EPS, WanConfig, wan_config
from darkroom.engine.families.wan.transformer import Inputs, VideoTokens, WanTransformer, rotations_at, video_places
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.layers.unet_layers import Options

SPEECH = "audio_proj.audio_proj_glob_1.layer.bias"
SPEECH_TOKENS = 16  # of a latent frame
STEPS, LAYERS = 8, 5  # of speech for a latent frame, and groups of layers of the speech encoder
HEARD = "heard_speech"  # the option under which blocks find the tokens of speech


@dataclass(frozen=True, slots=True)
class HumoConfig(WanConfig):
    """Configuration of HuMo. `speech_dim` is the width of the speech encoder."""

    speech_dim: int = 1280
    speech_inner: int = 512
    speech_width: int = 1536


def humo_config(shapes: Shapes) -> HumoConfig:
    """Return the configuration of HuMo with these tensors (names without prefix)."""
    inner, joined = shapes["audio_proj.audio_proj_glob_1.layer.weight"]
    return HumoConfig(
        **asdict(wan_config(shapes)),
        speech_dim=joined // (STEPS * LAYERS),
        speech_inner=inner,
        speech_width=shapes["audio_proj.audio_proj_glob_norm.layer.weight"][0],
    )


class SpeechAttention(Attention):
    """Attention of each frame's tokens to those of its speech."""

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, pe: torch.Tensor | None, options: Options | None
    ) -> torch.Tensor:
        """Return [B, T, D]. `context` is [B, F * 16, S]."""
        frames = context.shape[1] // SPEECH_TOKENS
        each = x.reshape(x.shape[0] * frames, -1, x.shape[-1])
        speech = context.reshape(each.shape[0], SPEECH_TOKENS, -1)
        return super().forward(each, speech, None, options).reshape(x.shape)


class SpeechWrapper(nn.Module):
    def __init__(self, config: HumoConfig) -> None:
        super().__init__()
        self.audio_cross_attn = SpeechAttention(config.width, config.speech_width)
        self.norm1_audio = nn.LayerNorm(config.width, eps=NORM_EPS)


class SpeechBlock(WanBlock):
    """A block that attends to speech behind the text."""

    def __init__(self, config: HumoConfig) -> None:
        super().__init__(config)
        self.audio_cross_attn_wrapper = SpeechWrapper(config)

    def with_more(
        self, x: torch.Tensor, change: torch.Tensor, options: Options | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        speech: torch.Tensor | None = (options or {}).get(HEARD)
        if speech is None:
            return x, change
        wrapper = self.audio_cross_attn_wrapper
        x, normed = self.residual_norm(x, change, None, None, None, norm=wrapper.norm1_audio)
        return x, wrapper.audio_cross_attn(normed, speech, None, options)


def _in_layer(layer: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict({"layer": layer})


class SpeechProjection(nn.Module):
    """Speech of each latent frame [B, F, 8, 5, A] -> tokens [B, F, 16, S]."""

    def __init__(self, config: HumoConfig) -> None:
        super().__init__()
        joined, inner, width = STEPS * LAYERS * config.speech_dim, config.speech_inner, config.speech_width
        self.audio_proj_glob_1 = _in_layer(Linear(joined, inner))
        self.audio_proj_glob_2 = _in_layer(Linear(inner, inner))
        self.audio_proj_glob_3 = _in_layer(Linear(inner, SPEECH_TOKENS * width))
        self.audio_proj_glob_norm = _in_layer(nn.LayerNorm(width))

    def forward(self, heard: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.audio_proj_glob_1["layer"](heard.flatten(2)))
        hidden = functional.relu(self.audio_proj_glob_2["layer"](hidden))
        tokens: torch.Tensor = self.audio_proj_glob_3["layer"](hidden)
        tokens = tokens.view(*tokens.shape[:2], SPEECH_TOKENS, -1)
        out: torch.Tensor = self.audio_proj_glob_norm["layer"](tokens)
        return out


class HumoTransformer(WanTransformer):
    """HuMo. `audio_embed` [B, F, 8, 5, A] is speech, `reference_latent` [B, C, f, h, w] an image. Either may miss."""

    block_type = SpeechBlock

    def __init__(self, config: HumoConfig) -> None:
        super().__init__(config)
        self.audio_proj = SpeechProjection(config)

    def tokens_of(self, x: torch.Tensor, timesteps: torch.Tensor, inputs: Inputs) -> VideoTokens:
        reference: torch.Tensor | None = inputs.get("reference_latent")
        tokens = super().tokens_of(x, timesteps, inputs)
        if reference is None:
            return tokens
        patches: torch.Tensor = self.patch_embedding(reference)
        behind = rotations_at(video_places(*patches.shape[2:], device=x.device, first_frame=x.shape[2]))
        tokens.img = torch.cat([tokens.img, patches.flatten(2).transpose(1, 2)], dim=1)
        tokens.pe = torch.cat([tokens.pe, behind], dim=1)
        return tokens

    def through_blocks(
        self, tokens: VideoTokens, shared: dict[str, Any], image_tokens: int | None, inputs: Inputs
    ) -> torch.Tensor:
        heard: torch.Tensor | None = inputs.get("audio_embed")
        if heard is not None:
            frames = tokens.img.shape[1] // math.prod(tokens.grid[1:])
            reference: torch.Tensor | None = inputs.get("reference_latent")
            if reference is not None:  # nothing is heard at the reference image
                heard = functional.pad(heard, (0, 0, 0, 0, 0, 0, 0, reference.shape[2]))[:, :frames]
            speech = self.audio_proj(heard).flatten(1, 2)
            shared = {**shared, "transformer_options": {**shared["transformer_options"], HEARD: speech}}
        return super().through_blocks(tokens, shared, image_tokens, inputs)
