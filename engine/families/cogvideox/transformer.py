"""The transformer of CogVideoX (Yang et al. 2024, arXiv 2408.06072), 1.0 and 1.5, of any width and depth.

Tokens of the text and of the video pass through the same layers in one sequence, the text first; each of the two is
modulated by values of its own. Positions are rotations (Su et al. 2021, arXiv 2104.09864) by frame, row and column,
which the text does not have, or a table. A token is a patch of 2 x 2 cells, in 1.5 of two frames. `B` batch, `C`
channels, `F` latent frames, `h w` latent cells, `L` tokens of the text, `T` of the video, `D` hidden size, `E` size of
the time embedding. Module names are those that ComfyUI gives the checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.patches import pad_to_patches
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedResidual,
    Gelu,
    Modulator,
    ResidualNorm,
    RotaryHeads,
    RotaryLayout,
    Stretches,
)
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

HEAD_DIM = 64
AXES = (16, 24, 24)  # channels of a head that rotate by frame, row and column
THETA = 10000.0
STRETCH = 1.875  # of rows and columns of 1.0, which was trained on positions of smaller videos
PATCH = 2  # cells a side, and frames of 1.5
NORM_EPS, HEAD_EPS = 1e-5, 1e-6
MAX_TEXT = 226  # tokens of the text, whose rows come first in the table of positions
MODULATIONS = 6  # of a norm: shift, scale and gate of the video, then of the text

MARK, FIRST, TEXT = "blocks.0.norm1.linear.weight", "patch_embed.proj.weight", "patch_embed.text_proj.weight"
POSITIONS, OFFSET = "patch_embed.pos_embedding", "ofs_embedding_linear_1.weight"
FLOAT32_ENDS = tuple(f"patch_embed.{layer}.{end}" for layer in ("proj", "text_proj") for end in ("weight", "bias"))

Rotations = tuple[torch.Tensor, torch.Tensor]  # cosines and sines [1, L + T, 1, HEAD_DIM / 2]


@dataclass(frozen=True, slots=True)
class CogVideoXConfig:
    """Configuration of the network; by default that of CogVideoX 1.5 5B from text."""

    hidden_size: int = 3072
    """A multiple of 64: heads have 64 channels."""
    num_layers: int = 42
    intermediate_size: int = 12288
    time_embed_dim: int = 512
    text_dim: int = 4096
    in_channels: int = 16
    """More than `out_channels` where the network reads latents beside the noisy one."""
    out_channels: int = 16
    patch_frames: int = PATCH
    """Latent frames of a token: 1 in CogVideoX 1.0, 2 in 1.5."""
    num_positions: int = 0
    """Rows of the learned table of positions, text and video; 0 for rotations."""
    offset_dim: int = 0
    """Size of the embedded `ofs`, which 1.5 from images is conditioned on; 0 for none."""

    @property
    def heads(self) -> int:
        """Number of attention heads."""
        return self.hidden_size // HEAD_DIM

    @property
    def patch_values(self) -> int:
        """Values of a patch of one channel."""
        return PATCH * PATCH * self.patch_frames


def cogvideox_config(shapes: Shapes) -> CogVideoXConfig:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    rows, time_embed_dim = shapes[MARK]
    first = shapes[FIRST]
    patch_frames = PATCH if len(first) == 2 else 1  # 1.5 has a matrix in place of a convolution
    in_channels = first[1] // (PATCH * PATCH * patch_frames) if len(first) == 2 else first[1]
    return CogVideoXConfig(
        hidden_size=rows // MODULATIONS,
        num_layers=count_children(shapes, "blocks"),
        intermediate_size=shapes["blocks.0.ff_proj.weight"][0],
        time_embed_dim=time_embed_dim,
        text_dim=shapes[TEXT][1],
        in_channels=in_channels,
        out_channels=shapes["proj_out.weight"][0] // (PATCH * PATCH * patch_frames),
        patch_frames=patch_frames,
        num_positions=shapes[POSITIONS][1] if POSITIONS in shapes else 0,
        offset_dim=shapes[OFFSET][1] if OFFSET in shapes else 0,
    )


def rotations_of(grid: tuple[int, int, int], num_text: int, stretch: float, device: torch.device) -> Rotations:
    """Return the rotations of tokens of a text, which are not turned, and of a video of frames, rows and columns.

    Rows and columns are multiplied by `stretch`. float32.
    """
    frames, rows, columns = (
        _angles(number, channels, scale, device)
        for number, channels, scale in zip(grid, AXES, (1.0, stretch, stretch), strict=True)
    )
    parts = (frames[:, None, None], rows[None, :, None], columns[None, None])
    angles = torch.cat([part.expand(*grid, -1) for part in parts], dim=-1).flatten(0, 2)  # [T, HEAD_DIM / 2]
    turned = functional.pad(angles, (0, 0, num_text, 0))[None, :, None]
    return turned.cos(), turned.sin()


def _angles(number: int, channels: int, scale: float, device: torch.device) -> torch.Tensor:
    """Return the angles [number, channels / 2] of positions along an axis."""
    steps = torch.arange(0, channels, 2, dtype=torch.float32, device=device) / channels
    positions = torch.arange(number, dtype=torch.float32, device=device) * scale
    return torch.outer(positions, 1.0 / (THETA**steps))


class PatchEmbed(nn.Module):
    """Text and patches of a video as tokens of one sequence. Its weights are float32."""

    def __init__(self, config: CogVideoXConfig) -> None:
        super().__init__()
        size, frames = config.hidden_size, config.patch_frames
        self.patch_frames = frames
        self.text_proj = Linear(config.text_dim, size)
        self.proj = (
            Conv2d(config.in_channels, size, PATCH, stride=PATCH)
            if frames == 1
            else Linear(config.in_channels * config.patch_values, size)
        )
        if config.num_positions:
            self.pos_embedding = nn.Parameter(torch.empty(1, config.num_positions, size), requires_grad=False)

    def forward(self, context: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens [B, L + T, D] of a text [B, L, D'] and of a video [B, C, F, h, w] of whole patches."""
        text = self.text_proj(context.float()).to(context.dtype)
        video = self._of_video(x.float()).to(context.dtype)
        return torch.cat([text, video], dim=1)

    def _of_video(self, x: torch.Tensor) -> torch.Tensor:
        if self.patch_frames == 1:
            patches: torch.Tensor = self.proj(x.transpose(1, 2).flatten(0, 1))  # [B * F, D, rows, columns]
            return patches.flatten(2).transpose(1, 2).reshape(x.shape[0], -1, patches.shape[1])
        batch, channels, frames, height, width = x.shape
        cells = x.view(
            batch, channels, frames // self.patch_frames, self.patch_frames, height // PATCH, PATCH, width // PATCH,
            PATCH,
        )  # fmt: skip
        tokens: torch.Tensor = self.proj(cells.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3))
        return tokens


