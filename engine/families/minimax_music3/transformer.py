"""The transformer of MiniMax Music 3, of any hidden size: Stable Audio's blocks without text attention.

The latent of audio is a sequence of cells of 512 samples. It follows the states of the language model that wrote the
song, of eight layers for each of its 25 frames a second: a learned mean of the eight, a convolution over neighbouring
frames, and each frame repeated over its cells. Long audio is computed by overlapping windows of 200 frames, whose
results are averaged. `B` batch, `C` channels, `F` frames of the song, `L` latent cells, `D` hidden size. Module names
are those of the published file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.stable_audio.transformer import (
    ROTARY_WIDTH,
    TIME_WIDTH,
    AudioFeedForward,
    AudioSelfAttention,
    RotaryFrequencies,
    Sinusoids,
)
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, ResidualNorm
from darkroom.engine.layers.unet_layers import Options

LATENT_CHANNELS = 128
SAMPLE_RATE_HZ, SAMPLES_PER_CELL = 44100, 512
FRAMES_PER_SECOND = 25
CODEC_RATE_HZ, CODEC_SAMPLES = 24000, 960  # of the codec whose frames the language model writes
WINDOW_FRAMES, HOP_FRAMES = 200, 100
NEIGHBOURS = 3  # frames that the convolution over states reads

KEY = "cond_layer_logits"
STATES = "latent_conditioners.0.weight"
CELLS = "diffusion_transformer.transformer."
FIRST = f"{CELLS}layers.0.self_attn.to_qkv.weight"
FLOAT32_ENDS = (".inv_freq", "timestep_features.weight")


def num_cells(num_frames: int) -> int:
    """Return the latent cells that so many frames of a song last, at least one."""
    return max(1, int(num_frames * SAMPLE_RATE_HZ / CODEC_RATE_HZ * CODEC_SAMPLES / SAMPLES_PER_CELL))


WINDOW_CELLS, HOP_CELLS = num_cells(WINDOW_FRAMES), num_cells(HOP_FRAMES)


@dataclass(frozen=True, slots=True)
class MiniMaxMusic3Config:
    """Configuration of the network. It reads `num_states` states of `state_dim` channels for each frame of a song."""

    hidden_size: int = 2048
    num_layers: int = 36
    condition_dim: int = 2048
    state_dim: int = 4096
    num_states: int = 8

    @property
    def context_dim(self) -> int:
        """Channels of the states of a frame."""
        return self.num_states * self.state_dim


def minimax_music3_config(shapes: Shapes) -> MiniMaxMusic3Config:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    condition_dim, state_dim, _ = shapes[STATES]
    return MiniMaxMusic3Config(
        hidden_size=shapes[f"{CELLS}project_in.weight"][0],
        num_layers=count_children(shapes, f"{CELLS}layers"),
        condition_dim=condition_dim,
        state_dim=state_dim,
        num_states=shapes[KEY][0],
    )


def windows(length: int) -> Iterator[tuple[int, int]]:
    """Yield the first cell of each window of audio of so many cells, and the one behind its last."""
    start = 0
    while start + WINDOW_CELLS < length:
        yield start, start + WINDOW_CELLS
        start += HOP_CELLS
    yield start, length


class CellNorm(nn.Module):
    """A layer norm whose factors and additions files call `gamma` and `beta`."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.gamma, self.beta = (nn.Parameter(torch.empty(hidden_size)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], self.gamma.to(x.dtype), self.beta.to(x.dtype))


class CellBlock(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.pre_norm, self.ff_norm = CellNorm(hidden_size), CellNorm(hidden_size)
        self.self_attn, self.ff = AudioSelfAttention(hidden_size), AudioFeedForward(hidden_size, 4 * hidden_size)
        self.residual = GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, AdaptiveNorm("none"))

    def forward(self, x: torch.Tensor, angles: torch.Tensor, options: Options) -> torch.Tensor:
        attended = self.self_attn(self.pre_norm(x), angles, options)
        x, normed = self.residual_norm(x, attended, None, None, norm=self.ff_norm)
        out: torch.Tensor = self.residual(x, self.ff(normed))
        return out


