"""Every family at small scale: latents and images of the device beside the CPU's in float32.

Float32 without TensorFloat-32 shows mistakes, the types that the engine chooses show what users get.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from benchmark.family_workflows import image_of_checkpoint
from benchmark.gpu_parts.bench import Bench, is_installed, run_cases
from benchmark.gpu_parts.runs import image_of, latent_of, prompt_engine, run_prompt
from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.families.registry import families, family_named
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.settings import DtypeSettings

WORKERS, TOY_FAMILIES = 4, ("sd15", "flux")
MOST_FLOAT32_ERROR, MOST_DEFAULT_ERROR = 2e-3, 0.15
ROUNDS = 3  # of workers that died: each loses the family that it was at


def measure(bench: Bench) -> None:
    left = [family.name for family in families() if not bench.is_toy or family.name in TOY_FAMILIES]
    found: dict[str, Any] = {}
    for _ in range(ROUNDS):
        lists = [left[place::WORKERS] for place in range(min(WORKERS, len(left)))]
        names = [",".join(chosen) for chosen in lists]
        at_once = 2 if bench.is_toy else WORKERS
        for case in run_cases(bench, "families", names, at_once=at_once, each_seconds=bench.left_seconds):
            found |= case.figures
            for name, reason in case.failures.items():
                found[name.partition(".")[0]] = {"failure": reason}
            lost = [name for name in case.name.split(",") if name not in found]
            if case.reason is not None and lost:
                found[lost[0]] = {"failure": case.reason}
        left = [name for name in left if name not in found]
        if not left or bench.left_seconds < 10:
            break
    for name, figures in found.items():
        bench.note(f"families.{name}", figures)
        fault = fault_of(figures)
        if fault is not None:
            bench.report.fail(name, fault)
    for name in left:
        bench.report.fail(name, "not begun: no time was left")
    total = len(found) + len(left)
    bench.note("num_families", total)
    bench.note("share_float32", sum(is_like(item, "float32", MOST_FLOAT32_ERROR) for item in found.values()) / total)
    bench.note("share_default", sum(is_like(item, "default", MOST_DEFAULT_ERROR) for item in found.values()) / total)


def is_like(figures: dict[str, Any], types: str, most: float) -> bool:
    error = figures.get(types, {}).get("latent_error")
    return isinstance(error, float) and error <= most


def fault_of(figures: dict[str, Any]) -> str | None:
    """Return the fault of a family's figures, or None."""
    if "failure" in figures:
        return str(figures["failure"])
    limits = {"float32": MOST_FLOAT32_ERROR, "default": MOST_DEFAULT_ERROR}
    wrong = [
        f"{name}: error {figures[name]['latent_error']}" for name in limits if not is_like(figures, name, limits[name])
    ]
    return "; ".join(wrong) or None


def measure_case(bench: Bench, names: str) -> None:
    for name in names.split(","):
        bench.attempt(name, note_family, bench, name, least_seconds=3.0)


def note_family(bench: Bench, name: str) -> None:
    bench.note(name, compare(bench, name))


def compare(bench: Bench, name: str) -> dict[str, Any]:
    """Return the errors of a family's latent and image in float32 and in the types that the engine chooses."""
    family, folder = family_named(name), bench.own / name
    path = folder / "models" / "checkpoints" / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_random_checkpoint(path, family=family)
    prompt = playable(image_of_checkpoint(family))
    exact = DtypeSettings(force_fp32=True)
    expected, image = drawn(bench, folder, prompt, exact, on_cpu=True)
    found: dict[str, Any] = {"deviation": float(expected.std())}
    for types, settings in (("float32", exact), ("default", DtypeSettings())):
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        latent, found_image = drawn(bench, folder, prompt, settings, on_cpu=False)
        item: dict[str, Any] = {"latent_error": float(relative_error(latent.float(), expected.float()))}
        item["is_finite"] = bool(torch.isfinite(latent).all())
        if image is not None and found_image is not None:
            difference = numpy.abs(image - found_image)
            item |= {"image_mean": float(difference.mean()), "image_max": float(difference.max())}
        found[types] = item
    return found


def drawn(bench: Bench, folder: Path, prompt: Any, types: DtypeSettings, *, on_cpu: bool) -> tuple[torch.Tensor, Any]:
    with prompt_engine(bench, folder, on_cpu=on_cpu, dtypes=types) as engine:
        outputs = run_prompt(engine, prompt)
        return latent_of(engine, outputs), image_of(engine, outputs)


def playable(prompt: dict[str, Any]) -> dict[str, Any]:
    """Return the prompt without the nodes whose libraries are not installed: audio is written by two of them."""
    if prompt["21"]["class_type"] != "SaveAudio" or has(("av", "mutagen")):
        return prompt
    return {number: node for number, node in prompt.items() if number not in ("10", "21")}


def has(modules: Sequence[str]) -> bool:
    return all(is_installed(name) for name in modules)
