"""A sampling run that strategies are measured with: the same latent drawn plainly and with them, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from darkroom.engine.diffusion.ksampler import fix_empty_latent_channels, sample
from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.diffusion.options import Conditioning
from darkroom.engine.tuning.choose import Measured, Names
from darkroom.engine.tuning.network_identity import NetworkIdentity, identity_of
from darkroom.engine.tuning.outcome import Fields
from darkroom.engine.tuning.run import Usage

MIN_TURNS, MAX_TURNS = 3, 9
PROMPT, NEGATIVE_PROMPT = "a lighthouse on a cliff at dawn", "blurry"
CELL_PX = 8
USUAL_STEPS = 20  # of a request, over which the time of its begin and end is divided
SEED = 1

Value = Any  # MODEL, CLIP or VAE: known by its members


class ForcedTuning(Protocol):
    """Tuning by name, as a trial uses it; `tuner.py` implements it."""

    def forced(self, names: Sequence[str]) -> AbstractContextManager[Usage]: ...

    def settle(self, names: Names, seconds: float) -> str | None: ...

    def target(self, name: str) -> str: ...


@dataclass(frozen=True, slots=True)
class TrialSize:
    """Size of the measured image and its sampling parameters."""

    width_px: int
    height_px: int
    num_steps: int
    cfg: float
    sampler_name: str
    scheduler: str
    turns_seconds: float = 1.5  # of one comparison: short runs take more turns


class Trial:
    """Sampling of one image with one model, timed. `wait` blocks until the device has computed everything."""

    def __init__(self, values: Sequence[Value], size: TrialSize, name: str, wait: Callable[[], None]) -> None:
        self._model, self._clip, self._vae = values
        self._size = size
        self._name = name
        self._wait = wait
        self._plain: torch.Tensor | None = None
        self._rounding_error = 0.0  # of the latent
        self._image_rounding_error: float | None = None
        self._inputs = self._prepare()
        self.plain_it_per_s: float | None = None

    @property
    def network(self) -> NetworkIdentity:
        denoiser = self._model.model
        return identity_of(denoiser.diffusion_model, denoiser.compute_dtype)

    @property
    def vae(self) -> str:
        """Class and shape of the VAE as one text, "" without one."""
        return "" if self._vae is None else identity_of(self._vae.first_stage_model).key

    @property
    def description(self) -> Fields:
        size = self._size
        return {
            "model": self._name, "width_px": size.width_px, "height_px": size.height_px, "steps": size.num_steps,
            "cfg": size.cfg, "sampler_name": size.sampler_name, "scheduler": size.scheduler,
        }  # fmt: skip

    def now(self) -> float:
        return time.perf_counter()

    def draw_plain(self) -> None:
        """Draw the reference, after a run that is not timed, and once more with one number rounded otherwise."""
        self._draw()
        self._plain, self.plain_it_per_s = self._draw()
        dtype = self._model.model.compute_dtype
        if dtype != torch.float32:  # whose rounding is far below any tolerance
            positive, negative, noise, latent = self._inputs
            self._inputs = positive, negative, rounded_otherwise(noise, dtype), latent
            self._rounding_error = relative_error(self._draw()[0], self._plain)
            self._inputs = positive, negative, noise, latent

    def draw(self) -> torch.Tensor:
        """Return the latent, drawn with the current tuning."""
        return self._draw()[0]

    def compare(self, names: Names, before: Names, tuner: ForcedTuning, settle_seconds: float) -> Measured:
        """Measure strategies in turns with those before the last of them was added."""
        if tuner.target(names[-1]) == "vae":
            return self._compare_images(names, before, tuner)
        return self._compare_latents(names, before, tuner, settle_seconds)

    def _compare_latents(self, names: Names, before: Names, tuner: ForcedTuning, settle_seconds: float) -> Measured:
        assert self._plain is not None
        with tuner.forced(names) as usage:
            latent, _ = self._draw()  # not timed: it prepares
        if names[-1] not in usage.used:
            return Measured(failure=usage.unused.get(names[-1], "it was not used"))
        unsettled = tuner.settle(names, settle_seconds)
        if unsettled is not None:
            return Measured(failure=unsettled)
        fast, slow = self._in_turns(names, before, tuner, lambda: self._draw()[1])
        with tuner.forced(names):
            latent, _ = self._draw()  # once more: compiled code may have taken its place since
        error = relative_error(latent, self._plain)
        return Measured(fast, slow, error, rounding_error=self._rounding_error)

    def _compare_images(self, names: Names, before: Names, tuner: ForcedTuning) -> Measured:
        with tuner.forced(names) as usage:
            image, _ = self._decode()
        if names[-1] not in usage.used:
            return Measured(failure=usage.unused.get(names[-1], "it was not used"))
        with tuner.forced(()):
            plain, _ = self._decode()
        fast, slow = self._in_turns(names, before, tuner, lambda: self._decode()[1])
        error, rounding = relative_error(image, plain), self._rounding_error_of(plain, tuner)
        return Measured(fast, slow, error, is_of_steps=False, rounding_error=rounding)

    def _rounding_error_of(self, image: torch.Tensor, tuner: ForcedTuning) -> float:
        """Return the error of the plain decoding's image with one number of the latent rounded otherwise."""
        if self._image_rounding_error is None:
            plain, dtype = self._plain, self._vae.vae_dtype
            assert plain is not None
            with tuner.forced(()):
                self._plain = rounded_otherwise(plain, dtype)
                self._image_rounding_error = relative_error(self._decode()[0], image)
            self._plain = plain
        return self._image_rounding_error

    def _in_turns(
        self, names: Names, before: Names, tuner: ForcedTuning, rate: Callable[[], float]
    ) -> tuple[float, float]:
        """Return the rates with each set of strategies, measured in turns.

        The first is the rate without, times the middle one of the turns' ratios or the ratio of the best rates,
        whichever is less: other load on the machine then makes nothing look faster than it is.
        """
        pairs: list[tuple[float, float]] = []
        began = self.now()
        least = MIN_TURNS if self._size.turns_seconds else 1
        while len(pairs) < least or (len(pairs) < MAX_TURNS and self.now() - began < self._size.turns_seconds):
            turn: dict[Names, float] = {}
            for chosen in (names, before) if len(pairs) % 2 else (before, names):
                with tuner.forced(chosen):
                    turn[chosen] = rate()
            pairs.append((turn[names], turn[before]))
        best_fast, best_slow = max(fast for fast, _ in pairs), max(slow for _, slow in pairs)
        middle = statistics.median(fast / slow for fast, slow in pairs)
        return best_slow * min(middle, best_fast / best_slow), best_slow

    def _prepare(self) -> tuple[Conditioning, Conditioning, torch.Tensor, torch.Tensor]:
        size = self._size
        empty = torch.zeros(1, 4, size.height_px // CELL_PX, size.width_px // CELL_PX)  # [B, C, h, w]
        latent = fix_empty_latent_channels(self._model, empty, CELL_PX)
        latent_format = self._model.get_model_object("latent_format")
        if latent_format.latent_dimensions == 1:
            latent = latent.flatten(2)  # [B, C, L]: audio of as many cells
        elif latent_format.num_rows is not None:
            num_columns = max(1, empty[0, 0].numel() // latent_format.num_rows)
            latent = latent.new_zeros(*latent.shape[:2], latent_format.num_rows, num_columns)
        noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(SEED))
        positive, negative = (_encode(self._clip, text) for text in (PROMPT, NEGATIVE_PROMPT))
        return positive, negative, noise, latent

    def _draw(self) -> tuple[torch.Tensor, float]:
        """Return the latent and the steps a second of a request of `USUAL_STEPS` steps.

        What comes before the end of the first step and after the last is a part of it: strategies that make tensors or
        capture graphs in each request do so there.
        """
        size, (positive, negative, noise, latent) = self._size, self._inputs
        ends: list[float] = []

        def on_step(step: int, denoised: object, x: object, total: int) -> None:
            if step in (0, total - 1):
                self._wait()
                ends.append(self.now())

        self._wait()
        began = self.now()
        drawn = sample(
            self._model, noise, size.num_steps, size.cfg, size.sampler_name, size.scheduler, positive, negative,
            latent, callback=on_step, disable_pbar=True, seed=SEED,
        )  # fmt: skip
        self._wait()
        return drawn, rate_of_request(began, ends, self.now(), size.num_steps)

    def _decode(self) -> tuple[torch.Tensor, float]:
        """Return the image and the decodings a second."""
        assert self._plain is not None
        self._wait()
        began = self.now()
        image: torch.Tensor = self._vae.decode(self._plain)
        return image, 1.0 / max(self.now() - began, 1e-9)


def rate_of_request(began: float, ends: Sequence[float], over: float, num_steps: int) -> float:
    """Return the steps a second of a request of `USUAL_STEPS` steps, from the times of one of `num_steps`.

    `ends` are those of the first and the last step. Steps between are as long as the others after the first.
    """
    if len(ends) < 2:  # a single step
        return num_steps / max(over - began, 1e-9)
    first, last = ends[0], ends[-1]
    between = (last - first) / (num_steps - 1) * (USUAL_STEPS - 1)
    return USUAL_STEPS / max((first - began) + between + (over - last), 1e-9)


def rounded_otherwise(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a copy of `x` (float32) whose largest number is the next one that `dtype` has."""
    changed = x.clone()
    numbers = changed.view(-1)
    numbers[numbers.abs().argmax()] *= 1.0 + torch.finfo(dtype).eps
    return changed


def _encode(clip: Value, text: str) -> Conditioning:
    encoded: Conditioning = [] if clip is None else clip.encode_from_tokens_scheduled(clip.tokenize(text))
    return encoded
