"""Guidance of LTX-2 away from a weakened network, and with scales of their own for a video and its audio.

Each of the weakened networks is evaluated once more a step, behind classifier-free guidance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from darkroom.engine.diffusion.guidance import calc_cond_batch
from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.options import Options
from darkroom.engine.diffusion.sample import Guider
from darkroom.engine.diffusion.wrappers import merge_options

REFERENCE = "ref_audio"  # an input of the network: audio of the speaker
WITHOUT_STREAMS = {"a2v_cross_attn": False, "v2a_cross_attn": False}


@dataclass(frozen=True, slots=True)
class NoiseRange:
    """Noise levels at which guidance is active, from the `highest` to the `lowest`."""

    highest: float
    lowest: float

    def has(self, sigma: torch.Tensor) -> bool:
        """Return True for levels [B] within the range."""
        return self.lowest <= float(on_host(sigma)[0]) <= self.highest


def noise_range(model_sampling: Any, start_percent: float, end_percent: float) -> NoiseRange:
    """Return the noise levels between two shares of the way."""
    highest, lowest = (float(model_sampling.percent_to_sigma(share)) for share in (start_percent, end_percent))
    return NoiseRange(highest, lowest)


def away_from(
    weakened: Callable[[Options], torch.Tensor], scale: float, levels: NoiseRange
) -> Callable[[Options], torch.Tensor]:
    """Return a function behind classifier-free guidance that goes away from what `weakened` predicts."""

    def guide(args: Options) -> torch.Tensor:
        guided: torch.Tensor = args["denoised"]
        if scale == 0 or not levels.has(args["sigma"]):
            return guided
        away: torch.Tensor = args["cond_denoised"] - weakened(args)
        return guided + away * scale

    return guide


def with_network_options(changed: Mapping[str, Any]) -> Callable[[Options], torch.Tensor]:
    """Return a prediction of the prompt with further options of the network."""

    def predict(args: Options) -> torch.Tensor:
        options = merge_options(args["model_options"], {"transformer_options": dict(changed)})
        (predicted,) = calc_cond_batch(args["model"], [args["cond"]], args["input"], args["sigma"], options)
        return predicted

    return predict


def without_reference(args: Options) -> torch.Tensor:
    """Return the prediction of the prompt without its reference audio."""
    conds = [
        {**item, "model_conds": {name: value for name, value in item["model_conds"].items() if name != REFERENCE}}
        for item in args["cond"]
    ]
    (predicted,) = calc_cond_batch(args["model"], [conds], args["input"], args["sigma"], args["model_options"])
    return predicted


class StreamsGuider(Guider):
    """Classifier-free guidance with a scale for the video and one for its audio; of a plain latent the video's."""

    def set_cfg(self, video_cfg: float, audio_cfg: float) -> None:  # type: ignore[override]
        self.video_cfg, self.audio_cfg = video_cfg, audio_cfg
        self.cfg = max(video_cfg, audio_cfg)

    def predict_noise(
        self,
        x: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict[str, object] | None = None,
        seed: int | None = None,
    ) -> torch.Tensor:
        options = model_options or {}
        if len(self.stream_shapes) < 2 or math.isclose(self.video_cfg, self.audio_cfg):
            self.cfg = self.video_cfg
            return super().predict_noise(x, timestep, options, seed)
        first = math.prod(self.stream_shapes[0][1:])  # numbers of the video

        def guided(args: Options) -> torch.Tensor:
            cond, uncond = args["cond"], args["uncond"]
            return torch.cat(
                [
                    uncond[..., part] + (cond[..., part] - uncond[..., part]) * scale
                    for part, scale in ((slice(first), self.video_cfg), (slice(first, None), self.audio_cfg))
                ],
                dim=-1,
            )

        own = {**options, "sampler_cfg_function": guided, "disable_cfg1_optimization": True}
        return super().predict_noise(x, timestep, own, seed)
