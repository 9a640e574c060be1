"""Sampling put together: the first noise, the mask, progress, a run that is stopped, and what is given back."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.denoiser import Denoiser, ModelConfig
from darkroom.engine.diffusion.ksampler import KSampler
from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.diffusion.nested_latent import NestedLatent, streams_of
from darkroom.engine.diffusion.sample import Guider, InpaintDenoiser, Sampler, prepare_mask
from darkroom.engine.diffusion.wrappers import OUTER_SAMPLE

SHAPE = (1, 4, 8, 12)  # [B, C, h, w]
STREAMS = [(1, 24, 2, 4, 6), (1, 32, 2, 8)]
CLEAN = torch.linspace(-1, 1, math.prod(SHAPE)).view(SHAPE)  # the scaled latent that the model denoises to


class HalfFormat(LatentFormat):
    scale_factor = 0.5


class Network(torch.nn.Module):
    """A perfect network for one image: it predicts the noise that leads to `CLEAN`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor, timesteps: torch.Tensor, *rest: Any) -> torch.Tensor:
        sigma = LEVELS.sigma(timesteps).view(-1, 1, 1, 1)
        return (x * torch.sqrt(1 + sigma**2) - CLEAN) / sigma


INNER = Denoiser(Network(), config=ModelConfig(latent_format=HalfFormat()))
LEVELS = INNER.model_sampling
TRAINED = torch.cat([LEVELS.sigmas[[999, 600, 250]], torch.zeros(1)])  # the network takes trained timesteps alone


class Model:
    """A MODEL as sampling uses it. `stops_after` calls the run is cancelled."""

    def __init__(self, stops_after: int = 1000) -> None:
        self.model_options: dict[str, Any] = {"transformer_options": {}}
        self.callbacks: Any = {}
        self.wrappers: Any = {}
        self.load_device = torch.device("cpu")
        self.memory_savings = SimpleNamespace(attention_slices=1)
        self.events: list[str] = []
        self._calls_left = stops_after

    def get_model_object(self, name: str) -> Any:
        return {"model_sampling": LEVELS, "compute_dtype": torch.float32}[name]

    @contextlib.contextmanager
    def in_use(self, *, working_bytes: int = 0, together_with: Sequence[Any] = ()) -> Iterator[Any]:
        assert working_bytes > INNER.memory_required([2, *SHAPE[1:]])
        self.events.append("loaded")
        yield INNER
        self.events.append("released")

    @contextlib.contextmanager
    def hooks_registered(self, conds: Mapping[str, Any], model_options: dict[str, Any]) -> Iterator[None]:
        yield

    def get_nested_additional_models(self) -> list[Any]:
        return []

    def memory_required(self, input_shape: Sequence[int], references: Sequence[Sequence[int]] = ()) -> float:
        self.references = [list(shape) for shape in references]
        return INNER.memory_required(input_shape, {"ref_latents": references})

    def pre_run(self) -> None:
        self.events.append("pre_run")

    def check_cancelled(self) -> None:
        self._calls_left -= 1
        if self._calls_left < 0:
            raise InterruptedError

    def cleanup(self) -> None:
        self.events.append("cleanup")


def euler(model: Any, x: torch.Tensor, sigmas: torch.Tensor, extra_args: Any, callback: Any, **_: Any) -> torch.Tensor:
    for step in range(len(sigmas) - 1):
        denoised = model(x, sigmas[step].view(1), **extra_args)
        callback({"i": step, "denoised": denoised, "x": x})
        x = denoised + (x - denoised) * sigmas[step + 1] / sigmas[step]
    return x


def guider(model: Model | None = None, cfg: float = 1.0) -> Guider:
    made = Guider(model or Model())
    made.set_conds([(torch.zeros(1, 1, 1), {})], [(torch.zeros(1, 1, 1), {})])
    made.set_cfg(cfg)
    return made


def noise() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("cfg", [1.0, 7.0])
def test_a_perfect_model_gives_its_image_unscaled(cfg: float) -> None:
    found = guider(cfg=cfg).sample(noise(), torch.zeros(SHAPE), Sampler(euler), TRAINED)
    torch.testing.assert_close(found, CLEAN / 0.5, atol=1e-5, rtol=0)


