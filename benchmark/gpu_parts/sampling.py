"""Sampling with exactly the strategies that are named, timed and compared with the plain path."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmark.gpu_parts.bench import Bench
from benchmark.gpu_parts.networks import Shape, conditioning, noise_of
from darkroom.contract.quality import STRATEGIES
from darkroom.engine import Engine, EngineSettings
from darkroom.engine.diffusion.ksampler import fix_empty_latent_channels, sample
from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.families.registry import family_named
from darkroom.engine.memory import device as devices
from darkroom.engine.settings import DtypeSettings, MemorySettings
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.registry import make_strategies
from darkroom.engine.tuning.strategy import MachineFacts

GRAPHS = ("cuda_graph", "step_graph")
COMPILING = ("compiled_blocks",)
STAND_IN = "prompt_cache"  # for graphs, where there are none: as exact, and every device has it
SAMPLER = "euler"
MAX_RUNS, RUNS_SECONDS = 3, 1.5  # of one way, after the first
AUDIO_LATENTS = {
    "ace_step": (1, 8, 16, 12),
    "stable_audio": (1, 64, 24),
    "stable_audio3": (1, 256, 12),
}  # a second and less


@contextmanager
def computing_engine(
    bench: Bench, *, folder: Path | None = None, on_cpu: bool = False, dtypes: DtypeSettings | None = None,
    memory: MemorySettings | None = None,
) -> Iterator[Engine]:  # fmt: skip
    """Yield an engine whose models this thread may use: no prompt runs on its own thread meanwhile."""
    settings = EngineSettings(
        base_directory=bench.own if folder is None else folder, cpu=on_cpu or not bench.is_gpu,
        dtypes=dtypes or DtypeSettings(), memory=memory or MemorySettings(), disable_all_custom_nodes=True,
    )  # fmt: skip
    with (
        Engine(settings) as engine, torch.inference_mode(), engine.memory.device.computing(), engine.sampling.active()
    ):  # fmt: skip
        yield engine


@dataclass(slots=True)
class Drawn:
    """One sampling: the latent, the steps a second from the end of the first on, and what was used for it."""

    latent: torch.Tensor
    it_per_s: float
    first_step_seconds: float
    used: list[str] = field(default_factory=list)
    unused: Mapping[str, str] = field(default_factory=dict)


class Drawing:
    """One model with one noise and one pair of conditions, to be sampled again and again."""

    def __init__(
        self, bench: Bench, engine: Engine, model: Any, conditions: tuple[Any, Any], noise: torch.Tensor, cfg: float,
        scheduler: str, num_steps: int,
    ) -> None:  # fmt: skip
        self._bench = bench
        self._engine = engine
        self._model = model
        self._positive, self._negative = conditions
        self._noise = noise
        self._cfg = cfg
        self._scheduler = scheduler
        self._num_steps = num_steps

    @classmethod
    def of_shape(cls, bench: Bench, engine: Engine, model: Any, shape: Shape, num_steps: int) -> Drawing:
        """Return the drawing of a shape with random conditions."""
        conditions = conditioning(shape, 2), conditioning(shape, 3)
        return cls(bench, engine, model, conditions, noise_of(shape), shape.cfg, shape.scheduler, num_steps)

    @classmethod
    def of_text(
        cls, bench: Bench, engine: Engine, model: Any, clip: Any, *, family: str, side_px: int, num_steps: int
    ) -> Drawing:
        """Return the drawing of a small image with conditions of the family's own text encoders."""
        conditions = tuple(clip.encode_from_tokens_scheduled(clip.tokenize(text)) for text in ("a red fox", ""))
        cells = side_px // 8
        empty = torch.zeros(1, 4, cells, cells)
        shape = AUDIO_LATENTS.get(family) or fix_empty_latent_channels(model, empty, downscale_ratio_spacial=8).shape
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        defaults = family_named(family).default
        return cls(
            bench, engine, model, (conditions[0], conditions[1]), noise, defaults.cfg, defaults.scheduler, num_steps
        )

    def draw(self, names: Sequence[str]) -> Drawn:
        """Sample with exactly these strategies."""
        ends: list[float] = []

        def on_step(step: int, denoised: object, x: object, total: int) -> None:
            if step in (0, total - 1):
                self._bench.wait()
                ends.append(time.perf_counter())

        self._bench.wait()
        began = time.perf_counter()
        with self._engine.tuner.forced(names) as usage:
            latent = sample(
                self._model, self._noise, self._num_steps, self._cfg, SAMPLER, self._scheduler,
                self._positive, self._negative, torch.zeros_like(self._noise), callback=on_step, disable_pbar=True,
                seed=1,
            )  # fmt: skip
        rate = (self._num_steps - 1) / max(ends[-1] - ends[0], 1e-9)
        return Drawn(latent, rate, ends[0] - began, list(usage.used), dict(usage.unused))


