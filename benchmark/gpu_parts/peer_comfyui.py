"""ComfyUI on the same card, with the same shapes and random weights: plainly, and with `--fast`.

Its modules are imported from a folder, `comfyui` in that of `--peers`; what is timed is `comfy.sample.sample` with the
whole network on the device. Where both draw with the same weights, noise and conditions, their latents are compared.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmark.gpu_parts.bench import Bench, run_cases, seconds_of
from benchmark.gpu_parts.networks import Shape, conditioning, model_of, noise_of, random_network, shape_of
from benchmark.gpu_parts.sampling import SAMPLER, Drawing, computing_engine
from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.families.registry import family_named
from darkroom.engine.families.sd15.family import FAMILY as SD15
from darkroom.engine.families.sd15.family import unet_config
from darkroom.engine.models.random_weights import random_denoiser

FOLDER, PACKAGES = "comfyui", "site"
WORKS = ("sd15_512", "sdxl_1024", "flux_1024")
FLOAT8_WORK = "flux_1024_fp8"
STEPS = {"sd15_512": 20, "sdxl_1024": 8, "flux_1024": 4, FLOAT8_WORK: 4}
TOY_STEPS = 3
WAYS: dict[str, Sequence[str]] = {"plain": (), "fast": ("--fast",)}
NOT_THERE = "not there: make it with benchmark/gpu_peers.sh"


def measure(bench: Bench) -> None:
    if bench.peers is None or not (bench.peers / FOLDER / "comfy").is_dir():
        bench.note("peer", NOT_THERE)
        return
    for way in WAYS:  # its flags are the process's
        works = toy_works() if bench.is_toy else [*WORKS, *([FLOAT8_WORK] if way == "fast" else [])]
        share = bench.left_seconds * (0.55 if way == "plain" else 1.0)
        (case,) = run_cases(bench, "peer_comfyui", [f"{way} {','.join(works)}"], at_once=1, each_seconds=share)
        if case.reason is not None:
            bench.report.fail(way, case.reason)
        for label, reason in case.failures.items():
            bench.report.fail(f"{way}.{label}", reason)
        for name, figures in case.figures.items():
            bench.note(f"{name}.{way}" if name in STEPS else f"{name}_{way}", figures)


def toy_works() -> list[str]:
    """Return the works that prove this part: ComfyUI knows SDXL by its full size alone."""
    return ["sd15_512", "flux_1024"]


def measure_case(bench: Bench, name: str) -> None:
    way, _, works = name.partition(" ")
    began = time.perf_counter()
    import_comfyui(bench, WAYS[way])
    bench.note("import_seconds", time.perf_counter() - began)
    bench.note("version", importlib.import_module("comfyui_version").__version__)
    bench.note("kitchen", kitchen())
    for work in works.split(","):
        bench.attempt(work, measure_work, bench, work, way == "plain", least_seconds=4.0)
        bench.free()


def import_comfyui(bench: Bench, flags: Sequence[str]) -> None:
    """Make ComfyUI's modules importable, with these flags; it reads them when they are imported."""
    assert bench.peers is not None
    sys.path.insert(0, str(bench.peers / FOLDER))
    sys.path.append(str(bench.peers / PACKAGES))
    sys.argv = ["main.py", *(["--highvram"] if bench.is_gpu else ["--cpu"]), *flags]
    importlib.import_module("comfy.options").enable_args_parsing()
    for module in ("comfy.sd", "comfy.sample", "comfy.samplers"):
        importlib.import_module(module)


def kitchen() -> str:
    """Return the kinds of ComfyUI's own kernels that are there: its package has compiled ones, and others in Triton."""
    try:
        module = importlib.import_module("comfy_kitchen")
    except ImportError:
        return "none"
    found = Path(str(module.__file__)).parent
    return "compiled and Triton" if list(found.glob("backends/cuda/_C*.so")) else "Triton, without the compiled ones"


