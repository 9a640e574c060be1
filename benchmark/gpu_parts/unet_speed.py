"""Shared by the parts of SD1.5 and SDXL: one checkpoint of random weights, its sampling in every way, its decoding."""

from __future__ import annotations

from typing import Any

import torch

from benchmark.gpu_parts.bench import Bench, median_seconds, peak_memory
from benchmark.gpu_parts.networks import shape_of
from benchmark.gpu_parts.sampling import Drawing, computing_engine, machine_facts, measure_ways, usual_ways
from darkroom.engine.tuning.registry import make_strategies

STEPS, TOY_STEPS = {"sd15_512": 20, "sdxl_1024": 8}, 3


def measure_unet(bench: Bench, work: str, batches: tuple[int, ...]) -> None:
    shape = shape_of(work, is_toy=bench.is_toy)
    with computing_engine(bench) as engine, peak_memory(bench, "peak_gib"):
        model, _, vae = engine.models.random_checkpoint(shape.family, bench.scale)
        latent: torch.Tensor | None = None
        first: Drawing | None = None
        num_steps = TOY_STEPS if bench.is_toy else STEPS[work]
        for batch in batches:
            drawing = Drawing.of_shape(bench, engine, model, shape.with_batch(batch), num_steps)
            ways = usual_ways(bench)
            if batch > 1:
                ways = {name: ways[name] for name in ways if not name.startswith("graph_and_")}
            found = measure_ways(bench, f"batch_{batch}", drawing, ways)
            latent = found if batch == 1 else latent
            first = drawing if first is None else first
        if latent is not None:
            bench.attempt("vae", note_decoding, bench, engine, vae, latent)
        if first is not None:  # last: a profiler may slow down what comes after it
            bench.attempt("profile", note_profile, bench, first, num_steps)
        engine.tuner.release()


def note_decoding(bench: Bench, engine: Any, vae: Any, latent: torch.Tensor) -> None:
    """Note the seconds of a whole decoding with the copy to RAM, plainly and with each strategy for VAEs."""
    bench.note("vae.seconds", median_seconds(lambda: vae.decode(latent), bench, budget_seconds=1.0))
    for name, strategy in make_strategies(None).items():
        if strategy.target != "vae":
            continue
        missing = strategy.missing(machine_facts(bench))
        if missing is not None:
            bench.note(f"vae.{name}", f"not here: {missing}")
            continue
        bench.attempt(f"vae.{name}", note_decoding_with, bench, engine, vae, latent, name)


def note_decoding_with(bench: Bench, engine: Any, vae: Any, latent: torch.Tensor, name: str) -> None:
    """Note the seconds of a decoding with one strategy."""

    def decode() -> None:
        with engine.tuner.forced([name]):
            vae.decode(latent)

    bench.note(f"vae.{name}_seconds", median_seconds(decode, bench, budget_seconds=1.0))


def note_profile(bench: Bench, drawing: Drawing, num_steps: int) -> None:
    """Note how many kernels a plain step has, which share of it the device computes, and the longest kernels."""
    from torch.autograd.profiler_util import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.is_gpu else [])]
    with profile(activities=kinds) as recorded:
        drawn = drawing.draw(())
    kind = DeviceType.CUDA if bench.is_gpu else DeviceType.CPU
    events = [event for event in recorded.events() if event.device_type == kind]
    busy = sum(event.time_range.elapsed_us() if bench.is_gpu else event.self_cpu_time_total for event in events) / 1e6
    bench.note("profile.kernels_per_step", len(events) / num_steps)
    bench.note("profile.busy_ms_per_step", busy / num_steps * 1000)
    # Of the plain step's own time: the profiler slows the host down, not the kernels.
    plain = bench.report.figures.get("batch_1", {}).get("plain", {}).get("it_per_s") or drawn.it_per_s
    bench.note("profile.busy_share", busy / num_steps * plain)
    totals: dict[str, list[float]] = {}
    for event in events:
        seconds = event.time_range.elapsed_us() if bench.is_gpu else event.self_cpu_time_total
        entry = totals.setdefault(event.name[:90], [0.0, 0])
        entry[0] += seconds / 1000 / num_steps
        entry[1] += 1 / num_steps
    longest = sorted(totals.items(), key=lambda item: -item[1][0])[:25]
    bench.note(
        "profile.longest", [{"kernel": name, "ms_per_step": ms, "calls_per_step": n} for name, (ms, n) in longest]
    )
