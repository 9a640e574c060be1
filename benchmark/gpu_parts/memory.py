"""Model memory: `tests/gpu`, equal bits in every mode, packed weights beside the CPU, and running out of memory."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import torch

from benchmark.family_workflows import image_of_checkpoint
from benchmark.gpu_parts.bench import GIB, MIB, ROOT, Bench, is_installed, run_cases
from benchmark.gpu_parts.networks import random_network, shape_of
from benchmark.gpu_parts.runs import latent_of, prompt_engine, run_prompt
from benchmark.gpu_parts.sampling import Drawing, computing_engine
from benchmark.quantised_files import FORMS, write_float16
from benchmark.small_models import node, workflow, write_small_models
from darkroom.engine import Engine
from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.families.registry import family_named
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.settings import DtypeName, DtypeSettings, MemorySettings

CASES = ("tests", "modes sd15", "modes sdxl", "packed", "out_of_memory")
AT_ONCE = 4
COVERED = ("tests/gpu/test_capture.py", "tests/gpu/test_out_of_memory.py")  # by `capture`, and by a case of this part
TEST_WORKERS = 6
SIMULATED_GIB = 4.0  # of the toy's card
PACKED = ("scaled float8", "GGUF Q8_0", "NF4")
PACKED_STEPS = 3
MOST_PACKED_ERROR = 0.05
OOM_SHARES = (0.7, 0.5, 0.35)  # of what the run takes beside the weights, or nearly

# Each beside the first, and with it to the bit. The reserve leaves almost nothing of the card for weights.
MODES: Mapping[str, Mapping[str, Any]] = {
    "highvram": {"vram": "highvram"},
    "gpu_only": {"vram": "gpu_only"},
    "normalvram": {"vram": "normalvram"},
    "lowvram": {"vram": "lowvram"},
    "novram": {"vram": "novram"},
    "reserve": {"vram": "normalvram", "reserve_vram_gb": "nearly all"},
    "streams_0": {"vram": "novram", "async_offload_streams": 0},
    "streams_1": {"vram": "novram", "async_offload_streams": 1},
    "streams_3": {"vram": "novram", "async_offload_streams": 3},
    "not_pinned": {"vram": "novram", "pinned_memory": False},
    "not_smart": {"vram": "normalvram", "smart_memory": False},
}

TOY_MODES = ("highvram", "novram", "streams_0")
TOY_PACKED = ("scaled float8", "NF4")


def measure(bench: Bench) -> None:
    cases = run_cases(bench, "memory", CASES, at_once=2 if bench.is_toy else AT_ONCE, each_seconds=bench.left_seconds)
    equal: list[bool] = []
    recovered: list[bool] = []
    for case in cases:
        if case.reason is not None:
            bench.report.fail(case.name, case.reason)
        for label, reason in case.failures.items():
            bench.report.fail(f"{case.name}.{label}", reason)
        bench.note(f"cases.{case.name.replace(' ', '_')}", {**case.figures, "seconds": case.seconds})
        equal += [error == 0.0 for error in case.figures.get("errors", {}).values()]
        recovered += [bool(item.get("is_recovered")) for item in case.figures.get("limits", {}).values()]
        if "share_tests" in case.figures:
            bench.note("share_tests", case.figures["share_tests"])
    bench.note("num_modes", len(equal))
    bench.note("share_equal", sum(equal) / len(equal) if equal else None)
    bench.note("share_recovered", sum(recovered) / len(recovered) if recovered else None)


def measure_case(bench: Bench, name: str) -> None:
    kind, _, family = name.partition(" ")
    if kind == "tests":
        bench.attempt("tests", run_tests, bench)
    elif kind == "modes":
        compare_modes(bench, family)
    elif kind == "packed":
        compare_packed(bench)
    else:
        run_out_of_memory(bench)


# --- tests/gpu -------------------------------------------------------------------------------------------------------


def run_tests(bench: Bench) -> None:
    """Run the tests of the device as a developer does, and note how many pass."""
    file = bench.own / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-c", "tests/gpu/pytest.ini", "-q", f"--junitxml={file}"]
    command.append("tests/gpu/test_device_probe.py" if bench.is_toy else "tests/gpu")
    command += [f"--ignore={path}" for path in COVERED]
    if is_installed("xdist") and not bench.is_toy:
        command += ["-n", str(TEST_WORKERS)]
    done = subprocess.run(command, cwd=ROOT, timeout=max(5.0, bench.left_seconds - 1), check=False)
    suite = ElementTree.parse(file).getroot()  # noqa: S314 - written by the line above
    cases = list(suite.iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    bench.note("num_tests", len(cases))
    bench.note("num_skipped", len(skipped))
    bench.note("exit_code", done.returncode)
    ran = len(cases) - len(skipped)
    bench.note("share_tests", (ran - len(failed)) / ran if ran else None)
    for case in failed:
        found = case.find("failure")
        message = (case.find("error") if found is None else found).get("message", "")  # type: ignore[union-attr]
        bench.report.fail(str(case.get("name")), message or "failed")


# --- modes -----------------------------------------------------------------------------------------------------------


def compare_modes(bench: Bench, family: str) -> None:
    """Draw the same latent in every mode and note its distance from the first mode's."""
    if family == "sd15":
        write_small_models(bench.own / "models")
        prompts = {"plain": workflow(), "hooked": hooked_workflow()}
    else:
        prompts = {"plain": checkpoint_prompt(bench, family)}
    references: dict[str, torch.Tensor] = {}
    for mode in TOY_MODES if bench.is_toy else MODES:
        flags = MODES[mode]
        for label, prompt in prompts.items():
            name = mode if label == "plain" else f"{mode}_{label}"

            def compare(
                flags: Mapping[str, Any] = flags, name: str = name, label: str = label, prompt: Any = prompt
            ) -> None:
                with prompt_engine(bench, bench.own, memory=memory_of(bench, flags)) as engine:
                    latent = latent_of(engine, run_prompt(engine, prompt))
                    engine.memory.pool.check_integrity()
                    streamed = engine.memory.report().num_streamed
                reference = references.setdefault(label, latent)
                bench.note(f"errors.{name}", relative_error(latent, reference))
                bench.note(f"streamed.{name}", streamed)

            bench.attempt(name, compare)
    for name, error in bench.report.figures.get("errors", {}).items():
        if error != 0.0:
            bench.report.fail(name, f"other bits than the first mode's: error {error}")