def measure_ways(
    bench: Bench, name: str, drawing: Drawing, ways: Mapping[str, Sequence[str]], *, least_seconds: float = 3.0,
    plain: torch.Tensor | None = None,
) -> torch.Tensor | None:  # fmt: skip
    """Note each way of sampling under `name`: its rate, what the first run cost, and its error against the plain one.

    The first way is the plain one, whose latent is returned, unless `plain` is that latent.
    """
    for way, names in ways.items():
        place = f"{name}.{way}"
        drawn = bench.attempt(place, measured, bench, drawing, names, least_seconds=least_seconds)
        if drawn is None:
            continue
        first, best = drawn
        plain = best.latent if not names else plain
        found: dict[str, Any] = {"it_per_s": best.it_per_s, "first_step_seconds": first.first_step_seconds}
        found["later_first_step_seconds"] = best.first_step_seconds  # what each request pays beside its steps
        found["is_finite"] = bool(torch.isfinite(best.latent).all())
        if names:
            found |= {"strategies": list(names), "used": best.used, "unused": best.unused}
            if plain is not None:
                found["error"] = relative_error(best.latent, plain)
            if is_plain_again(names, best):
                found["not_used_it_per_s"] = found.pop("it_per_s")  # that is the plain path's once more
        bench.note(place, found)
        if not found["is_finite"]:
            bench.report.fail(place, "the latent is not finite")
    return plain


def measured(bench: Bench, drawing: Drawing, names: Sequence[str]) -> tuple[Drawn, Drawn]:
    """Return the first sampling with these strategies, which prepares, and the fastest of those after it.

    Where what is measured was not used there are none after it: the rest is known already.
    """
    first = drawing.draw(names)
    if is_plain_again(names, first):
        return first, first
    later: list[Drawn] = []
    began = time.perf_counter()
    while not later or (len(later) < MAX_RUNS and time.perf_counter() - began < RUNS_SECONDS and not bench.is_toy):
        later.append(drawing.draw(names))
    return first, max(later, key=lambda drawn: drawn.it_per_s)


def is_plain_again(names: Sequence[str], drawn: Drawn) -> bool:
    """Return True where strategies were named, and that which is measured, the last of two or any of more, not used."""
    asked = names[-1:] if len(names) <= 2 else names
    return bool(names) and not set(asked) & set(drawn.used)


def machine_facts(bench: Bench) -> MachineFacts:
    kind = torch.device(bench.device).type
    return MachineFacts(
        kind, devices.identity(bench.device).name, devices.capability(bench.device), 1, not bench.is_toy
    )


def usable_strategies(bench: Bench) -> dict[str, Any]:
    """Return the strategies of denoisers that this machine can have and that compile nothing, in their order."""
    facts, found = machine_facts(bench), make_strategies(None)
    return {
        name: found[name]
        for name in STRATEGIES
        if name not in COMPILING and found[name].target != "vae" and found[name].missing(facts) is None
    }


def together(bench: Bench, *, quality: Quality = Quality.SAME, leaving_out: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the strategies up to a quality that go with one another, those before in their order first."""
    kept: list[str] = []
    for name, strategy in usable_strategies(bench).items():
        is_wanted = name not in leaving_out and quality.allows(strategy.quality)
        if is_wanted and not any(other in strategy.conflicts for other in kept):
            kept.append(name)
    return tuple(kept)


def usual_ways(bench: Bench) -> dict[str, tuple[str, ...]]:
    """Return the ways that every network is measured in: plain, each graph, and all that go together.

    Where there are no graphs another strategy stands for them.
    """
    graphs = [name for name in GRAPHS if name in usable_strategies(bench)] or [STAND_IN]
    ways: dict[str, tuple[str, ...]] = {"plain": ()}
    ways |= {name: (name,) for name in graphs}
    everything = together(bench)
    # Both graphs at once hide which of them ran.
    ways |= {"all": everything, "all_but_step_graph": tuple(name for name in everything if name != "step_graph")}
    if bench.is_toy:
        del ways["all_but_step_graph"]
        return ways
    others = [name for name in everything if name not in GRAPHS]
    return ways | {f"graph_and_{name}": (*graphs[:1], name) for name in others}
