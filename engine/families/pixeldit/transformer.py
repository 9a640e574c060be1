"""The transformer of PixelDiT (Yu et al. 2025, arXiv 2511.20645), of any width and depth: it generates pixels.

Blocks of two streams read patches of 16 pixels a side with the text; blocks of pixels follow, which are conditioned on
the patches. `B` batch, `C` channels, `H W` pixels, `T` patches, `L` tokens of the text, `D` hidden size. Module names
are those of the published checkpoints, but for the modulations of pixels, which files have in one layer.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.pixeldit.config import PATCH_PX, PixelDiTConfig
from darkroom.engine.families.pixeldit.pixel_blocks import PixelBlock, PixelEmbedder, PixelHead
from darkroom.engine.families.pixeldit.positions import patch_rotations, text_rotations
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import Control
from darkroom.engine.layers.feed_forward import GatedFeedForward
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import image_channels_last, pad_to_patches, patches_channels_first
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
)
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

TIME_DIM, LONGEST_PERIOD = 256, 10.0

Streams = tuple[torch.Tensor, torch.Tensor]  # image [B, T, D] and text [B, L, D]


class TimeEmbedder(nn.Module):
    """The sinusoids of the times [B] of 0..1000 through two layers -> [B, D]."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(TIME_DIM, hidden_size), nn.SiLU(), Linear(hidden_size, hidden_size))

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        out: torch.Tensor = self.mlp(timestep_embedding(times, TIME_DIM, LONGEST_PERIOD).to(dtype))
        return out


class TokenEmbedder(nn.Module):
    """A projection of tokens, with a norm behind it for those of a text: `forward([..., channels])` -> `[..., D]`."""

    def __init__(self, channels: int, hidden_size: int, *, has_norm: bool = False) -> None:
        super().__init__()
        self.proj = Linear(channels, hidden_size)
        self.norm = RmsNorm(hidden_size) if has_norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.proj(x))
        return out


class JointAttention(nn.Module):
    """Self-attention over text and image together, each with its own projections."""

    def __init__(self, config: PixelDiTConfig) -> None:
        super().__init__()
        size, head_dim = config.hidden_size, config.head_dim
        self.heads = size // head_dim
        self.qkv_x, self.qkv_y = (Linear(size, 3 * size, bias=False) for _ in range(2))
        self.q_norm_x, self.k_norm_x, self.q_norm_y, self.k_norm_y = (RmsNorm(head_dim) for _ in range(4))
        self.proj_x, self.proj_y = (Linear(size, size) for _ in range(2))
        self.rotary_heads = RotaryHeads(token_dim=1)

    def forward(self, img: torch.Tensor, txt: torch.Tensor, pe: torch.Tensor, options: Options | None) -> Streams:
        """Return image and text. `pe` [1, L + T, 1, pairs, 2, 2] rotates the text's tokens, then the patches."""
        q, k, v = self.qkv_x(img).view(*img.shape[:2], 3, self.heads, -1).unbind(2)  # [B, T, heads, W] each
        text_q, text_k, text_v = self.qkv_y(txt).view(*txt.shape[:2], 3, self.heads, -1).unbind(2)
        q, k = self.rotary_heads(
            [(text_q, self.q_norm_y), (q, self.q_norm_x)], [(text_k, self.k_norm_y), (k, self.k_norm_x)], pe
        )
        v = torch.cat([text_v, v], dim=1)
        attended = optimized_attention(
            q.flatten(2), k.flatten(2), v.flatten(2), self.heads, transformer_options=options
        )
        num_text = txt.shape[1]
        return self.proj_x(attended[:, num_text:]), self.proj_y(attended[:, :num_text])


class PatchBlock(nn.Module):
    def __init__(self, config: PixelDiTConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.norm_x1, self.norm_y1, self.norm_x2, self.norm_y2 = (RmsNorm(size) for _ in range(4))
        self.attn = JointAttention(config)
        self.mlp_x, self.mlp_y = (GatedFeedForward(size, config.intermediate_size) for _ in range(2))
        self.adaLN_modulation_img, self.adaLN_modulation_txt = (nn.Sequential(Linear(size, 6 * size)) for _ in range(2))
        self.adaptive_norm, self.residual = AdaptiveNorm("none"), GatedResidual(is_joined=True)
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self, img: torch.Tensor, txt: torch.Tensor, vec: torch.Tensor, pe: torch.Tensor, options: Options | None
    ) -> Streams:
        """Return image [B, T, D] and text [B, L, D]. `vec` is the activated time [B, 1, D]."""
        shift, scale, gate, *inner = self.adaLN_modulation_img(vec).chunk(6, dim=-1)
        txt_shift, txt_scale, txt_gate, *txt_inner = self.adaLN_modulation_txt(vec).chunk(6, dim=-1)
        image, text = self.attn(
            self.adaptive_norm(img, scale, shift, self.norm_x1),
            self.adaptive_norm(txt, txt_scale, txt_shift, self.norm_y1),
            pe,
            options,
        )
        img, normed = self.residual_norm(img, image, gate, inner[1], inner[0], norm=self.norm_x2)
        img = self.residual(img, self.mlp_x(normed), inner[2])
        txt, normed = self.residual_norm(txt, text, txt_gate, txt_inner[1], txt_inner[0], norm=self.norm_y2)
        return img, self.residual(txt, self.mlp_y(normed), txt_inner[2])