def measure_work(bench: Bench, work: str, compares: bool) -> None:
    """Note ComfyUI's steps a second, and how far its latent is from ours of the same weights."""
    from comfy import model_management, sd

    is_float8 = work == FLOAT8_WORK
    plain_work = "flux_1024" if is_float8 else work
    shape = peer_shape(plain_work, bench)
    dtype = dtype_of(bench, plain_work)
    network = peer_network(bench, plain_work, dtype)
    options: dict[str, Any] = {"dtype": dtype}
    if is_float8:
        options |= {"dtype": torch.float8_e4m3fn, "fp8_optimizations": True}
    with torch.inference_mode():
        model = loaded(bench, sd, network, options)
        if model is None:
            raise RuntimeError("ComfyUI does not recognise the network")
        if not compares:
            del network
        num_steps = TOY_STEPS if bench.is_toy else STEPS[work]
        first = draw(bench, model, shape, num_steps)
        runs = [draw(bench, model, shape, num_steps) for _ in range(1 if bench.is_toy else 3)]
        latent, rate = max(runs, key=lambda run: run[1])
        figures: dict[str, Any] = {"it_per_s": rate, "first_it_per_s": first[1]}
        figures["is_finite"] = bool(torch.isfinite(latent).all())
        figures["dtype"] = str(model.model.get_dtype())
        bench.note(work, figures)
        del model
        model_management.unload_all_models()
        model_management.soft_empty_cache()
    if compares:
        figures["error_beside_ours"] = error_beside_ours(bench, network, shape, num_steps, latent)
        bench.note(work, figures)


def loaded(bench: Bench, sd: Any, network: Any, options: dict[str, Any]) -> Any:
    """Return ComfyUI's model with these weights, made on the device where it can be: no copy in RAM comes first."""
    for place in (bench.device, "cpu"):
        try:
            with torch.device(place):
                state = dict(network.state_dict())
                return sd.load_diffusion_model_state_dict(state, model_options=dict(options), **without_dynamic(sd))
        except (TypeError, RuntimeError) as error:  # some of its tables are read by numpy
            bench.note(f"not_made_on_{place}", f"{type(error).__name__}: {error}")
    return None


def without_dynamic(sd: Any) -> dict[str, bool]:
    """Return the argument by which later versions keep the whole network on the device."""
    return (
        {"disable_dynamic": True}
        if "disable_dynamic" in sd.load_diffusion_model_state_dict.__code__.co_varnames
        else {}
    )


def draw(bench: Bench, model: Any, shape: Shape, num_steps: int) -> tuple[torch.Tensor, float]:
    """Return ComfyUI's latent and its steps a second from the end of the first on."""
    sample = importlib.import_module("comfy.sample").sample
    ends: list[float] = []

    def on_step(step: int, denoised: object, x: object, total: int) -> None:
        if step in (0, total - 1):
            bench.wait()
            ends.append(time.perf_counter())

    noise = noise_of(shape)
    bench.wait()
    latent = sample(
        model, noise, num_steps, shape.cfg, SAMPLER, shape.scheduler, conditioning(shape, 2), conditioning(shape, 3),
        torch.zeros_like(noise), callback=on_step, disable_pbar=True, seed=1,
    )  # fmt: skip
    return latent.float().cpu(), (num_steps - 1) / max(ends[-1] - ends[0], 1e-9)


def error_beside_ours(bench: Bench, network: Any, shape: Shape, num_steps: int, theirs: torch.Tensor) -> float:
    with computing_engine(bench) as engine:
        drawing = Drawing.of_shape(bench, engine, model_of(engine, shape.family, network), shape, num_steps)
        made: list[torch.Tensor] = []
        seconds = seconds_of(lambda: made.append(drawing.draw(()).latent.float().cpu()), bench)
        bench.note(f"ours_seconds.{shape.family}", seconds)
        return float(relative_error(made[0], theirs))


def dtype_of(bench: Bench, work: str) -> torch.dtype:
    if not bench.is_gpu:
        return torch.float32
    return torch.bfloat16 if work.startswith("flux") else torch.float16


def peer_network(bench: Bench, work: str, dtype: torch.dtype) -> Any:
    """Return our network of the work; the toy's of SD1.5 has the width that ComfyUI knows it by, and two levels."""
    if bench.is_toy and work == "sd15_512":
        config = narrow_unet()
        return random_denoiser(config, 1, family=SD15, dtype=dtype, device=bench.device)
    return random_network(family_of(work), bench.scale, dtype, bench.device)


def narrow_unet() -> Any:
    """Return a configuration of SD1.5's widths with two levels."""
    return unet_config(model_channels=320, context_dim=768, channel_mult=(1, 1), blocks_per_level=1)


def family_of(work: str) -> str:
    return family_named(work.partition("_")[0]).name


def peer_shape(work: str, bench: Bench) -> Shape:
    if bench.is_toy and work == "sd15_512":
        return Shape("sd15", (1, 4, 8, 8), 77, 768)
    return shape_of(work, is_toy=bench.is_toy)
