"""The start-up benchmark: which prompts to send to the engine, and what their times mean. Pure.

The workload is Stable Diffusion 1.5 text-to-image through the engine's own queue, so what is measured is what jobs get.
A checkpoint is used only where it has SD1.5's 320 base channels (`CheckpointFact`, which the caller gets from the
engine); otherwise `DarkroomRandomCheckpoint` makes the full-size network with random weights on the device, at the same
cost per step and without a download. A CPU would need minutes for that, so there the network and the picture shrink
until the whole benchmark stays below five seconds, and the report says so.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

SD15_BASE_CHANNELS: Final = 320
CPU_BUDGET_SECONDS: Final = 5.0

# On two cores these settings took 1.3 s with the warm-up, of which one run 0.1 s; slower and busier machines need room.
CPU_SIZE_PX: Final = 128
CPU_STEPS: Final = 4
CPU_SCALE: Final = "small"
GPU_SCALE: Final = "full"


class Wanted(Protocol):
    """The settings this reads; `BenchmarkConfig` of the front is one."""

    @property
    def width_px(self) -> int: ...
    @property
    def height_px(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def checkpoint(self) -> str: ...


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CheckpointFact(_Data):
    """A checkpoint the engine has, and the base channels of its UNet (None: unknown)."""

    name: str
    base_channels: int | None = None


class DeviceFact(_Data):
    """The device the engine runs on, as `/system_stats` tells: `kind` is its `type` ("cuda", "cpu", ...)."""

    name: str
    kind: str

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"


class BenchmarkSettings(_Data):
    """What was run: pixels, steps, and the network."""

    width_px: int
    height_px: int
    num_steps: int
    checkpoint: str = Field(description="A file name, or `random` for a network with random weights.")
    scale: str | None = Field(description="Size of the random network; null with a checkpoint.")


class BenchmarkPlan(_Data):
    """The prompts to send, in order: the warm-up first, whose time does not count."""

    device: DeviceFact
    settings: BenchmarkSettings
    shrunk: str | None
    prompt_text: str
    seed: int
    warm_up: dict[str, Any]
    timed: tuple[dict[str, Any], ...]

    @property
    def cache_key(self) -> str:
        """Equal for runs whose results may stand for one another."""
        settings = self.settings
        network = f"{settings.checkpoint}:{settings.scale or 'file'}"
        size = f"{settings.width_px}x{settings.height_px}x{settings.num_steps}"
        return f"{self.device.kind}|{self.device.name}|{network}|{size}"


class RunTiming(_Data):
    """One timed prompt: from the submission to its end, and of that the sampling (None where it was not seen)."""

    total_seconds: float = Field(gt=0)
    sampling_seconds: float | None = Field(default=None, gt=0)


class BenchmarkReport(_Data):
    """What the machine does. `its_per_second` counts sampling steps; a report with verdict `pass` always has it."""

    verdict: Literal["pass", "skipped", "failed"]
    reason: str | None = None
    its_per_second: float | None = None
    best_its_per_second: float | None = None
    seconds_per_picture: float | None = None
    total_seconds: float | None = None
    num_runs: int = 0
    steps: int | None = None
    device: DeviceFact | None = None
    settings: BenchmarkSettings | None = None
    prompt: str | None = None
    seed: int | None = None
    shrunk: str | None = None
    cache_key: str | None = None


def parse_prompts(text: str) -> tuple[str, ...]:
    """The prompts of `misc/test_prompts.txt`: one a line, empty lines and lines that start with # left out."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def plan(
    wanted: Wanted,
    device: DeviceFact,
    checkpoints: Sequence[CheckpointFact],
    prompts: Sequence[str],
    rng: random.Random,
    *,
    has_random_checkpoint: bool = True,
    num_runs: int | None = None,
) -> BenchmarkPlan | None:
    """The benchmark for this machine, or None if it can have none: neither a full-size checkpoint nor our node.

    `prompts` may be empty (a plain text is used then). `num_runs` None: three on a GPU, one on a CPU.
    """
    checkpoint = None if device.is_cpu else choose_checkpoint(wanted.checkpoint, checkpoints)
    if checkpoint is None and not has_random_checkpoint:
        return None
    settings = _settings_for(wanted, device, checkpoint)
    text = rng.choice(list(prompts)) if prompts else "a photograph"
    seed = rng.randrange(2**32)
    runs = num_runs if num_runs is not None else (1 if device.is_cpu else 3)
    # The warm-up has the timed runs' shapes, so kernels are chosen and memory is held before the clock starts; seeds
    # differ so that no run is answered from the engine's cache.
    built = [_prompt(settings, text, (seed + index) % 2**32) for index in range(runs + 1)]
    return BenchmarkPlan(
        device=device,
        settings=settings,
        shrunk=_why_shrunk(wanted, device, settings),
        prompt_text=text,
        seed=seed,
        warm_up=built[0],
        timed=tuple(built[1:]),
    )


