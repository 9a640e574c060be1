"""The transformer of Qwen-Image 2.1 (Qwen Team 2026): one stream of text with reference images spliced into it.

Behind the text and its images comes the image that is drawn. Text is seen causally, an image sees itself and all
before it, so that nothing sees the image that is drawn but itself. All blocks share one modulation, without shifts;
text and references are modulated as of time 0. Latents are not taken apart into patches. `B` batch, `T` tokens, `D`
width. Module names are those of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from darkroom.engine.families.qwen_image21.layers import (
    TIME_FACTOR,
    LastLayer,
    Modulation,
    Options,
    QwenImage21Config,
    Spliced,
    StreamBlock,
    TextLayers,
    TimeLayers,
)
from darkroom.engine.families.qwen_image21.prefix_states import OPTION as PREFIX_OPTION
from darkroom.engine.families.qwen_image21.prefix_states import PrefixStates
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import BlockFunction
from darkroom.engine.layers.rotary import AXES, rotations


class QwenImage21Transformer(nn.Module):
    """`forward(x [B, C, h, w], timesteps [B], context [B, L, W])` -> `[B, C, h, w]`.

    `ref_latents` are reference images [B, C, h, w]. `image_slots` are the places in the text before which they come;
    those without one come behind the text. Built without weights being drawn when a `torch.device("meta")` context is
    open.
    """

    def __init__(self, config: QwenImage21Config) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = 1
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        width = config.width
        self.time_text_embed = TimeLayers(config)
        self.txt_in = TextLayers(config)
        self.img_in = Linear(config.in_channels, width, bias=False)
        self.modulation = nn.Sequential(nn.SiLU(), Linear(width, 4 * width, bias=False))
        self.transformer_blocks = nn.ModuleList(StreamBlock(config) for _ in range(config.num_blocks))
        self.norm_out = LastLayer(config)
        self.proj_out = Linear(width, config.in_channels, bias=False)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.img_in.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        ref_latents: Sequence[torch.Tensor] = (),
        image_slots: Sequence[int] = (),
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        sequence = self._sequence(x, context, ref_latents, image_slots)
        tokens, pe = sequence.tokens, sequence.pe
        for patch in options.get("patches", {}).get("post_input", ()):
            changed = patch({"img": tokens, "pe": pe, "transformer_options": options})
            tokens, pe = changed["img"], changed.get("pe", pe)
        sequence = replace(sequence, pe=pe)
        times = (timesteps * TIME_FACTOR).to(x.dtype) / TIME_FACTOR
        time = self.time_text_embed(torch.cat([times, times.new_zeros(1)]), x.dtype)  # [B + 1, D]
        scale1, gate1, scale2, gate2 = self.modulation(time).chunk(4, dim=-1)
        modulation = [_rows(item) for item in (scale1, gate1.tanh(), scale2, gate2.tanh())]
        replaced = options.get("patches_replace", {}).get("dit", {})
        states: PrefixStates | None = options.get(PREFIX_OPTION)
        if states is not None and sequence.drawn and not _sees_tokens(options):
            known_by = [context, *ref_latents, _places_of(x, image_slots)]
            tokens = self._drawn_alone(sequence, modulation, options, states, known_by)
            out: torch.Tensor = self.proj_out(self.norm_out(tokens, time[:-1]))
            return out.transpose(1, 2).reshape(x.shape)
        for index, block in enumerate(self.transformer_blocks):
            replacement = replaced.get(("single_block", index))
            if replacement is None:
                tokens = block(tokens, modulation, sequence, options)
            else:
                given = {"img": tokens, "vec": time, "pe": pe, "transformer_options": options}
                tokens = replacement(given, {"original_block": _as_function(block, modulation, sequence)})["img"]
            for patch in options.get("patches", {}).get("single_block", ()):
                given = {"img": tokens, "x": x, "block_index": index, "transformer_options": options}
                tokens = patch(given)["img"]
        out = self.proj_out(self.norm_out(tokens[:, sequence.drawn :], time[:-1]))
        return out.transpose(1, 2).reshape(x.shape)

    def _drawn_alone(
        self,
        sequence: Spliced,
        modulation: Sequence[Modulation],
        options: Options,
        states: PrefixStates,
        known_by: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Return the tokens [B, T, D] of the drawn image, behind what is kept of those before it.

        What is not kept is computed, for the image's tokens in the same way.
        """
        prefix, drawn = sequence.split()
        before, tokens = prefix.tokens, drawn.tokens
        num_blocks = len(self.transformer_blocks)
        kept = states.of(known_by, num_blocks, 2 * num_blocks * before.numel() * before.element_size())
        is_filled = kept.is_filled
        for index, block in enumerate(self.transformer_blocks):
            if not is_filled:
                before = block(before, modulation, replace(prefix, keep=partial(kept.keep, index)), options)
            seen = kept.take(index, tokens.device)
            tokens = block(tokens, modulation, replace(drawn, before=seen), options)
        return tokens

    def _sequence(
        self, x: torch.Tensor, context: torch.Tensor, references: Sequence[torch.Tensor], slots: Sequence[int]
    ) -> Spliced:
        """Return the text with the references in their places, and behind it the image that is drawn."""
        text = self.txt_in(context)
        length = text.shape[1]
        bounds = [0, *[*slots, *[length] * len(references)][: len(references)], length]
        tokens, places, stretches = [], [], []
        place = end = 0
        for (first, last), image in zip(pairwise(bounds), [*references, x], strict=True):
            if last > first:
                counted = torch.arange(place, place + last - first, device=x.device)
                tokens.append(text[:, first:last])
                places.append(counted[:, None].expand(-1, len(AXES)))
                stretches.append((end, end + last - first, True))
                place, end = place + last - first, end + last - first
            rows, columns = image.shape[-2:]
            tokens.append(self.img_in(image.flatten(2).transpose(1, 2)).expand(x.shape[0], -1, -1))
            places.append(_places(image, place, x.shape[-2:]))
            stretches.append((end, end + rows * columns, False))
            place, end = place + max(rows, columns), end + rows * columns
        pe = rotations(torch.cat(places)[None])
        return Spliced(torch.cat(tokens, dim=1), pe, tuple(stretches), end - x.shape[-2] * x.shape[-1])


