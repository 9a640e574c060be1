"""The engine's own measurement of all strategies with SD1.5, within this part's time; compiled blocks come last."""

from __future__ import annotations

import json
from typing import Any

from benchmark.gpu_parts.bench import Bench
from benchmark.tuning import COMPILED, table
from darkroom.contract.quality import STRATEGIES
from darkroom.engine import Engine, EngineSettings

OUTCOME = "tuning_outcome.json"  # in the folder that the parts share: later parts use the choice
COMPILED_SHARE = 0.45  # of the part's time that is left for compiling
TOY_STEPS, STEPS = 2, 20


def measure(bench: Bench) -> None:
    quick = tuple(name for name in STRATEGIES if name != COMPILED)
    budget = bench.left_seconds * (1.0 if bench.is_toy else 1.0 - COMPILED_SHARE)
    outcome = bench.attempt("strategies", measured, bench, quick, budget, 5.0)
    if outcome is not None:
        (bench.base / OUTCOME).write_text(json.dumps(outcome), encoding="utf-8")
        note_outcome(bench, outcome)
        print(table(outcome), flush=True)
    if bench.is_toy:
        return
    chosen = () if outcome is None else tuple(outcome["choices"]["same"]["names"])
    seconds = max(1.0, bench.left_seconds - 12)
    compiled = bench.attempt(
        COMPILED, measured, bench, (*chosen, COMPILED), bench.left_seconds - 5, seconds,
        least_seconds=25.0,
    )  # fmt: skip
    if compiled is not None:
        bench.note("with_compiled", summary(compiled))


def measured(bench: Bench, names: tuple[str, ...], budget_seconds: float, settle_seconds: float) -> dict[str, Any]:
    side, steps = (64, TOY_STEPS) if bench.is_toy else (512, STEPS)
    body = {
        "family": "sd15", "scale": bench.scale, "width_px": side, "height_px": side, "num_steps": steps,
        "settle_seconds": settle_seconds, "turns_seconds": 0.0 if bench.is_toy else 1.0,
        "budget_seconds": max(1.0, budget_seconds),
    }  # fmt: skip
    settings = EngineSettings(
        base_directory=bench.own, cpu=not bench.is_gpu, disable_all_custom_nodes=True,
        tuning=tuple(dict.fromkeys(names)),
    )  # fmt: skip
    with Engine(settings) as engine:
        return engine.tuning.measure(body).result()


def note_outcome(bench: Bench, outcome: dict[str, Any]) -> None:
    for name, value in summary(outcome).items():
        bench.note(name, value)


def summary(outcome: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "quality", "is_chosen", "reason", "it_per_s", "before_it_per_s", "error")
    return {
        "plain_it_per_s": outcome["plain_it_per_s"],
        "choices": outcome["choices"],
        "figures": [{name: item[name] for name in names} for item in outcome["figures"]],
        "seconds": outcome["seconds"],
    }
