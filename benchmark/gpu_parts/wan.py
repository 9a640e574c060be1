"""Wan 2.1 1.3B at 832x480 of 33 frames, Wan 2.2 5B at 1280x704 of 25, and Qwen-Image where time is left."""

from __future__ import annotations

import torch

from benchmark.gpu_parts.bench import Bench, peak_memory
from benchmark.gpu_parts.networks import model_of, random_network, shape_of
from benchmark.gpu_parts.sampling import Drawing, computing_engine, measure_ways, usual_ways

STEPS, TOY_STEPS = 3, 2
WAYS = ("plain", "cuda_graph", "all")
WORKS = (("wan_480p_33", 5.0), ("wan22_720p_25", 6.0), ("qwen_image_1024", 12.0))


def measure(bench: Bench) -> None:
    dtype = torch.bfloat16 if bench.is_gpu else torch.float32
    for work, least_seconds in WORKS:
        bench.attempt(work, measure_work, bench, work, dtype, least_seconds=least_seconds)
        bench.free()


def measure_work(bench: Bench, work: str, dtype: torch.dtype) -> None:
    shape = shape_of(work, is_toy=bench.is_toy)
    ways = {name: names for name, names in usual_ways(bench).items() if name in WAYS}
    with computing_engine(bench) as engine, peak_memory(bench, f"peak_gib.{work}"):
        network = random_network(shape.family, bench.scale, dtype, bench.device)
        num_steps = TOY_STEPS if bench.is_toy else STEPS
        drawing = Drawing.of_shape(bench, engine, model_of(engine, shape.family, network), shape, num_steps)
        del network
        measure_ways(bench, work, drawing, ways)
        engine.tuner.release()