class ModulatedNorm(nn.Module):
    """A norm whose result the time scales and shifts, with values for the text and for the video."""

    def __init__(self, config: CogVideoXConfig) -> None:
        super().__init__()
        self.linear = Linear(config.time_embed_dim, MODULATIONS * config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)

    def modulations(self, time: torch.Tensor, lengths: tuple[int, int]) -> tuple[Modulator, Modulator, Modulator]:
        """Return shift, scale and gate of a text and a video of these numbers of tokens, from the time [B, E]."""
        parts = self.linear(time)[:, None].chunk(MODULATIONS, dim=-1)  # [B, 1, D] each
        shift, scale, gate = (Stretches(lengths, (parts[index + 3], parts[index])) for index in range(3))
        return shift, scale, gate


class CogVideoXBlock(nn.Module):
    """Attention and feed-forward layers over the text's tokens and the video's."""

    def __init__(self, config: CogVideoXConfig) -> None:
        super().__init__()
        size, self.heads = config.hidden_size, config.heads
        self.norm1, self.norm2 = ModulatedNorm(config), ModulatedNorm(config)
        self.q, self.k, self.v, self.attn_out = (Linear(size, size) for _ in range(4))
        self.norm_q, self.norm_k = (nn.LayerNorm(HEAD_DIM, eps=HEAD_EPS) for _ in range(2))
        self.ff_proj, self.ff_out = Linear(size, config.intermediate_size), Linear(config.intermediate_size, size)
        self.rotary_heads = RotaryHeads(RotaryLayout.PAIRS, token_dim=1, is_float32=True)
        self.adaptive_norm, self.residual = AdaptiveNorm(), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)
        self.activation = Gelu()

    def forward(
        self,
        x: torch.Tensor,
        time: torch.Tensor,
        lengths: tuple[int, int],
        rotations: Rotations | None,
        options: Options | None,
    ) -> torch.Tensor:
        """Return the tokens [B, L + T, D]. `time` [B, E] is activated; `lengths` are L and T."""
        shift, scale, gate = self.norm1.modulations(time, lengths)
        inner_shift, inner_scale, inner_gate = self.norm2.modulations(time, lengths)
        change = self._attended(self.adaptive_norm(x, scale, shift, self.norm1.norm), rotations, options)
        x, normed = self.residual_norm(x, change, gate, inner_scale, inner_shift, norm=self.norm2.norm)
        out: torch.Tensor = self.residual(x, self.ff_out(self.activation(self.ff_proj(normed))), inner_gate)
        return out

    def _attended(self, x: torch.Tensor, rotations: Rotations | None, options: Options | None) -> torch.Tensor:
        q, k = (layer(x).unflatten(2, (self.heads, -1)) for layer in (self.q, self.k))  # [B, L + T, heads, 64]
        q, k = self.rotary_heads([(q, self.norm_q)], [(k, self.norm_k)], rotations)
        attended = optimized_attention(q.flatten(2), k.flatten(2), self.v(x), self.heads, transformer_options=options)
        out: torch.Tensor = self.attn_out(attended)
        return out


