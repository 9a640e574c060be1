"""Flux.1-dev at 1024x1024 in bfloat16 and in float8: the work that is bound by the products."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmark.gpu_parts.bench import Bench, peak_memory, seconds_of
from benchmark.gpu_parts.networks import model_of, random_network, shape_of
from benchmark.gpu_parts.sampling import (
    Drawing,
    computing_engine,
    measure_ways,
    together,
    usable_strategies,
    usual_ways,
)

STEPS, TOY_STEPS = 4, 2
FLOAT8 = ("fp8_linear",)


def measure(bench: Bench) -> None:
    """Note the steps of each type of weights; the network is drawn anew for each."""
    computed = torch.float32 if not bench.is_gpu else torch.bfloat16
    ways = usual_ways(bench)
    float8 = float8_ways(bench)
    bench.attempt("bfloat16", measure_type, bench, computed, None, {"bfloat16": ways, "float8": float8})
    bench.free()
    kept_ways = {name: ways[name] for name in ("plain", "all") if name in ways} | float8_kept_ways(bench)
    bench.attempt(
        "float8_kept", measure_type, bench, torch.float8_e4m3fn, computed, {"float8_kept": kept_ways},
        least_seconds=8.0,
    )  # fmt: skip


def measure_type(
    bench: Bench, kept: torch.dtype, computed: torch.dtype | None, groups: dict[str, dict[str, Sequence[str]]]
) -> None:
    shape = shape_of("flux_1024", is_toy=bench.is_toy)
    name = str(kept).removeprefix("torch.")
    with computing_engine(bench) as engine, peak_memory(bench, f"peak_gib.{name}"):
        made: list[object] = []
        seconds = seconds_of(lambda: made.append(random_network("flux", bench.scale, kept, bench.device)), bench)
        bench.note(f"seconds_to_make.{name}", seconds)
        drawing = Drawing.of_shape(
            bench, engine, model_of(engine, "flux", made.pop(), computed), shape, num_steps(bench)
        )
        plain: torch.Tensor | None = None
        for group, ways in groups.items():
            plain = measure_ways(bench, group, drawing, ways, plain=plain)
        engine.tuner.release()


def num_steps(bench: Bench) -> int:
    return TOY_STEPS if bench.is_toy else STEPS


def float8_ways(bench: Bench) -> dict[str, Sequence[str]]:
    """Return the ways that multiply in float8, by themselves and with all others."""
    names = [name for name in FLOAT8 if name in usable_strategies(bench)]
    if not names:
        return {}
    others = tuple(name for name in together(bench) if name not in names)
    return {names[0]: names, f"graph_and_{names[0]}": ("cuda_graph", *names), f"all_and_{names[0]}": (*others, *names)}


def float8_kept_ways(bench: Bench) -> dict[str, Sequence[str]]:
    """Return the ways of weights kept in float8: strategies that know them, and products of them with all others."""
    usable = usable_strategies(bench)
    ways: dict[str, Sequence[str]] = {
        name: (name,) for name in usable if any(word in name for word in ("packed", "fp8", "float8"))
    }
    for name in [name for name in ways if "packed" in name]:  # the others leave kept weights as they are
        others = (other for other in together(bench) if other not in usable[name].conflicts)
        ways[f"all_and_{name}"] = (*others, name)
    return ways
