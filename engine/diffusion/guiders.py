"""Guiders beyond classifier-free guidance of two sides: none, three sides, and a negative that stays perpendicular.

They take the same conditions and models as `sample.Guider`; shapes as there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import Condition
from darkroom.engine.diffusion.guidance import calc_cond_batch, cfg_function
from darkroom.engine.diffusion.guidance_rules import perpendicular_negative
from darkroom.engine.diffusion.options import Conditioning
from darkroom.engine.diffusion.sample import Guider

Side = Sequence[Condition] | None


def _as_negative(conditioning: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return CONDITIONING that the network takes as the negative side."""
    return [[tokens, {**options, "prompt_type": "negative"}] for tokens, options in conditioning]


class BasicGuider(Guider):
    """One conditioning, no guidance."""

    def set_conds(self, positive: object) -> None:  # type: ignore[override]  # ComfyUI's guiders differ in what they take
        self.inner_set_conds({"positive": positive})


class DualCfgGuider(Guider):
    """Two conditionings and a negative: Brooks et al. 2022 (InstructPix2Pix, arXiv 2211.09800), eq. 3, in x0.

    Regular: guidance (scale 2) from the negative to the second, plus scale 1 times the way from there to the first.
    Nested: guidance (scale 1) from the second to the first, then scale 2 from the negative to that.
    """

    def set_conds(self, positive: Conditioning, middle: Conditioning, negative: Conditioning) -> None:  # type: ignore[override]
        self.inner_set_conds({"positive": positive, "middle": _as_negative(middle), "negative": negative})

    def set_cfg(self, cfg_1: float, cfg_2: float, *, nested: bool = False) -> None:  # type: ignore[override]
        self.cfg_1, self.cfg_2, self.nested = cfg_1, cfg_2, nested

    def predict_noise(
        self,
        x: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict[str, object] | None = None,
        seed: int | None = None,
    ) -> torch.Tensor:
        options = model_options or {}
        sides: list[Side] = [self.conds.get(name) for name in ("negative", "middle", "positive")]
        negative, middle, positive = sides
        if self.nested:
            out = calc_cond_batch(self.inner_model, sides, x, timestep, options)
            inner = cfg_function(
                self.inner_model, out[2], out[1], self.cfg_1, x, timestep, options, cond=positive, uncond=middle
            )
            return out[0] + self.cfg_2 * (inner - out[0])
        if not options.get("disable_cfg1_optimization", False) and math.isclose(self.cfg_2, 1.0):
            negative = None
            middle = None if math.isclose(self.cfg_1, 1.0) else middle
        out = calc_cond_batch(self.inner_model, [negative, middle, positive], x, timestep, options)
        outer = cfg_function(
            self.inner_model, out[1], out[0], self.cfg_2, x, timestep, options, cond=middle, uncond=negative
        )
        return outer + (out[2] - out[1]) * self.cfg_1


class PerpNegGuider(Guider):
    """`perpendicular_negative` with all three sides in one call of the network."""

    def set_conds(self, positive: Conditioning, negative: Conditioning, empty: Conditioning) -> None:  # type: ignore[override]
        self.inner_set_conds({"positive": positive, "empty_negative_prompt": _as_negative(empty), "negative": negative})

    def set_cfg(self, cfg: float, neg_scale: float) -> None:  # type: ignore[override]
        self.cfg, self.neg_scale = cfg, neg_scale

    def predict_noise(
        self,
        x: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict[str, object] | None = None,
        seed: int | None = None,
    ) -> torch.Tensor:
        options: Mapping[str, Any] = model_options or {}
        positive, negative = self.conds.get("positive"), self.conds.get("negative")
        empty = self.conds.get("empty_negative_prompt")
        if not options.get("disable_cfg1_optimization", False) and math.isclose(self.neg_scale, 0.0):
            negative = None
            empty = None if math.isclose(self.cfg, 1.0) else empty
        conds: list[Side] = [positive, negative, empty]
        out = calc_cond_batch(self.inner_model, conds, x, timestep, options)
        common = {
            "input": x, "sigma": timestep, "model": self.inner_model, "model_options": options, "cond_scale": self.cfg,
        }  # fmt: skip
        for function in options.get("sampler_pre_cfg_function", ()):
            out = function({**common, "conds": conds, "conds_out": out, "timestep": timestep})
        result = perpendicular_negative(out[0], out[1], out[2], self.neg_scale, self.cfg)
        for function in options.get("sampler_post_cfg_function", ()):
            result = function(
                {
                    **common,
                    "denoised": result,
                    "cond": positive,
                    "uncond": negative,
                    "cond_denoised": out[0],
                    "uncond_denoised": out[1],
                    "empty_cond": empty,
                    "empty_cond_denoised": out[2],
                }  # fmt: skip
            )
        return result
