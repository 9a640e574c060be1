"""Draws many prompts at once with a checkpoint: the engine's loader, networks, schedule and sampler, in batches.

The engine itself draws one prompt at a time; this gives the same images in a fraction of the time, which the
evaluation of hundreds needs. What adds nothing (`networks.py`) is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from darkroom.engine.diffusion.model_sampling import DiscreteSchedule, Eps
from darkroom.engine.diffusion.noise import prepare_noise
from darkroom.engine.diffusion.samplers.ode import sample_euler
from darkroom.engine.diffusion.sigmas import normal
from darkroom.engine.families.sd15.vae_files import Sd15LatentFormat
from darkroom.engine.models.load import LoadTypes, load_checkpoint
from darkroom.engine.text.clip_tokens import ClipTokenizer
from demo.compose import Pixels
from demo.networks import rest_large_blocks, rest_large_transformers, rest_text_layers
from demo.train_diffusion import attend

SIDE, STEPS = 128, 20
OPTIONS = {"optimized_attention_override": attend}


class EpsDiscrete(DiscreteSchedule, Eps):
    """SD1.5's schedule and prediction."""


class Artist:
    """A checkpoint, ready to draw with Euler's method on the normal schedule."""

    def __init__(self, checkpoint: Path, guidance: float, device: str = "cpu") -> None:
        loaded = load_checkpoint(checkpoint, LoadTypes())
        self.unet = loaded.unet.to(device)
        self.text, self.vae = loaded.text_encoder, loaded.vae.to(device)
        rest_large_blocks(self.vae)
        rest_large_transformers(self.unet)
        rest_text_layers(self.text.encoders()["l"].transformer)
        self.guidance, self.device = guidance, device
        self.tokenizer, self.levels = ClipTokenizer(), EpsDiscrete()

    @torch.no_grad()
    def draw(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Pixels]:
        """Images [128, 128, 3], one for each prompt."""
        latents = torch.zeros(1, 4, SIDE // 8, SIDE // 8)
        noise = torch.cat([prepare_noise(latents, seed) for seed in seeds]).to(self.device)
        wanted = torch.cat([self._conditioning(prompt) for prompt in prompts])
        context = torch.cat([wanted, self._conditioning("").expand_as(wanted)]).to(self.device)

        def denoise(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
            twice, sigmas = torch.cat([x, x]), torch.cat([sigma, sigma])
            predicted = self.unet(
                self.levels.calculate_input(sigmas, twice),
                self.levels.timestep(sigmas).float(),
                context,
                transformer_options=dict(OPTIONS),
            )
            with_text, without = self.levels.calculate_denoised(sigmas, predicted, twice).chunk(2)
            return without + self.guidance * (with_text - without)

        sigmas = normal(self.levels, STEPS)
        start = self.levels.noise_scaling(sigmas[0], noise, torch.zeros_like(noise), max_denoise=True)
        drawn = Sd15LatentFormat().process_out(sample_euler(denoise, start, sigmas))
        pixels = self.vae.decode(drawn).clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)
        return list(np.asarray(pixels.permute(0, 2, 3, 1).cpu()))

    def _conditioning(self, prompt: str) -> torch.Tensor:
        """[1, 77, D]."""
        tokens = self.tokenizer.tokenize_with_weights(prompt)
        conditioning: torch.Tensor = self.text.encode_weighted(tokens, layer_idx=None, project_pooled=True)[0]
        return conditioning
