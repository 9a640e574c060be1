"""Layers of SeedVR2's transformer: video and text, each with weights of its own or with shared ones.

`B` batch, `T` tokens of a video, `L` tokens of the text, `D` hidden size, `H` heads, `W` channels of a head, `P` pairs
of channels. Module names are those of the published files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.families.seedvr2.windows import Sizes
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    Gelu,
    ResidualNorm,
    RotaryHeads,
    RotaryLayout,
)
from darkroom.engine.layers.unet_layers import Options

EPS = 1e-5
HEAD_DIM = 128
NUM_STEPS = 3  # of a modulation: shift, scale, gate
VIDEO, TEXT, SHARED = "vid", "txt", "all"  # of names in files

Rotation = tuple[torch.Tensor, torch.Tensor]  # cosines and sines [1, T, 1, W / 2] each, float32


@dataclass(frozen=True, slots=True)
class SeedVr2Config:
    """Configuration of the network.

    `num_separate` is the number of the first blocks, in which video and text have weights of their own.
    `num_frequencies` are those of an axis of the rotation. `is_relative`: a video's tokens alone are rotated, by their
    position relative to the window, and there is no norm before the output; that is the network of 7 billion weights.
    `is_gated` says that feed-forward layers have gates.
    """

    hidden_size: int = 2560
    num_layers: int = 32
    num_separate: int = 10
    intermediate_size: int = 6912
    num_frequencies: int = 21
    is_relative: bool = False
    is_gated: bool = True
    in_channels: int = 33
    out_channels: int = 16
    text_dim: int = 5120
    time_input_dim: int = 256
    positive_tokens: int = 58
    negative_tokens: int = 64

    @property
    def num_heads(self) -> int:
        return self.hidden_size // HEAD_DIM


class Streams(nn.Module):
    """One layer for the video and one for the text, or one for both.

    `has_text` False: the text has none.
    """

    def __init__(self, build: Callable[[], nn.Module], *, is_shared: bool, has_text: bool = True) -> None:
        super().__init__()
        self.is_shared = is_shared
        names = (SHARED,) if is_shared else (VIDEO, TEXT) if has_text else (VIDEO,)
        for name in names:
            self.add_module(name, build())

    @property
    def of_video(self) -> nn.Module:
        return self.get_submodule(SHARED if self.is_shared else VIDEO)

    @property
    def of_text(self) -> nn.Module:
        return self.get_submodule(SHARED if self.is_shared else TEXT)


class Modulation(nn.Module):
    """The parameters that a block adds to the modulation of the time, under files' names."""

    def __init__(self, hidden_size: int, names: tuple[str, ...]) -> None:
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.empty(hidden_size)))

    def forward(self, time: torch.Tensor, layer: str) -> tuple[torch.Tensor, ...]:
        """Return shift, scale (beyond one) and gate [B, 1, D] of a layer, as far as the block has them.

        `time` is [B, D, 3], that of the layer.
        """
        found = []
        for index, step in enumerate(("shift", "scale", "gate")):
            own = getattr(self, f"{layer}_{step}", None)
            if own is not None:
                found.append((time[..., index] + own.to(time)).unsqueeze(1))
        found[1] = found[1] - 1.0
        return tuple(found)


