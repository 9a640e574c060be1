"""Eight clients at 512x512: one request at a time, and their steps in shared batches.

For each width of a batch that was tried: its seconds, whether rows keep their bits, and its error. These decide whether
batches are worth having on a card. A lone request in an engine that could share is compared with one that cannot.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmark.gpu_parts.bench import Bench, seconds_of
from benchmark.gpu_parts.runs import begin_prompt, prompt_engine, run_prompt
from benchmark.gpu_parts.tuning import OUTCOME
from benchmark.small_models import node
from engine import Engine

CLIENTS, ROUNDS, LONE = 8, 2, 4
STEPS, TOY_STEPS = 20, 2


def prompt(bench: Bench, seed: int) -> dict[str, Any]:
    side, steps = (64, TOY_STEPS) if bench.is_toy else (512, STEPS)
    sampling = {"seed": seed, "steps": steps, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal"}
    return {
        "1": node("DarkroomRandomCheckpoint", family="sd15", scale=bench.scale, seed=1),
        "3": node("CLIPTextEncode", clip=["1", 1], text=f"lighthouse {seed}"),
        "4": node("CLIPTextEncode", clip=["1", 1], text="blurry"),
        "5": node("EmptyLatentImage", width=side, height=side, batch_size=1),
        "9": node("KSampler", model=["1", 0], positive=["3", 0], negative=["4", 0], latent_image=["5", 0],
                  denoise=1.0, **sampling),
        "10": node("VAEDecode", samples=["9", 0], vae=["1", 2]),
        "21": node("SaveImage", images=["10", 0], filename_prefix="eight"),
    }  # fmt: skip


def measure(bench: Bench) -> None:
    figures: dict[str, float] = {}
    lone: dict[str, float] = {}
    for way, at_once in (("one_at_a_time", 1), ("shared", CLIENTS)):
        bench.attempt(way, measure_way, bench, way, at_once, figures, lone)
        bench.free()
    if len(figures) == 2:
        bench.note("ratio", figures["shared"] / figures["one_at_a_time"])
    if len(lone) == 2:
        bench.note("lone_ratio", lone["one_at_a_time"] / lone["shared"])


def measure_way(bench: Bench, way: str, at_once: int, figures: dict[str, float], lone: dict[str, float]) -> None:
    seeds = iter(range(10_000))
    with prompt_engine(bench, bench.own, runs_at_once=at_once, tuning=None) as engine:
        bench.note(f"{way}.is_tuned", adopt_tuning(bench, engine))
        tried = record_widths(engine)
        draw_all(bench, engine, seeds, CLIENTS)  # loads, and measures the widths
        rounds = 1 if bench.is_toy else ROUNDS
        seconds = seconds_of(lambda: draw_all(bench, engine, seeds, CLIENTS * rounds), bench)
        figures[way] = CLIENTS * rounds / seconds * 60
        bench.note(f"{way}.images_per_minute", figures[way])
        if engine.batcher is not None:
            bench.note("widths_tried", tried)
            bench.note("widths_used", [asdict(item) for item in engine.batcher.widths_in_use])
            bench.note("batches", asdict(engine.batch_figures))

        def alone() -> None:
            for _ in range(1 if bench.is_toy else LONE):
                run_prompt(engine, prompt(bench, next(seeds)))

        alone()
        lone[way] = seconds_of(alone, bench) / (1 if bench.is_toy else LONE)
        bench.note(f"{way}.lone_seconds", lone[way])


def draw_all(bench: Bench, engine: Engine, seeds: Any, num: int) -> None:
    for finish in [begin_prompt(engine, prompt(bench, next(seeds))) for _ in range(num)]:
        finish()


def adopt_tuning(bench: Bench, engine: Engine) -> bool:
    """Let the engine use what the part before has chosen. Return False where there is none."""
    path = bench.base / OUTCOME
    if not path.is_file():
        return False
    engine.adopt_tuning(json.loads(path.read_text(encoding="utf-8")))
    return True


def record_widths(engine: Engine) -> list[dict[str, Any]]:
    """Return a list that gets the figures of every width that the engine tries."""
    tried: list[dict[str, Any]] = []
    batcher = engine.batcher
    if batcher is not None:
        choose = batcher.choose

        def chosen(figures: Sequence[Any], own_rows: int, *given: Any) -> Any:
            tried.extend({**asdict(item), "own_rows": own_rows} for item in figures)
            return choose(figures, own_rows, *given)

        batcher.choose = chosen
    return tried