def choose_checkpoint(wanted: str, checkpoints: Sequence[CheckpointFact]) -> str | None:
    """The named checkpoint, else the first, of those with SD1.5's full width; None if there is none."""
    full = [fact.name for fact in checkpoints if fact.base_channels == SD15_BASE_CHANNELS]
    if wanted:
        return wanted if wanted in full else None
    return full[0] if full else None


def report(plan: BenchmarkPlan, timings: Sequence[RunTiming]) -> BenchmarkReport:
    """The report of a plan whose timed prompts took `timings`. Without any the verdict is `failed`.

    Steps per second count the sampling time where it was seen, else the whole run, which understates them.
    """
    if not timings:
        return failed("No run of the benchmark succeeded", plan)
    steps = plan.settings.num_steps
    rates = [steps / (timing.sampling_seconds or timing.total_seconds) for timing in timings]
    totals = [timing.total_seconds for timing in timings]
    return BenchmarkReport(
        verdict="pass",
        its_per_second=statistics.median(rates),
        best_its_per_second=max(rates),
        seconds_per_picture=statistics.median(totals),
        total_seconds=sum(totals),
        num_runs=len(timings),
        **_said_of(plan),
    )


def failed(reason: str, plan: BenchmarkPlan | None = None) -> BenchmarkReport:
    return BenchmarkReport(verdict="failed", reason=reason, **(_said_of(plan) if plan else {}))


def skipped(reason: str, device: DeviceFact | None = None) -> BenchmarkReport:
    """None was run, and the worker may serve: switched off, or a foreign engine that has nothing to run it on."""
    return BenchmarkReport(verdict="skipped", reason=reason, device=device)


def _said_of(plan: BenchmarkPlan) -> dict[str, Any]:
    return {
        "steps": plan.settings.num_steps,
        "device": plan.device,
        "settings": plan.settings,
        "prompt": plan.prompt_text,
        "seed": plan.seed,
        "shrunk": plan.shrunk,
        "cache_key": plan.cache_key,
    }


def _settings_for(wanted: Wanted, device: DeviceFact, checkpoint: str | None) -> BenchmarkSettings:
    if device.is_cpu:
        return BenchmarkSettings(
            width_px=min(wanted.width_px, CPU_SIZE_PX),
            height_px=min(wanted.height_px, CPU_SIZE_PX),
            num_steps=min(wanted.num_steps, CPU_STEPS),
            checkpoint="random",
            scale=CPU_SCALE,
        )
    return BenchmarkSettings(
        width_px=wanted.width_px,
        height_px=wanted.height_px,
        num_steps=wanted.num_steps,
        checkpoint=checkpoint or "random",
        scale=None if checkpoint else GPU_SCALE,
    )


def _why_shrunk(wanted: Wanted, device: DeviceFact, settings: BenchmarkSettings) -> str | None:
    if not device.is_cpu:
        return None
    return (
        f"On a CPU the benchmark stays below {CPU_BUDGET_SECONDS:g} s: a {settings.scale} network at "
        f"{settings.width_px}x{settings.height_px}, {settings.num_steps} steps, instead of the full one at "
        f"{wanted.width_px}x{wanted.height_px}, {wanted.num_steps} steps. Not comparable with a GPU's figures."
    )


def _prompt(settings: BenchmarkSettings, text: str, seed: int) -> dict[str, Any]:
    def node(class_type: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"class_type": class_type, "inputs": dict(inputs)}

    source = (
        node("CheckpointLoaderSimple", {"ckpt_name": settings.checkpoint})
        if settings.scale is None
        else node("DarkroomRandomCheckpoint", {"family": "sd15", "scale": settings.scale})
    )
    size = {"width": settings.width_px, "height": settings.height_px, "batch_size": 1}
    sampling = {
        "seed": seed,
        "steps": settings.num_steps,
        "cfg": 7.5,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
        "model": ["4", 0],
        "positive": ["6", 0],
        "negative": ["7", 0],
        "latent_image": ["5", 0],
    }
    return {
        "3": node("KSampler", sampling),
        "4": source,
        "5": node("EmptyLatentImage", size),
        "6": node("CLIPTextEncode", {"text": text, "clip": ["4", 1]}),
        "7": node("CLIPTextEncode", {"text": "blurry, low quality", "clip": ["4", 1]}),
        "8": node("VAEDecode", {"samples": ["3", 0], "vae": ["4", 2]}),
        "9": node("PreviewImage", {"images": ["8", 0]}),
    }