class CellStack(nn.Module):
    def __init__(self, config: MiniMaxMusic3Config) -> None:
        super().__init__()
        size = config.hidden_size
        self.project_in = Linear(2 * LATENT_CHANNELS + config.condition_dim, size, bias=False)
        self.project_out = Linear(size, LATENT_CHANNELS, bias=False)
        self.rotary_pos_emb = RotaryFrequencies(ROTARY_WIDTH)
        self.layers = nn.ModuleList(CellBlock(size) for _ in range(config.num_layers))

    def forward(self, x: torch.Tensor, first: torch.Tensor, options: Options) -> torch.Tensor:
        """Return [B, L, 128] of cells [B, L, C] behind the token `first` [B, D]."""
        x = torch.cat([first[:, None], self.project_in(x)], dim=1)
        angles = self.rotary_pos_emb(x.shape[1])
        for block in self.layers:
            x = block(x, angles, options)
        out: torch.Tensor = self.project_out(x)
        return out[:, 1:]


class WindowTransformer(nn.Module):
    """`forward(x [B, 128, L], time [B, D], condition [B, C, L])` -> `[B, 128, L]`, the negative of the velocity."""

    def __init__(self, config: MiniMaxMusic3Config) -> None:
        super().__init__()
        size, channels = config.hidden_size, 2 * LATENT_CHANNELS + config.condition_dim
        self.transformer = CellStack(config)
        self.timestep_features = Sinusoids(TIME_WIDTH)
        self.to_timestep_embed = nn.Sequential(Linear(TIME_WIDTH, size), nn.SiLU(), Linear(size, size))
        self.preprocess_conv = nn.Conv1d(channels, channels, 1, bias=False)
        self.postprocess_conv = nn.Conv1d(LATENT_CHANNELS, LATENT_CHANNELS, 1, bias=False)

    def time(self, timesteps: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the token [B, D] of timesteps [B]."""
        out: torch.Tensor = self.to_timestep_embed(self.timestep_features(timesteps).to(dtype))
        return out

    def forward(self, x: torch.Tensor, time: torch.Tensor, condition: torch.Tensor, options: Options) -> torch.Tensor:
        # The second part is a prompt's audio in training; nothing is given there.
        cells = torch.cat([x, torch.zeros_like(x), condition], dim=1)
        cells = self.preprocess_conv(cells) + cells
        out = self.transformer(cells.transpose(1, 2), time, options).transpose(1, 2)
        drawn: torch.Tensor = self.postprocess_conv(out) + out
        return drawn


class MiniMaxMusic3Transformer(nn.Module):
    """`forward(x [B, 128, L], timesteps [B], context [B, F, C])` -> `[B, 128, L]`.

    `timesteps` are 0 for noise and 1 for audio. Cells behind the last frame of `context` have no condition;
    `conditioning_scale` [B, 1, 1] multiplies that of the others. Built without weights being drawn when a
    `torch.device("meta")` context is open.
    """

    is_wrapped = False

    def __init__(self, config: MiniMaxMusic3Config) -> None:
        super().__init__()
        self.config = config
        self.in_channels = LATENT_CHANNELS
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        padding = NEIGHBOURS // 2
        self.latent_conditioners = nn.Sequential(
            nn.Conv1d(config.state_dim, config.condition_dim, NEIGHBOURS, padding=padding)
        )
        self.diffusion_transformer = WindowTransformer(config)
        self.cond_layer_logits = nn.Parameter(torch.empty(config.num_states))
        self.cond_layer_scale = nn.Parameter(torch.empty(1))

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.cond_layer_logits.dtype

    def condition(self, states: torch.Tensor) -> torch.Tensor:
        """Return the condition [B, C, L] of the cells that the frames of states [B, F, num_states * D] last."""
        batch, frames, _ = states.shape
        by_layer = states.view(batch, frames, self.config.num_states, self.config.state_dim)
        weights = self.cond_layer_logits.to(states.dtype).softmax(dim=0)
        mean = torch.einsum("bfsd,s->bdf", by_layer, weights) * self.cond_layer_scale.to(states.dtype)
        return functional.interpolate(self.latent_conditioners(mean), size=num_cells(frames), mode="nearest")

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        conditioning_scale: torch.Tensor,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        length = x.shape[-1]
        condition = self.condition(context) * conditioning_scale[:, :1, :1]
        condition = functional.pad(condition, (0, max(0, length - condition.shape[-1])))[..., :length]
        time = self.diffusion_transformer.time(timesteps, x.dtype)
        if length <= WINDOW_CELLS:
            velocity: torch.Tensor = self.diffusion_transformer(x, time, condition, options)
            return -velocity
        total, count = torch.zeros_like(x), x.new_zeros(length)
        for start, end in windows(length):
            total[..., start:end] -= self.diffusion_transformer(
                x[..., start:end], time, condition[..., start:end], options
            )
            count[start:end] += 1
        return total / count