class Frequencies(nn.Module):
    """Frequencies of the rotation of an axis, which files have in every block."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.rope = nn.ParameterDict({"freqs": nn.Parameter(torch.empty(count))})


class WindowAttention(nn.Module):
    """Attention of each window of a video, and of the text to each window."""

    def __init__(self, config: SeedVr2Config, *, is_shared: bool) -> None:
        super().__init__()
        self.heads = config.num_heads
        hidden = config.hidden_size
        self.proj_qkv = Streams(lambda: Linear(hidden, 3 * hidden, bias=False), is_shared=is_shared)
        self.proj_out = Streams(lambda: Linear(hidden, hidden), is_shared=is_shared)
        self.norm_q, self.norm_k = (Streams(lambda: RmsNorm(HEAD_DIM, EPS), is_shared=is_shared) for _ in range(2))
        self.rope = Frequencies(config.num_frequencies)
        self.rotary_heads = RotaryHeads(RotaryLayout.PAIRS, token_dim=1, is_float32=True)

    def forward(
        self,
        video: torch.Tensor,
        text: torch.Tensor,
        rotation: Rotation,
        text_rotation: Rotation | None,
        sizes: Sizes,
        options: Options | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the attended video [B, T, D], in the order of windows as it is given, and the attended text [B, L, D].

        What the text attends to is the mean over the windows.
        """
        video_qkv = self._heads(self.proj_qkv.of_video(video), self.norm_q.of_video, self.norm_k.of_video, rotation)
        text_qkv = self._heads(self.proj_qkv.of_text(text), self.norm_q.of_text, self.norm_k.of_text, text_rotation)
        attended, seen, start = [], [], 0
        batch, num_tokens, hidden = text.shape
        for count, length in sizes:
            stop = start + count * length
            q, k, v = (
                torch.cat(
                    [
                        own[:, start:stop].view(batch, count, length, hidden),
                        others.unsqueeze(1).expand(-1, count, -1, -1),
                    ],
                    dim=2,
                ).flatten(0, 1)
                for own, others in zip(video_qkv, text_qkv, strict=True)
            )
            out = optimized_attention(q, k, v, self.heads, transformer_options=options)
            out = out.view(batch, count, length + num_tokens, hidden)
            attended.append(out[:, :, :length].reshape(batch, -1, hidden))
            seen.append(out[:, :, length:].sum(1))
            start = stop
        mean = torch.stack(seen).sum(0) / sum(count for count, _ in sizes)
        return self.proj_out.of_video(torch.cat(attended, dim=1)), mean

    def _heads(
        self, qkv: torch.Tensor, norm_q: nn.Module, norm_k: nn.Module, rotation: Rotation | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries and keys, normalised and rotated, and values, of all heads [B, n, D]."""
        q, k, v = qkv.chunk(3, dim=-1)
        q, k = (item.view(*item.shape[:2], self.heads, HEAD_DIM) for item in (q, k))
        q, k = self.rotary_heads([(q, norm_q)], [(k, norm_k)], rotation)
        return q.flatten(2), k.flatten(2), v


class GatedMlp(nn.Module):
    def __init__(self, config: SeedVr2Config) -> None:
        super().__init__()
        sizes = (config.hidden_size, config.intermediate_size)
        self.proj_in_gate, self.proj_in = (Linear(*sizes, bias=False) for _ in range(2))
        self.proj_out = Linear(*sizes[::-1], bias=False)
        self.activation = GatedActivation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.proj_out(self.activation(self.proj_in_gate(x), self.proj_in(x)))
        return out


class Mlp(nn.Module):
    def __init__(self, config: SeedVr2Config) -> None:
        super().__init__()
        self.proj_in = Linear(config.hidden_size, config.intermediate_size)
        self.proj_out = Linear(config.intermediate_size, config.hidden_size)
        self.activation = Gelu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.proj_out(self.activation(self.proj_in(x)))
        return out


class Block(nn.Module):
    """A block of both streams.

    `ends_text`: the last block, whose text is neither modulated nor changed, since nothing reads it.
    """

    def __init__(self, config: SeedVr2Config, *, is_shared: bool, ends_text: bool) -> None:
        super().__init__()
        self.ends_text = ends_text
        steps = tuple(f"{layer}_{step}" for layer in ("attn", "mlp") for step in ("shift", "scale", "gate"))
        self.attn = WindowAttention(config, is_shared=is_shared)
        self.mlp = Streams(
            lambda: GatedMlp(config) if config.is_gated else Mlp(config), is_shared=is_shared, has_text=not ends_text
        )
        self.ada = Streams(lambda: Modulation(config.hidden_size, steps), is_shared=is_shared, has_text=not ends_text)
        self.adaptive_norm, self.residual = AdaptiveNorm("rms", EPS), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self,
        video: torch.Tensor,
        text: torch.Tensor,
        time: torch.Tensor,
        tokens: tuple[torch.Tensor, torch.Tensor],
        rotations: tuple[Rotation, Rotation | None],
        sizes: Sizes,
        options: Options | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return video [B, T, D] and text [B, L, D].

        `time` [B, D, 2, 3] is the time's modulation of both layers, `tokens` order and places [T] of the windows,
        `rotations` those of the video in that order and of the text.
        """
        order, places = tokens
        ada: nn.Module = self.ada.of_video
        shift, scale, gate = ada(time[:, :, 0], "attn")
        normed = self.adaptive_norm(video, scale, shift).index_select(1, order)
        text_modulation = (None, None, None) if self.ends_text else self.ada.of_text(time[:, :, 0], "attn")
        normed_text = self.adaptive_norm(text, text_modulation[1], text_modulation[0])
        attended, seen = self.attn(normed, normed_text, *rotations, sizes, options)
        video = self._through_mlp(
            video, attended.index_select(1, places), gate, time, self.ada.of_video, self.mlp.of_video
        )
        if self.ends_text:
            return video, text
        change = self.attn.proj_out.of_text(seen)
        return video, self._through_mlp(text, change, text_modulation[2], time, self.ada.of_text, self.mlp.of_text)

    def _through_mlp(
        self,
        x: torch.Tensor,
        change: torch.Tensor,
        gate: torch.Tensor | None,
        time: torch.Tensor,
        ada: nn.Module,
        mlp: nn.Module,
    ) -> torch.Tensor:
        """Return one stream with what it attended to, behind its feed-forward layers."""
        shift, scale, inner_gate = ada(time[:, :, 1], "mlp")
        x, normed = self.residual_norm(x, change, gate, scale, shift)
        out: torch.Tensor = self.residual(x, mlp(normed), inner_gate)
        return out