def memory_of(bench: Bench, flags: Mapping[str, Any]) -> MemorySettings:
    """Return the settings of a mode; the toy's card is a simulated one."""
    chosen: dict[str, Any] = dict(flags)
    if not bench.is_gpu:
        chosen["simulate_vram_gb"] = SIMULATED_GIB
    if "reserve_vram_gb" in chosen:
        total = torch.cuda.get_device_properties(0).total_memory / GIB if bench.is_gpu else SIMULATED_GIB
        chosen["reserve_vram_gb"] = total - 0.02
    return MemorySettings(**chosen)


def checkpoint_prompt(bench: Bench, name: str) -> dict[str, Any]:
    family = family_named(name)
    path = bench.own / "models" / "checkpoints" / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_random_checkpoint(path, family=family)
    return image_of_checkpoint(family)


def hooked_workflow() -> dict[str, Any]:
    """Return the workflow with a LoRA that holds for the positive condition alone, in place of the one of all."""
    prompt = workflow(second=None, lora=None)
    prompt["30"] = node("CreateHookLora", lora_name="l.safetensors", strength_model=0.8, strength_clip=1.0)
    prompt["31"] = node(
        "ConditioningSetProperties", cond_NEW=["3", 0], strength=1.0, set_cond_area="default", hooks=["30", 0]
    )
    prompt["8"]["inputs"]["positive"] = ["31", 0]
    return prompt


# --- packed weights --------------------------------------------------------------------------------------------------


def compare_packed(bench: Bench) -> None:
    """Note how far latents of packed weights are from those of the same file on the CPU, in each device's types."""
    network = random_network("flux", "small", torch.float16, "cpu")
    folder = bench.own / "models" / "diffusion_models"
    folder.mkdir(parents=True, exist_ok=True)
    for form, (ending, write) in FORMS.items():
        if form not in (TOY_PACKED if bench.is_toy else PACKED):
            continue
        path = folder / f"{form.replace(' ', '_')}.{ending}"
        write(path, network.state_dict())
        bench.attempt(path.stem, compare_types, bench, path.stem, path.name, DtypeSettings())
    write_float16(folder / "whole.safetensors", network.state_dict())
    kept: tuple[DtypeName, ...] = ("float8_e4m3fn",) if bench.is_toy else ("float8_e4m3fn", "float8_e5m2")
    for name in kept:
        types = DtypeSettings(unet=name)
        bench.attempt(f"kept_{name}", compare_types, bench, f"kept_{name}", "whole.safetensors", types)


