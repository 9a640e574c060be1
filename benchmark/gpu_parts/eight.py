"""Eight clients at 512x512: one request at a time, and their steps in shared batches.

For each width of a batch that was tried: its seconds, whether rows keep their bits, and its error. These decide whether
batches are worth having on a card, and at which quality: `same` shares widths that keep every bit, `close` others, too.
A lone request in an engine that could share is compared with one that cannot.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmark.gpu_parts.bench import Bench, seconds_of
from benchmark.gpu_parts.load import FILE, checkpoint_path, write
from benchmark.gpu_parts.runs import begin_prompt, prompt_engine, run_prompt
from benchmark.gpu_parts.tuning import OUTCOME
from benchmark.small_models import node
from darkroom.engine import Engine
from darkroom.engine.tuning.batching.batcher import StepBatcher

CLIENTS, ROUNDS, LONE = 8, 2, 4
STEPS, TOY_STEPS = 20, 2
CLOSE = "close"  # the quality


def prompt(bench: Bench, seed: int) -> dict[str, Any]:
    side, steps = (64, TOY_STEPS) if bench.is_toy else (512, STEPS)
    sampling = {"seed": seed, "steps": steps, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal"}
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name=FILE),  # runs share the networks of a file, not random ones
        "3": node("CLIPTextEncode", clip=["1", 1], text=f"lighthouse {seed}"),
        "4": node("CLIPTextEncode", clip=["1", 1], text="blurry"),
        "5": node("EmptyLatentImage", width=side, height=side, batch_size=1),
        "9": node("KSampler", model=["1", 0], positive=["3", 0], negative=["4", 0], latent_image=["5", 0],
                  denoise=1.0, **sampling),
        "10": node("VAEDecode", samples=["9", 0], vae=["1", 2]),
        "21": node("SaveImage", images=["10", 0], filename_prefix="eight"),
    }  # fmt: skip


def measure(bench: Bench) -> None:
    if bench.attempt("write", write, bench, "sd15", checkpoint_path(bench)) is None:
        return
    figures: dict[str, float] = {}
    lone: dict[str, float] = {}
    for way, at_once in (("one_at_a_time", 1), ("shared", CLIENTS)):
        bench.attempt(way, measure_way, bench, way, at_once, figures, lone)
        bench.free()
    if {"one_at_a_time", "shared"} <= figures.keys():
        bench.note("ratio", figures["shared"] / figures["one_at_a_time"])
    if {"one_at_a_time", CLOSE} <= figures.keys():
        bench.note("close_ratio", figures[CLOSE] / figures["one_at_a_time"])
    if len(lone) == 2:
        bench.note("lone_ratio", lone["one_at_a_time"] / lone["shared"])


def measure_way(bench: Bench, way: str, at_once: int, figures: dict[str, float], lone: dict[str, float]) -> None:
    seeds = iter(range(10_000))
    with prompt_engine(bench, bench.base, runs_at_once=at_once, tuning=None) as engine:
        bench.note(f"{way}.is_tuned", adopt_tuning(bench, engine))
        tried = record_widths(engine)
        draw_all(bench, engine, seeds, CLIENTS)  # loads, and measures the widths
        rounds = 1 if bench.is_toy else ROUNDS
        seconds = seconds_of(lambda: draw_all(bench, engine, seeds, CLIENTS * rounds), bench)
        figures[way] = CLIENTS * rounds / seconds * 60
        bench.note(f"{way}.images_per_minute", figures[way])
        if engine.runs.batcher is not None:
            bench.note("widths_tried", tried)
            bench.note("widths_used", [asdict(item) for item in engine.runs.batcher.widths_in_use])
            bench.note("batches", asdict(engine.runs.batch_figures))

        def alone() -> None:
            for _ in range(1 if bench.is_toy else LONE):
                run_prompt(engine, prompt(bench, next(seeds)))

        alone()
        lone[way] = seconds_of(alone, bench) / (1 if bench.is_toy else LONE)
        bench.note(f"{way}.lone_seconds", lone[way])
        if engine.runs.batcher is not None:
            bench.attempt(CLOSE, measure_close, bench, engine, engine.runs.batcher, seeds, rounds, figures)


def measure_close(
    bench: Bench, engine: Engine, batcher: StepBatcher, seeds: Any, rounds: int, figures: dict[str, float]
) -> None:
    """Note the images a minute of the quality that shares widths without equal bits, too."""
    draw_all(bench, engine, seeds, CLIENTS, CLOSE)  # measures the widths
    seconds = seconds_of(lambda: draw_all(bench, engine, seeds, CLIENTS * rounds, CLOSE), bench)
    figures[CLOSE] = CLIENTS * rounds / seconds * 60
    bench.note(f"{CLOSE}.images_per_minute", figures[CLOSE])
    bench.note(f"{CLOSE}.batches", asdict(engine.runs.batch_figures))
    bench.note(f"{CLOSE}.widths_used", [asdict(item) for item in batcher.widths_in_use])


def draw_all(bench: Bench, engine: Engine, seeds: Any, num: int, quality: str | None = None) -> None:
    for finish in [begin_prompt(engine, prompt(bench, next(seeds)), quality) for _ in range(num)]:
        finish()


def adopt_tuning(bench: Bench, engine: Engine) -> bool:
    """Let the engine use what the part before has chosen. Return False where there is none."""
    path = bench.base / OUTCOME
    if not path.is_file():
        return False
    engine.tuning.adopt(json.loads(path.read_text(encoding="utf-8")))
    return True


def record_widths(engine: Engine) -> list[dict[str, Any]]:
    """Return a list that gets the figures of every width that the engine tries."""
    tried: list[dict[str, Any]] = []
    batcher = engine.runs.batcher
    if batcher is not None:
        choose = batcher.choose

        def chosen(figures: Sequence[Any], own_rows: int, *given: Any) -> Any:
            tried.extend({**asdict(item), "own_rows": own_rows} for item in figures)
            return choose(figures, own_rows, *given)

        batcher.choose = chosen
    return tried