def test_levels_that_end_above_zero_leave_their_noise() -> None:
    """Without a model's error the noise of each step is the first one's, in proportion."""
    high, low = float(TRAINED[1]), float(TRAINED[2])
    found = guider().sample(noise(), torch.zeros(SHAPE), Sampler(euler), TRAINED[1:3])
    torch.testing.assert_close(found * 0.5, CLEAN + (noise() * high - CLEAN) * low / high, atol=1e-5, rtol=0)


def test_the_given_image_is_scaled_and_noised_at_the_first_level() -> None:
    seen: list[torch.Tensor] = []

    def first_only(model: Any, x: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        seen.append(x)
        return x

    given = torch.full(SHAPE, 6.0)
    guider().sample(noise(), given, Sampler(first_only), torch.tensor([2.0, 0.0]))
    guider().sample(noise(), torch.zeros(SHAPE), Sampler(first_only), torch.tensor([14.614642, 0.0]))
    torch.testing.assert_close(seen[0], given * 0.5 + noise() * 2.0)
    torch.testing.assert_close(seen[1], noise() * math.hypot(1.0, 14.614642))


def test_no_level_leaves_the_latent_as_it_is() -> None:
    given = torch.full(SHAPE, 6.0)
    model = Model()
    assert guider(model).sample(noise(), given, Sampler(euler), torch.tensor([])) is given
    assert model.events == []


def test_each_step_is_reported_with_the_number_of_steps() -> None:
    reported: list[tuple[int, int]] = []
    guider().sample(
        noise(), torch.zeros(SHAPE), Sampler(euler), torch.tensor([5.0, 2.0, 0.5, 0.0]),
        callback=lambda step, denoised, x, num_steps: reported.append((step, num_steps)),
    )  # fmt: skip
    assert reported == [(0, 3), (1, 3), (2, 3)]


def test_outside_of_the_mask_the_given_image_stays() -> None:
    mask = torch.zeros(1, 1, 64, 96)  # pixels
    mask[..., 48:] = 1.0
    given = torch.full(SHAPE, 6.0)
    found = guider().sample(noise(), given, Sampler(euler), TRAINED, denoise_mask=mask)
    torch.testing.assert_close(found[..., :6], given[..., :6], atol=1e-4, rtol=0)
    torch.testing.assert_close(found[..., 6:], CLEAN[..., 6:] / 0.5, atol=1e-5, rtol=0)


def test_the_model_sees_the_given_image_with_its_noise_outside_of_the_mask() -> None:
    seen: list[torch.Tensor] = []

    def model(x: torch.Tensor, sigma: torch.Tensor, **options: Any) -> torch.Tensor:
        seen.append(x)
        return torch.zeros_like(x)

    model_wrap: Any = model
    model_wrap.inner_model = INNER
    inpainting = InpaintDenoiser(model_wrap, torch.tensor([3.0, 0.0]))
    inpainting.noise, inpainting.latent_image = noise(), torch.full(SHAPE, 2.0)
    mask = torch.full(SHAPE, 0.25)
    found = inpainting(torch.ones(SHAPE), torch.tensor([3.0]), denoise_mask=mask)
    torch.testing.assert_close(seen[0], 0.25 + 0.75 * (2.0 + 3.0 * noise()))
    torch.testing.assert_close(found, torch.full(SHAPE, 0.75 * 2.0))


def test_a_run_that_is_stopped_or_fails_cleans_up() -> None:
    model = Model(stops_after=1)
    made = guider(model)
    with pytest.raises(InterruptedError):
        made.sample(noise(), torch.zeros(SHAPE), Sampler(euler), torch.tensor([5.0, 2.0, 0.0]))
    assert model.events == ["loaded", "pre_run", "cleanup"]
    assert made.conds == {} and made.model_options is model.model_options and made.inner_model is None


def test_a_mask_is_scaled_to_the_latent_and_repeated_over_channels_and_batch() -> None:
    mask = torch.zeros(16, 24)
    mask[:8] = 1.0
    found = prepare_mask(mask, torch.Size((3, 4, 8, 12)), torch.device("cpu"))
    expected = torch.cat([torch.ones(4, 12), torch.zeros(4, 12)])
    assert torch.equal(found, expected.expand(3, 4, 8, 12))


def test_noise_of_its_own_outside_of_the_mask_comes_from_the_next_seed() -> None:
    sampler = Sampler(euler, inpaint_options={"random": True})
    expected = torch.randn(SHAPE, generator=torch.Generator().manual_seed(8))
    assert torch.equal(sampler._inpaint_noise(noise(), seed=7), expected)
    assert torch.equal(Sampler(euler)._inpaint_noise(noise(), seed=7), noise())


@pytest.mark.parametrize(("first", "is_pure"), [(14.614642, True), (20.0, True), (14.6, False), (1.0, False)])
def test_pure_noise_is_the_highest_level_or_above(first: float, is_pure: bool) -> None:
    model_wrap = SimpleNamespace(inner_model=INNER)
    assert Sampler(euler).max_denoise(model_wrap, torch.tensor([first, 0.0])) is is_pure


@pytest.mark.parametrize(("steps", "denoise", "whole"), [(10, 0.5, 20), (7, 0.3, 23), (4, 0.999, 4)])
def test_a_partial_denoise_is_the_end_of_a_longer_schedule(steps: int, denoise: float, whole: int) -> None:
    found = KSampler(Model(), steps, "cpu", "euler", "karras", denoise).sigmas
    longer = KSampler(Model(), whole, "cpu", "euler", "karras").sigmas
    assert len(longer) == whole + 1
    assert torch.equal(found, longer[-(steps + 1) :])


def test_denoise_of_zero_has_no_level_and_two_level_samplers_lose_the_last_but_one() -> None:
    assert KSampler(Model(), 5, "cpu", "euler", "karras", 0.0).sigmas.numel() == 0
    longer = KSampler(Model(), 6, "cpu", "euler", "karras").sigmas
    found = KSampler(Model(), 5, "cpu", "dpm_2", "karras").sigmas
    assert torch.equal(found, torch.cat([longer[:5], longer[6:]]))


@pytest.mark.parametrize(
    ("given", "shapes"),
    [(torch.zeros(SHAPE), [SHAPE]), (NestedLatent([torch.zeros(1, 24, 2, 4, 6), torch.zeros(1, 32, 2, 8)]), STREAMS)],
    ids=["plain", "nested"],
)
def test_a_wrapper_of_a_run_gets_the_shapes_of_its_streams(given: Any, shapes: list[tuple[int, ...]]) -> None:
    seen: dict[str, Any] = {}

    def wrap(executor: Any, noise: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        seen.update(options)
        assert noise.numel() == sum(math.prod(shape) for shape in shapes)
        return noise

    made = guider()
    made.model_patcher.wrappers = {OUTER_SAMPLE: {"test": [wrap]}}
    found = made.sample(given, given, Sampler(euler), TRAINED)
    assert [tuple(shape) for shape in seen["latent_shapes"]] == shapes
    assert [tuple(stream.shape) for stream in streams_of(found) or [found]] == shapes


def test_reference_latents_of_all_conditions_count_in_the_estimate() -> None:
    model = Model()
    made = Guider(model)
    latents = [torch.zeros(1, 4, 6, 6), torch.zeros(1, 4, 2, 4)]
    made.set_conds(
        [(torch.zeros(1, 1, 1), {"reference_latents": latents})],
        [(torch.zeros(1, 1, 1), {"reference_latents": latents[:1]})],
    )
    made.sample(noise(), torch.zeros(SHAPE), Sampler(euler), TRAINED)
    assert model.references == [[1, 4, 6, 6], [1, 4, 2, 4], [1, 4, 6, 6]]
    plain, cells = INNER.memory_required(SHAPE), 2 * 36 + 8
    counted = INNER.memory_required(SHAPE, {"ref_latents": model.references})
    assert counted == pytest.approx(plain * (8 * 12 + cells) / (8 * 12))
