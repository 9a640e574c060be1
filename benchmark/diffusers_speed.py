"""Seconds for each sampling step of SD1.5 on this CPU, ours and that of diffusers, on the same random weights.

    python benchmark/diffusers_speed.py [--sides 256 512] [--steps 4] [--rounds 3]      (needs the extra `benchmark`)

Guidance is on, so a step is the UNet on a batch of two. Both sides take turns in one process and the medians are
compared, so that a machine that slows down meanwhile slows both. Ours is the whole path of a step in the engine
(events, cancel check, guidance, sampler), theirs the loop of their own pipeline around UNet and scheduler. First the
two UNets are shown to compute the same. Writes benchmark/results/diffusers_speed.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import diffusers  # noqa: E402 - the repository has to be on the path first
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint  # noqa: E402

from benchmark.machine import describe_cpu  # noqa: E402
from darkroom.engine import Engine, EngineSettings, RunRequest  # noqa: E402
from darkroom.engine.events import NodeProgress  # noqa: E402
from darkroom.engine.families.registry import default_family  # noqa: E402
from darkroom.engine.families.sd15.unet_files import PREFIX as UNET_PREFIX  # noqa: E402
from darkroom.engine.models.load import LoadTypes, load_unet  # noqa: E402
from darkroom.engine.models.random_weights import write_random_checkpoint  # noqa: E402
from darkroom.engine.settings import DtypeName, DtypeSettings  # noqa: E402

CHECKPOINT = "random.safetensors"
TYPES: tuple[tuple[DtypeName, torch.dtype], ...] = (("float32", torch.float32), ("bfloat16", torch.bfloat16))
GUIDANCE = 7.0
CONTEXT_DIM: int = default_family().scales["full"].denoiser.context_dim


class Ours:
    """Our engine with the checkpoint loaded; `step_seconds` runs one prompt and returns the time of every step."""

    def __init__(self, base: Path, dtype: DtypeName) -> None:
        self._engine = Engine(EngineSettings(base_directory=base, cpu=True, dtypes=DtypeSettings(unet=dtype)))
        self._seed = 0

    def step_seconds(self, side_px: int, num_steps: int) -> list[float]:
        self._seed += 1
        prompt = sampling_prompt(side_px, num_steps + 1, self._seed)
        times: list[float] = []

        def note(event: Any) -> None:
            if isinstance(event, NodeProgress):
                times.append(time.perf_counter())

        outputs = self._engine.check(prompt).outputs
        result = self._engine.submit(RunRequest(f"run-{self._seed}", prompt, outputs), note).result()
        if result.status != "success":
            raise RuntimeError(f"the run ended as {result.status}")
        # From the end of one step to the end of the next: the first one also brings the model in, so it is left out.
        return [later - earlier for earlier, later in zip(times, times[1:], strict=False)][-num_steps:]

    def close(self) -> None:
        self._engine.close()


class Theirs:
    """diffusers' UNet and Euler scheduler with the weights of the same file."""

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        weights = safetensors.torch.load_file(path)
        wanted = {name: weight.to(dtype) for name, weight in weights.items() if name.startswith(UNET_PREFIX)}
        self.unet = sd15_unet()
        converted = convert_ldm_unet_checkpoint(wanted, dict(self.unet.config))
        self.unet.load_state_dict(converted, assign=True)
        self.unet.requires_grad_(False).eval()
        self._dtype = dtype

    @torch.inference_mode()
    def step_seconds(self, side_px: int, num_steps: int) -> list[float]:
        scheduler = diffusers.EulerDiscreteScheduler(
            beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, steps_offset=1
        )
        scheduler.set_timesteps(num_steps)
        latent = torch.randn(1, 4, side_px // 8, side_px // 8).to(self._dtype) * scheduler.init_noise_sigma
        context = torch.randn(2, 77, CONTEXT_DIM).to(self._dtype)
        seconds = []
        for timestep in scheduler.timesteps:
            started = time.perf_counter()
            noisy = scheduler.scale_model_input(torch.cat([latent] * 2), timestep)
            predicted = self.unet(noisy, timestep, encoder_hidden_states=context, return_dict=False)[0]
            without, with_prompt = predicted.chunk(2)
            guided = without + GUIDANCE * (with_prompt - without)
            latent = scheduler.step(guided, timestep, latent, return_dict=False)[0]
            seconds.append(time.perf_counter() - started)
        return seconds


def sd15_unet() -> Any:
    with torch.device("meta"):
        return diffusers.UNet2DConditionModel(sample_size=64, cross_attention_dim=CONTEXT_DIM)


def sampling_prompt(side_px: int, num_steps: int, seed: int) -> dict[str, Any]:
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": CHECKPOINT}},
        "2": {"class_type": "EmptyLatentImage", "inputs": {"width": side_px, "height": side_px, "batch_size": 1}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"text": "a lighthouse at dawn", "clip": ["1", 1]}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurry", "clip": ["1", 1]}},
        "5": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["1", 0],
                "positive": ["3", 0],
                "negative": ["4", 0],
                "latent_image": ["2", 0],
                "seed": seed,
                "steps": num_steps,
                "cfg": GUIDANCE,
                "sampler_name": "euler",
                "scheduler": "normal",
                "denoise": 1.0,
            },
        },
        "6": {"class_type": "SaveLatent", "inputs": {"samples": ["5", 0], "filename_prefix": "speed"}},
    }