class PatchGuide:
    """Changes of an image's patches by a condition beside the text; none unless a subclass says otherwise."""

    def before_block(self, img: torch.Tensor, index: int) -> torch.Tensor:
        """Return the patches [B, T, D] that a block of two streams is given."""
        return img

    def before_pixels(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the patches [B, T, D] on which the blocks of pixels are conditioned."""
        return tokens


class PixelDiTTrunk(nn.Module):
    """The network without its `forward`, whose inputs are those of a subclass.

    Times are those of flow models, of 0..1000. Of the text the first tokens are read, as many as there are positions
    for.
    """

    trained_side: int | None = None  # patches, where positions are scaled by it

    def __init__(self, config: PixelDiTConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels, self.patch_size = config.in_channels, PATCH_PX
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        size = config.hidden_size
        self.pixel_embedder = PixelEmbedder(config)
        self.s_embedder = TokenEmbedder(config.in_channels * PATCH_PX**2, size)
        self.t_embedder = TimeEmbedder(size)
        self.y_embedder = TokenEmbedder(config.context_dim, size, has_norm=True)
        self.y_pos_embedding = nn.Parameter(torch.empty(1, config.max_text_tokens, size))
        self.patch_blocks = nn.ModuleList(PatchBlock(config) for _ in range(config.num_layers))
        self.pixel_blocks = nn.ModuleList(PixelBlock(config) for _ in range(config.num_pixel_layers))
        self.final_layer = PixelHead(config)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.s_embedder.proj.weight.dtype

    def predict(
        self, x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor, options: Options, guide: PatchGuide
    ) -> torch.Tensor:
        """Return the velocity [B, C, H, W] with patches that a guide changes."""
        image = pad_to_patches(x, PATCH_PX)
        time = self.t_embedder(timesteps, x.dtype)[:, None]  # [B, 1, D]
        tokens = self._through_patches(image, context, functional.silu(time), options, guide)
        tokens = guide.before_pixels(functional.silu(time + tokens))
        predicted = self._through_pixels(image, tokens, options)
        return predicted[..., : x.shape[-2], : x.shape[-1]]

    def _through_patches(
        self, image: torch.Tensor, context: torch.Tensor, vec: torch.Tensor, options: Options, guide: PatchGuide
    ) -> torch.Tensor:
        """Return the tokens [B, T, D] of an image's patches behind the blocks of two streams."""
        img: torch.Tensor = self.s_embedder(patches_channels_first(image, PATCH_PX))
        txt = self.y_embedder(context[:, : self.config.max_text_tokens])
        txt = txt + self.y_pos_embedding[:, : txt.shape[1]].to(txt)
        head_dim = self.config.head_dim
        pe = torch.cat(
            [text_rotations(txt.shape[1], head_dim, img.device), self._rotations(image, head_dim, options)], dim=1
        )
        for index, block in enumerate(self.patch_blocks):
            img, txt = block(guide.before_block(img, index), txt, vec, pe, options)
        return img

    def _through_pixels(self, image: torch.Tensor, tokens: torch.Tensor, options: Options) -> torch.Tensor:
        """Return the prediction [B, C, H, W] of pixels whose patches have these tokens [B, T, D]."""
        pixels: torch.Tensor = self.pixel_embedder(image)
        pe = self._rotations(image, self.config.pixel_head_dim, options)
        for block in self.pixel_blocks:
            pixels = block(pixels, tokens, pe, options)
        predicted: torch.Tensor = self.final_layer(pixels).view(*tokens.shape[:2], -1)  # [B, T, P * C]
        return image_channels_last(predicted, image.shape[-2], image.shape[-1], PATCH_PX)

    def _rotations(self, image: torch.Tensor, head_dim: int, options: Options) -> torch.Tensor:
        rows, columns = (side // PATCH_PX for side in image.shape[-2:])
        return patch_rotations(rows, columns, head_dim, options, image.device, self.trained_side)


class PixelDiTTransformer(PixelDiTTrunk):
    """`forward(x [B, C, H, W], timesteps [B], context [B, L, D'])` -> the velocity `[B, C, H, W]`."""

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: Control | None = None,
        transformer_options: Options | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """Predict; there are no `y` and no controls for it."""
        options = {} if transformer_options is None else transformer_options
        return self.predict(x, timesteps, context, options, PatchGuide())
