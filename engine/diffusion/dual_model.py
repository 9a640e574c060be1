"""A guider whose negative side is predicted by another MODEL."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import Condition
from darkroom.engine.diffusion.guidance import calc_cond_batch, cfg_function
from darkroom.engine.diffusion.sample import Guider, SampledModel


class DualModelGuider(Guider):
    """Classifier-free guidance over two models, both on the device while one samples.

    Options of `model` hold for both. Where they share weights, the negative side has those of `model` with its patches,
    as in ComfyUI.
    """

    def __init__(self, model_patcher: SampledModel, negative_model: SampledModel) -> None:
        super().__init__(model_patcher)
        self.negative_model = negative_model
        self._negative_network: Any = None
        self._negative_conds: list[Condition] = []
        self._has_negative = False  # a run that begins with a scale of 1 has no negative side at any step

    @contextmanager
    def _others_in_use(self) -> Iterator[None]:
        """Keep the negative side's model on its device, unless the scale of 1 leaves that side out."""
        self._has_negative = not math.isclose(self.cfg, 1.0)
        if not self._has_negative or self._shares_weights:
            yield
            return
        with self.negative_model.in_use() as network:
            self._negative_network = network
            try:
                self.negative_model.pre_run()
                yield
            finally:
                self.negative_model.cleanup()
                self._negative_network, self._negative_conds = None, []

    @property
    def _shares_weights(self) -> bool:
        ours, theirs = (getattr(item, "weights", item) for item in (self.model_patcher, self.negative_model))
        return ours is theirs

    def _other_models(self) -> list[object]:
        others = super()._other_models()
        return others if self._negative_network is None else [*others, self.negative_model]

    def _prepare(
        self,
        noise: torch.Tensor,
        latent_image: torch.Tensor,
        device: torch.device,
        denoise_mask: torch.Tensor | None,
        seed: int | None,
    ) -> torch.Tensor:
        if self._negative_network is not None:
            sides = {"negative": [dict(item) for item in self.conds["negative"]]}
            _, prepared = self._prepared_for(
                self._negative_network, sides, noise, latent_image, device, denoise_mask, seed
            )
            self._negative_conds = prepared["negative"]
        return super()._prepare(noise, latent_image, device, denoise_mask, seed)

    def predict_noise(
        self,
        x: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict[str, object] | None = None,
        seed: int | None = None,
    ) -> torch.Tensor:
        options = model_options or {}
        positive: Sequence[Condition] = self.conds["positive"]
        (denoised,) = calc_cond_batch(self.inner_model, [positive], x, timestep, options)
        network = self.inner_model if self._shares_weights and self._has_negative else self._negative_network
        is_left_out = math.isclose(self.cfg, 1.0) and not options.get("disable_cfg1_optimization", False)
        if network is None or is_left_out:
            return denoised
        negative = self.conds["negative"] if self._shares_weights else self._negative_conds
        (opposite,) = calc_cond_batch(network, [negative], x, timestep, options)
        return cfg_function(
            self.inner_model, denoised, opposite, self.cfg, x, timestep, options, cond=positive, uncond=negative
        )
