"""diffusers on the same card: SD1.5's UNet and Flux's transformer with its own schedulers, eager and compiled.

Weights are random, as its modules draw them, on the device. Compiling takes most of the time; each network has a
process of its own, so that one which takes too long costs itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmark.gpu_parts.bench import Bench, is_installed, run_cases

WORKS = ("sd15_512", "flux_1024")
STEPS = {"sd15_512": 20, "flux_1024": 4}
TOY_STEPS = 3
GUIDANCE = 7.0
NOT_THERE = "not there: diffusers is no package of this Python"

Step = Callable[[], float]
"""Sample, and return the steps a second from the end of the first on."""


def measure(bench: Bench) -> None:
    if not is_installed("diffusers"):
        bench.note("peer", NOT_THERE)
        return
    for number, work in enumerate(WORKS):
        share = bench.left_seconds / (len(WORKS) - number)
        (case,) = run_cases(bench, "peer_diffusers", [work], at_once=1, each_seconds=share)
        if case.reason is not None:
            bench.report.fail(work, case.reason)
        for label, reason in case.failures.items():
            bench.report.fail(label, reason)
        for name, figures in case.figures.items():
            bench.note(name, figures)


def measure_case(bench: Bench, work: str) -> None:
    import diffusers

    bench.note("version", diffusers.__version__)
    make = {"sd15_512": sd15_sampling, "flux_1024": flux_sampling}[work]
    with torch.inference_mode():
        network, sampling = make(bench)
        bench.attempt(f"{work}.eager", note_rate, bench, f"{work}.eager", sampling)
        bench.attempt(f"{work}.compiled", note_compiled, bench, work, network, sampling, least_seconds=5.0)


def note_rate(bench: Bench, name: str, sampling: Step) -> None:
    began = time.perf_counter()
    sampling()
    first = time.perf_counter() - began
    rates = [sampling() for _ in range(1 if bench.is_toy else 3)]
    bench.note(name, {"it_per_s": max(rates), "median_it_per_s": statistics.median(rates), "first_run_seconds": first})


def note_compiled(bench: Bench, work: str, network: Any, sampling: Step) -> None:
    """Note the compiled network's rate. The toy compiles nothing: that takes a minute on a processor."""
    if bench.is_toy:
        return
    if work == "flux_1024":
        network.compile_repeated_blocks(fullgraph=True)
    else:
        network.compile(mode="reduce-overhead", fullgraph=True)
    note_rate(bench, f"{work}.compiled", sampling)


def sd15_sampling(bench: Bench) -> tuple[Any, Step]:
    """Return SD1.5's UNet and the loop of diffusers' pipeline around it, guided."""
    import diffusers

    dtype = torch.float16 if bench.is_gpu else torch.float32
    narrow = {"block_out_channels": (32, 64), "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
              "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"), "layers_per_block": 1}  # fmt: skip
    unet = made(
        bench, lambda: diffusers.UNet2DConditionModel(
            sample_size=64, cross_attention_dim=768, **(narrow if bench.is_toy else {})
        ), dtype,
    )  # fmt: skip
    unet.to(memory_format=torch.channels_last)
    scheduler = diffusers.EulerDiscreteScheduler(
        beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, steps_offset=1
    )
    cells, num_steps = (8, TOY_STEPS) if bench.is_toy else (64, STEPS["sd15_512"])
    context = torch.randn(2, 77, 768, device=bench.device).to(dtype)

    def sampling() -> float:
        scheduler.set_timesteps(num_steps, device=bench.device)
        latent = torch.randn(1, 4, cells, cells, device=bench.device).to(dtype) * scheduler.init_noise_sigma
        ends: list[float] = []
        for timestep in scheduler.timesteps:
            noisy = scheduler.scale_model_input(torch.cat([latent] * 2), timestep)
            predicted = unet(noisy, timestep, encoder_hidden_states=context, return_dict=False)[0]
            without, with_prompt = predicted.chunk(2)
            guided = without + GUIDANCE * (with_prompt - without)
            latent = scheduler.step(guided, timestep, latent, return_dict=False)[0]
            note_end(bench, ends)
        return rate_of(bench, ends, num_steps)

    return unet, sampling


def flux_sampling(bench: Bench) -> tuple[Any, Step]:
    """Return Flux.1-dev's transformer and its loop: 512 text tokens, 4096 patches."""
    import diffusers

    dtype = torch.bfloat16 if bench.is_gpu else torch.float32
    small = {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
             "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 6, 6)}  # fmt: skip
    options = {"guidance_embeds": True, **(small if bench.is_toy else {})}
    transformer = made(bench, lambda: diffusers.FluxTransformer2DModel(**options), dtype)
    side, tokens, num_steps = (4, 8, TOY_STEPS) if bench.is_toy else (64, 512, STEPS["flux_1024"])
    config = transformer.config
    text = torch.randn(1, tokens, config.joint_attention_dim, device=bench.device).to(dtype)
    pooled = torch.randn(1, config.pooled_projection_dim, device=bench.device).to(dtype)
    rows = torch.arange(side * side, device=bench.device)
    places = torch.stack([torch.zeros_like(rows), rows // side, rows % side], dim=1).to(dtype)  # [N, 3]
    text_places = torch.zeros(tokens, 3, device=bench.device, dtype=dtype)
    guidance = torch.full((1,), 3.5, device=bench.device, dtype=torch.float32)
    sigmas = torch.linspace(1.0, 1 / num_steps, num_steps).tolist()

    def sampling() -> float:
        latent = torch.randn(1, side * side, config.in_channels, device=bench.device).to(dtype)
        ends: list[float] = []
        for now, after in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
            timestep = torch.full((1,), now, device=bench.device, dtype=dtype)
            predicted = transformer(
                hidden_states=latent, timestep=timestep, guidance=guidance, pooled_projections=pooled,
                encoder_hidden_states=text, txt_ids=text_places, img_ids=places, return_dict=False,
            )[0]  # fmt: skip
            latent = latent + (after - now) * predicted
            note_end(bench, ends)
        return rate_of(bench, ends, num_steps)

    return transformer, sampling


def made(bench: Bench, build: Callable[[], Any], dtype: torch.dtype) -> Any:
    """Build a network on the device, in its type from the start."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(bench.device):
            return build().requires_grad_(False).eval()
    finally:
        torch.set_default_dtype(before)


def note_end(bench: Bench, ends: list[float]) -> None:
    """Note when the first step ended; the others follow without a wait."""
    if not ends:
        bench.wait()
        ends.append(time.perf_counter())


def rate_of(bench: Bench, ends: list[float], num_steps: int) -> float:
    bench.wait()
    return (num_steps - 1) / max(time.perf_counter() - ends[0], 1e-9)