@torch.inference_mode()
def difference(path: Path, theirs: Theirs) -> float:
    """Relative L2 distance of the two UNets' answers to the same question, in float32."""
    ours = load_unet(path, LoadTypes()).unet
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(2, 4, 32, 32, generator=generator)
    context = torch.randn(2, 77, CONTEXT_DIM, generator=generator)
    timesteps = torch.tensor([500.0, 500.0])
    expected = theirs.unet(latent, timesteps, encoder_hidden_states=context, return_dict=False)[0]
    answer = ours(latent, timesteps, context=context)
    return float((answer - expected).norm() / expected.norm())


def compare(base: Path, path: Path, sides_px: list[int], num_steps: int, num_rounds: int) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for name, dtype in TYPES:
        theirs = Theirs(path, dtype)
        if dtype is torch.float32:
            report["unet_difference_rel_l2"] = difference(path, theirs)
        ours = Ours(base, name)
        try:
            for side_px in sides_px:
                key = f"{name}_{side_px}x{side_px}"
                report[key] = take_turns(ours, theirs, side_px, num_steps, num_rounds)
                print(f"{key}: {json.dumps(report[key])}", flush=True)
        finally:
            ours.close()
        del theirs, ours
        gc.collect()
    return report


def take_turns(ours: Ours, theirs: Theirs, side_px: int, num_steps: int, num_rounds: int) -> dict[str, float]:
    ours.step_seconds(side_px, 1)
    theirs.step_seconds(side_px, 1)
    our_seconds: list[float] = []
    their_seconds: list[float] = []
    for _ in range(num_rounds):
        our_seconds += ours.step_seconds(side_px, num_steps)
        their_seconds += theirs.step_seconds(side_px, num_steps)
    mine, other = statistics.median(our_seconds), statistics.median(their_seconds)
    return {
        "ours_s_per_it": round(mine, 4),
        "diffusers_s_per_it": round(other, 4),
        "diffusers_by_ours": round(other / mine, 3),
        "ours_best_s_per_it": round(min(our_seconds), 4),
        "diffusers_best_s_per_it": round(min(their_seconds), 4),
        "diffusers_by_ours_best": round(min(their_seconds) / min(our_seconds), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmark" / "results" / "diffusers_speed.json")
    asked = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        path = base / "models" / "checkpoints" / CHECKPOINT
        path.parent.mkdir(parents=True)
        write_random_checkpoint(path, "full")
        report = compare(base, path, asked.sides, asked.steps, asked.rounds)
    versions = {"torch": torch.__version__, "diffusers": diffusers.__version__}
    load = {"load_average_1min": {"before": round(load_before, 2), "after": round(os.getloadavg()[0], 2)}}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps({"machine": describe_cpu(), **versions, **load, **report}, indent=2) + "\n")


if __name__ == "__main__":
    main()
