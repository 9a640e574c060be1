"""Guidance away from a transformer without some of its blocks (Stability AI's skip-layer guidance).

Shapes as in `guidance.py`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch

from darkroom.engine.diffusion.guidance import calc_cond_batch
from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.options import OptionDict, Options
from darkroom.engine.diffusion.wrappers import merge_options


def layer_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers in a text, whatever stands between them."""
    return tuple(int(number) for number in re.findall(r"\d+", text))


@dataclass(frozen=True, slots=True)
class SkippedLayers:
    """Blocks that are left out between two noise levels, from `highest` down to `lowest`.

    `double` are the blocks of two streams, `single` those of one.
    """

    double: tuple[int, ...]
    single: tuple[int, ...]
    highest: float
    lowest: float

    def applies(self, sigma: torch.Tensor) -> bool:
        return self.lowest <= float(on_host(sigma)[0]) <= self.highest

    def options(self, model_options: Options) -> OptionDict:
        """Return the options of a model with these blocks replaced by nothing."""
        blocks = [("double_block", index) for index in self.double] + [("single_block", index) for index in self.single]
        replaced = {"patches_replace": {"dit": dict.fromkeys(blocks, _skip)}}
        return merge_options(model_options, {"transformer_options": replaced})

    def guide(self, args: Options, scale: float, rescaling: float) -> torch.Tensor:
        """Return the guided latent [B, C, h, w] moved away from what the network gives without the blocks.

        With `rescaling` (0..1) its deviation moves towards that of the positive side.
        """
        guided: torch.Tensor = args["denoised"]
        if scale <= 0 or not self.applies(args["sigma"]):
            return guided
        options = self.options(args["model_options"])
        (skipped,) = calc_cond_batch(args["model"], [args["cond"]], args["input"], args["sigma"], options)
        positive: torch.Tensor = args["cond_denoised"]
        guided = guided + (positive - skipped) * scale
        if math.isclose(rescaling, 0.0):
            return guided
        return guided * (rescaling * (positive.std() / guided.std()) + (1 - rescaling))

    def sides(self, args: Options) -> list[torch.Tensor]:
        """Return both sides' predictions, the negative one without the blocks."""
        model, x, sigma, options = args["model"], args["input"], args["sigma"], args["model_options"]
        cond, uncond = args["conds"]
        if uncond is None or not self.applies(sigma):
            return calc_cond_batch(model, [cond, uncond], x, sigma, options)
        positive, _ = calc_cond_batch(model, [cond, None], x, sigma, options)
        _, negative = calc_cond_batch(model, [None, uncond], x, sigma, self.options(options))
        return [positive, negative]


def _skip(args: OptionDict, extra: Options) -> OptionDict:
    return args