def _sees_tokens(options: Options) -> bool:
    """Return True where custom nodes have functions that are given all tokens of a block, or replace one."""
    patches = options.get("patches", {})
    return bool(
        options.get("patches_replace", {}).get("dit") or patches.get("post_input") or patches.get("single_block")
    )


def _places_of(x: torch.Tensor, slots: Sequence[int]) -> torch.Tensor:
    """Return the values that determine the tokens' positions: the generated image's size, and the slots."""
    return torch.tensor([*x.shape[-2:], *slots])


def _places(image: torch.Tensor, index: int, drawn: Sequence[int]) -> torch.Tensor:
    """Return the places [h * w, 3] of an image's cells: its index, and row and column from the drawn one's centre."""
    rows, columns = (
        torch.arange(side, device=image.device) - (side - side // 2) + 0.5 * (side % 2 - other % 2)
        for side, other in zip(image.shape[-2:], drawn, strict=True)
    )
    grid = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([torch.full_like(grid[0], index), *grid], dim=-1).flatten(0, 1)


def _rows(modulation: torch.Tensor) -> Modulation:
    """Return the modulation [B + 1, D] of time 0, which is the last row, and of the times before it: [.., 1, D]."""
    return modulation[-1:].unsqueeze(1), modulation[:-1].unsqueeze(1)


def _as_function(block: nn.Module, modulation: Sequence[Modulation], sequence: Spliced) -> BlockFunction:
    """Return a block as a function of its named inputs, as custom nodes call it."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        given = replace(sequence, pe=args["pe"])
        return {"img": block(args["img"], modulation, given, args["transformer_options"])}

    return original