def compare_types(bench: Bench, name: str, file: str, types: DtypeSettings) -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    latents = []
    for on_cpu in (True, False):
        with computing_engine(bench, on_cpu=on_cpu, dtypes=types) as engine:
            models = engine.models
            model = models.unet_gguf(file) if file.endswith("gguf") else models.unet(file)
            drawing = Drawing.of_shape(bench, engine, model, shape_of("flux_1024", is_toy=True), PACKED_STEPS)
            latents.append(drawing.draw(()).latent.float().cpu())
    error = float(relative_error(latents[1], latents[0]))
    bench.note(f"packed.{name}", error)
    if not error <= MOST_PACKED_ERROR:
        bench.report.fail(name, f"error {error} beside the CPU, more than {MOST_PACKED_ERROR}")


# --- out of memory ---------------------------------------------------------------------------------------------------


def oom_prompt(bench: Bench) -> dict[str, Any]:
    """Return a prompt whose decoding takes far more memory than its weights."""
    side = 256 if bench.is_toy else 1536
    prompt = workflow(second=None, lora=None, control=False, size=side)
    scale = "small" if bench.is_toy else "full"
    prompt["1"] = node("DarkroomRandomCheckpoint", family="sd15", scale=scale, seed=1)
    return prompt


def run_out_of_memory(bench: Bench) -> None:
    """Draw with less and less memory than the run takes: it must end, alike, and give all memory back.

    On a card the limit is torch's own, so that the errors are real. The toy's card is simulated.
    """
    prompt = oom_prompt(bench)
    with prompt_engine(bench, bench.own, memory=oom_memory(bench, None)) as engine:
        reference = latent_of(engine, run_prompt(engine, prompt))
        peak = engine.memory.report().peak_bytes or 0
        peak = max(peak, torch.cuda.max_memory_allocated()) if bench.is_gpu else peak
        weights = engine.memory.report().pool.device_bytes
    bench.note("peak_gib", peak / GIB)
    bench.note("weights_gib", weights / GIB)
    left = released_bytes(bench)
    for share in OOM_SHARES[1:2] if bench.is_toy else OOM_SHARES:
        limit = int(weights * min(1.0, 2 * share) + (peak - weights) * share)
        name = f"{share:.0%}".replace("%", "_percent")
        bench.attempt(f"limit_{name}", draw_within, bench, f"limits.{name}", prompt, limit, reference, left)


def draw_within(
    bench: Bench, name: str, prompt: Any, limit_bytes: int, reference: torch.Tensor, left_before: int
) -> None:
    set_limit(bench, limit_bytes)
    found: dict[str, Any] = {"limit_gib": limit_bytes / GIB, "is_recovered": False}
    try:
        with prompt_engine(bench, bench.own, memory=oom_memory(bench, limit_bytes)) as engine:
            found["error"] = relative_error(latent_of(engine, run_prompt(engine, prompt)), reference)
            found["relief"] = {step: num for step, num in engine.memory.report().relief_steps.items() if num}
            set_limit(bench, None)
            found["error_afterwards"] = error_afterwards(bench, engine, prompt, reference)
    finally:
        set_limit(bench, None)
        bench.note(name, found)
    found["left_mib"] = (released_bytes(bench) - left_before) / MIB
    is_like = found["error"] <= 1e-2 and found["error_afterwards"] == 0.0
    found["is_recovered"] = bool(is_like and found["left_mib"] < 16)
    bench.note(name, found)
    if not found["is_recovered"]:
        bench.report.fail(
            name, f"error {found['error']}, afterwards {found['error_afterwards']}, left {found['left_mib']} MiB"
        )


def error_afterwards(bench: Bench, engine: Engine, prompt: Any, reference: torch.Tensor) -> float:
    """Return the error of the same prompt in the same engine once there is memory again."""
    if not bench.is_gpu:
        return 0.0  # the simulated card keeps its size
    engine.free(unload_models=True, free_memory=True)
    return relative_error(latent_of(engine, run_prompt(engine, prompt)), reference)


def oom_memory(bench: Bench, limit_bytes: int | None) -> MemorySettings:
    if bench.is_gpu:
        return MemorySettings()
    return MemorySettings(simulate_vram_gb=SIMULATED_GIB if limit_bytes is None else limit_bytes / GIB)


def set_limit(bench: Bench, limit_bytes: int | None) -> None:
    """Let torch take so much of the card's memory, and all of it with None."""
    if bench.is_gpu:
        bench.free()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(1.0 if limit_bytes is None else min(1.0, limit_bytes / total))


def released_bytes(bench: Bench) -> int:
    """Return the bytes that are still allocated once everything unused has been given back."""
    gc.collect()
    bench.free()
    return torch.cuda.memory_allocated() if bench.is_gpu else 0