class LastNorm(nn.Module):
    """The norm before the last layer, scaled and shifted by the time."""

    def __init__(self, config: CogVideoXConfig) -> None:
        super().__init__()
        self.linear = Linear(config.time_embed_dim, 2 * config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.adaptive_norm = AdaptiveNorm()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        shift, scale = self.linear(time)[:, None].chunk(2, dim=-1)
        out: torch.Tensor = self.adaptive_norm(x, scale, shift, self.norm)
        return out


class CogVideoXTransformer(nn.Module):
    """`forward(x [B, C, F, h, w], timesteps [B], context [B, L, D'])` -> its prediction `[B, out_channels, F, h, w]`.

    Sizes that are no whole patches are filled up with cells, and in 1.5 frames, from the other end. `ofs` [B] is a
    number that 1.5 from images is conditioned on.
    """

    def __init__(self, config: CogVideoXConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = (config.patch_frames, PATCH, PATCH)
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        time_dim = config.time_embed_dim
        self.patch_embed = PatchEmbed(config)
        self.time_embedding_linear_1 = Linear(config.hidden_size, time_dim)
        self.time_embedding_linear_2 = Linear(time_dim, time_dim)
        if config.offset_dim:
            self.ofs_embedding_linear_1 = Linear(config.offset_dim, config.offset_dim)
            self.ofs_embedding_linear_2 = Linear(config.offset_dim, time_dim)
        self.blocks = nn.ModuleList(CogVideoXBlock(config) for _ in range(config.num_layers))
        self.norm_final = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.norm_out = LastNorm(config)
        self.proj_out = Linear(config.hidden_size, config.out_channels * config.patch_values)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.proj_out.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        ofs: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """Predict; there is no `y` and no `control` for it. Raises ValueError for more tokens than a table has."""
        like, x = x, self._whole_patches(x)
        frames, height, width = x.shape[2:]
        grid = frames // self.config.patch_frames, height // PATCH, width // PATCH
        time = self._time(timesteps, ofs, context.dtype)
        tokens = self.patch_embed(context, x)
        num_text = context.shape[1]
        lengths = num_text, tokens.shape[1] - num_text
        rotations = None
        if self.config.num_positions:
            tokens[:, num_text:] += self._positions(lengths[1]).to(tokens)
        else:
            stretch = STRETCH if self.config.patch_frames == 1 else 1.0
            rotations = rotations_of(grid, num_text, stretch, x.device)
        for block in self.blocks:
            tokens = block(tokens, time, lengths, rotations, transformer_options)
        drawn: torch.Tensor = self.proj_out(self.norm_out(self.norm_final(tokens[:, num_text:]), time))
        return self._video_of(drawn, grid)[:, :, : like.shape[2], : like.shape[3], : like.shape[4]]

    def _whole_patches(self, x: torch.Tensor) -> torch.Tensor:
        x = pad_to_patches(x, PATCH)
        missing = -x.shape[2] % self.config.patch_frames
        return torch.cat([x, x[:, :, :missing]], dim=2) if missing else x

    def _time(self, timesteps: torch.Tensor, ofs: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        """Return the activated embedding [B, E] of the time, and of `ofs` where the network reads that."""
        waves = timestep_embedding(timesteps, self.config.hidden_size).to(dtype)
        time = self.time_embedding_linear_2(functional.silu(self.time_embedding_linear_1(waves)))
        if self.config.offset_dim and ofs is not None:
            waves = timestep_embedding(ofs, self.config.offset_dim).to(dtype)
            time = time + self.ofs_embedding_linear_2(functional.silu(self.ofs_embedding_linear_1(waves)))
        return functional.silu(time)

    def _positions(self, num_tokens: int) -> torch.Tensor:
        """Return the rows [1, T, D] of the table for the tokens of a video."""
        most = self.config.num_positions - MAX_TEXT
        if num_tokens > most:
            raise ValueError(
                f"latent: the video is larger than the network's table of positions; got {num_tokens} tokens, expected "
                f"at most {most}"
            )
        return self.patch_embed.pos_embedding[:, MAX_TEXT : MAX_TEXT + num_tokens]

    def _video_of(self, tokens: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        """Return patches [B, T, C * values], channels outermost, as a video [B, C, F, h, w]."""
        (frames, rows, columns), deep = grid, self.config.patch_frames
        cells = tokens.view(tokens.shape[0], frames, rows, columns, -1, deep, PATCH, PATCH)
        return cells.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(
            tokens.shape[0], -1, frames * deep, rows * PATCH, columns * PATCH
        )
