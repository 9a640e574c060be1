"""The blocks of LTX-2's transformer: a video and its audio, each with its text, and attention between both.

`B` batch, `T` tokens of a stream, `N` rows of modulation of a stream (one, one a latent frame, or one a token), `D`
hidden size of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from darkroom.engine.families.ltx2.attention import Attention
from darkroom.engine.families.ltx2.config import Ltx2Config
from darkroom.engine.families.ltx_video.transformer import FEED_FORWARD_FACTOR
from darkroom.engine.layers.feed_forward import FeedForward
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, ResidualNorm, Tables
from darkroom.engine.layers.unet_layers import Options

NORM_EPS = 1e-6
BASE_ROWS, TEXT_ROWS, CROSS_ROWS, GATE_ROWS = 6, 3, 4, 1  # of modulations

Streams = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class StreamInputs:
    """Inputs of all blocks of one stream.

    `vec` [B, N, 6 or 9 D], `cross_vec` [B, N, 4 D], `cross_gate` [B, 1, D] and `text_vec` [B, 1, 2 D] (None where text
    is not modulated by the time) are modulations by the time, to which each block adds a table of its own. `tables`
    rotate the stream's tokens, `cross_tables` those of both streams in attention between them.
    """

    context: torch.Tensor
    vec: torch.Tensor
    cross_vec: torch.Tensor
    cross_gate: torch.Tensor
    text_vec: torch.Tensor | None
    tables: Tables
    cross_tables: Tables


def modulation(table: torch.Tensor, vec: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the rows of a block's table [P, D] with those of the time [B, N, P * D] added, each [B, N, D]."""
    return torch.unbind(table.to(vec) + vec.reshape(*vec.shape[:2], table.shape[0], -1), 2)


class Modulated(nn.Module):
    """Norms and residuals of tokens, by modulations of which a latent frame's tokens may share one."""

    def __init__(self) -> None:
        super().__init__()
        self.adaptive_norm, self.residual = AdaptiveNorm("rms", NORM_EPS), GatedResidual(is_joined=True)
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def normed(self, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return the scaled and shifted norm [B, T, D]."""
        rows = _rows(x, scale)
        out: torch.Tensor = self.adaptive_norm(_by_row(x, rows), _each(scale, rows), _each(shift, rows))
        return _joined(out, rows)

    def added(self, x: torch.Tensor, change: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        """Return the sum of tokens [B, T, D] and a change of them, times a gate."""
        rows = None if gate is None else _rows(x, gate)
        out: torch.Tensor = self.residual(_by_row(x, rows), _by_row(change, rows), _each(gate, rows))
        return _joined(out, rows)

    def added_and_normed(
        self,
        x: torch.Tensor,
        change: torch.Tensor,
        gate: torch.Tensor | None,
        scale: torch.Tensor | None,
        shift: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return that sum, and its norm [B, T, D] each. Modulations have equal rows."""
        rows = next((_rows(x, item) for item in (gate, scale) if item is not None), None)
        total, norm = self.residual_norm(
            _by_row(x, rows), _by_row(change, rows), _each(gate, rows), _each(scale, rows), _each(shift, rows)
        )
        return _joined(total, rows), _joined(norm, rows)


def _rows(x: torch.Tensor, modulator: torch.Tensor) -> int | None:
    """Return the rows of a modulator [B, N, D] that several tokens share each; None for one row, or one a token."""
    rows = modulator.shape[1]
    return None if rows in (1, x.shape[1]) else rows


def _by_row(x: torch.Tensor, rows: int | None) -> torch.Tensor:
    return x if rows is None else x.reshape(x.shape[0], rows, -1, x.shape[-1])  # [B, N, T / N, D]


def _each(modulator: torch.Tensor | None, rows: int | None) -> torch.Tensor | None:
    return modulator if modulator is None or rows is None else modulator.unsqueeze(2)


def _joined(x: torch.Tensor, rows: int | None) -> torch.Tensor:
    return x if rows is None else x.flatten(1, 2)


class Ltx2Block(Modulated):
    """Self-attention and text of each stream, attention between them, feed-forward layers."""

    def __init__(self, config: Ltx2Config) -> None:
        super().__init__()
        video, audio = config.hidden_size, config.audio_hidden_size
        video_heads, audio_heads = (config.heads, config.head_dim), (config.audio_heads, config.audio_head_dim)
        kind: dict[str, Any] = {"is_gated": config.is_gated, "splits_rotation": config.rotary.splits_heads}
        self.attn1, self.attn2 = (Attention(video, video, *video_heads, **kind) for _ in range(2))
        self.audio_attn1, self.audio_attn2 = (Attention(audio, audio, *audio_heads, **kind) for _ in range(2))
        self.audio_to_video_attn = Attention(video, audio, *audio_heads, **kind)
        self.video_to_audio_attn = Attention(audio, video, *audio_heads, **kind)
        self.ff = FeedForward(video, FEED_FORWARD_FACTOR * video, has_bias=config.has_ff_bias)
        self.audio_ff = FeedForward(audio, FEED_FORWARD_FACTOR * audio, has_bias=config.has_audio_ff_bias)
        rows = BASE_ROWS + (TEXT_ROWS if config.modulates_text else 0)
        self.scale_shift_table = nn.Parameter(torch.empty(rows, video))
        self.audio_scale_shift_table = nn.Parameter(torch.empty(rows, audio))
        self.prompt_scale_shift_table = nn.Parameter(torch.empty(2, video)) if config.modulates_text else None
        self.audio_prompt_scale_shift_table = nn.Parameter(torch.empty(2, audio)) if config.modulates_text else None
        self.scale_shift_table_a2v_ca_audio = nn.Parameter(torch.empty(CROSS_ROWS + GATE_ROWS, audio))
        self.scale_shift_table_a2v_ca_video = nn.Parameter(torch.empty(CROSS_ROWS + GATE_ROWS, video))

    def forward(
        self,
        x: Streams,
        video: StreamInputs,
        audio: StreamInputs | None,
        options: Options,
        *,
        mask: torch.Tensor | None = None,
        guides: torch.Tensor | None = None,
    ) -> Streams:
        """Return video and audio [B, T, D] each. `audio` is None for a video without any.

        `mask` is added to the scores over text, `guides` to those of the video's last tokens. `options` may leave out
        a stream (`run_vx`, `run_ax`) or attention between them (`a2v_cross_attn`, `v2a_cross_attn`), and have
        `stg_skip_self_attn`: tokens then attend to nothing but themselves.
        """
        vx, ax = x
        has_video, has_audio = bool(options.get("run_vx", True)), audio is not None and options.get("run_ax", True)
        passes_values = bool(options.get("stg_skip_self_attn", False))
        if has_video:
            layers = self.attn1, self.attn2
            tables = self.scale_shift_table, self.prompt_scale_shift_table
            vx = self._own(vx, video, layers, tables, options, mask, guides, passes_values=passes_values)
        if audio is not None and has_audio:
            layers = self.audio_attn1, self.audio_attn2
            tables = self.audio_scale_shift_table, self.audio_prompt_scale_shift_table
            ax = self._own(ax, audio, layers, tables, options, mask, None, passes_values=passes_values)
        if audio is not None:
            to_video = has_video and options.get("a2v_cross_attn", True)
            to_audio = has_audio and options.get("v2a_cross_attn", True)
            vx, ax = self._between(vx, ax, video, audio, options, to_video=to_video, to_audio=to_audio)
        if has_video:
            vx = self._fed(vx, video, self.ff, self.scale_shift_table)
        if audio is not None and has_audio:
            ax = self._fed(ax, audio, self.audio_ff, self.audio_scale_shift_table)
        return vx, ax

    def _own(
        self,
        x: torch.Tensor,
        given: StreamInputs,
        layers: tuple[Attention, Attention],
        tables: tuple[torch.Tensor, torch.Tensor | None],
        options: Options,
        mask: torch.Tensor | None,
        guides: torch.Tensor | None,
        *,
        passes_values: bool,
    ) -> torch.Tensor:
        """Return a stream after self-attention and its text."""
        (own, of_text), (table, text_table) = layers, tables
        rows = modulation(table, given.vec)
        shift, scale, gate = rows[:3]
        normed = self.normed(x, scale, shift)
        attended = own(normed, normed, given.tables, guides=guides, options=options, passes_values=passes_values)
        context = given.context
        if text_table is None:
            x, normed = self.added_and_normed(x, attended, gate, None, None)
            return self.added(x, of_text(normed, context, mask=mask, options=options))
        shift, scale, text_gate = rows[BASE_ROWS:]
        x, normed = self.added_and_normed(x, attended, gate, scale, shift)
        text_rows = text_table.to(context) if given.text_vec is None else modulation(text_table, given.text_vec)
        context = context * (1 + text_rows[1]) + text_rows[0]
        return self.added(x, of_text(normed, context, mask=mask, options=options), text_gate)

    def _between(
        self,
        vx: torch.Tensor,
        ax: torch.Tensor,
        video: StreamInputs,
        audio: StreamInputs,
        options: Options,
        *,
        to_video: bool,
        to_audio: bool,
    ) -> Streams:
        """Return both streams after attention of each to the other. The audio sees the video that has seen it."""
        of_video = modulation(self.scale_shift_table_a2v_ca_video[:CROSS_ROWS], video.cross_vec)
        of_audio = modulation(self.scale_shift_table_a2v_ca_audio[:CROSS_ROWS], audio.cross_vec)
        if to_video:
            queries, keys = self.normed(vx, *of_video[:2]), self.normed(ax, *of_audio[:2])
            attended = self.audio_to_video_attn(queries, keys, video.cross_tables, audio.cross_tables, options=options)
            (gate,) = modulation(self.scale_shift_table_a2v_ca_video[CROSS_ROWS:], video.cross_gate)
            vx = self.added(vx, attended, gate)
        if to_audio:
            queries, keys = self.normed(ax, *of_audio[2:]), self.normed(vx, *of_video[2:])
            attended = self.video_to_audio_attn(queries, keys, audio.cross_tables, video.cross_tables, options=options)
            (gate,) = modulation(self.scale_shift_table_a2v_ca_audio[CROSS_ROWS:], audio.cross_gate)
            ax = self.added(ax, attended, gate)
        return vx, ax

    def _fed(self, x: torch.Tensor, given: StreamInputs, ff: FeedForward, table: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = modulation(table, given.vec)[3:BASE_ROWS]
        return self.added(x, ff(self.normed(x, scale, shift)), gate)


def as_function(block: nn.Module) -> Callable[..., dict[str, Streams]]:
    """Return a block in the form in which custom nodes call it: both streams are `img`."""

    def original(args: Mapping[str, Any]) -> dict[str, Streams]:
        inputs = [
            StreamInputs(
                args[f"{side}_context"], args[f"{side}_timestep"], args[f"{side}_cross_scale_shift_timestep"],
                args[f"{side}_cross_gate_timestep"], args.get(f"{side}_prompt_timestep"), args[f"{side}_pe"],
                args[f"{side}_cross_pe"],
            )
            for side in ("v", "a")
            if args.get(f"{side}_context") is not None
        ]  # fmt: skip
        audio = inputs[1] if len(inputs) > 1 else None
        out = block(
            args["img"], inputs[0], audio, args["transformer_options"], mask=args.get("attention_mask"),
            guides=args.get("self_attention_mask"),
        )  # fmt: skip
        return {"img": out}

    return original


def as_arguments(x: Streams, video: StreamInputs, audio: StreamInputs | None, options: Options, **shared: Any) -> Any:
    """Return the arguments of a block in that form. `shared` are the masks."""
    args: dict[str, Any] = {"img": x, "transformer_options": options, **shared}
    for side, given in (("v", video), ("a", audio)):
        args |= {
            f"{side}_context": None if given is None else given.context,
            f"{side}_timestep": None if given is None else given.vec,
            f"{side}_pe": None if given is None else given.tables,
            f"{side}_cross_pe": None if given is None else given.cross_tables,
            f"{side}_cross_scale_shift_timestep": None if given is None else given.cross_vec,
            f"{side}_cross_gate_timestep": None if given is None else given.cross_gate,
            f"{side}_prompt_timestep": None if given is None else given.text_vec,
        }
    return args
