"""Choice of the workload for a machine, from facts alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from darkroom.worker.qualification.workload import (
    CPU_BUDGET_SECONDS,
    MIN_RUNS,
    CheckpointFact,
    DeviceFact,
    FamilyFact,
    OwnWorkload,
    TextToImage,
    calibration,
    choose_workload,
    estimated_workload_per_second,
    fit_to_cpu,
    parse_prompts,
    why_shrunk,
    with_new_seeds,
)

GPU = DeviceFact(name="cuda:0 NVIDIA H200 : native", kind="cuda")
CPU = DeviceFact(name="cpu", kind="cpu")
PLAIN = FamilyFact(name="plain")
LARGE = FamilyFact(
    name="large",
    is_default=False,
    width_px=1024,
    height_px=768,
    num_steps=25,
    cfg=1.0,
    sampler_name="dpmpp_2m",
    scheduler="karras",
    pixel_cost=3.0,
)
FULL = CheckpointFact(name="real.safetensors", family="plain", scale="full")


@dataclass(frozen=True)
class Wanted:
    width_px: int | None = None
    height_px: int | None = None
    num_steps: int | None = None


def chosen(
    device: DeviceFact,
    *facts: CheckpointFact,
    wanted: Wanted | None = None,
    family: FamilyFact = PLAIN,
    checkpoint: str = "",
) -> TextToImage:
    made = choose_workload(
        wanted or Wanted(), device, facts, has_random_checkpoint=True, family=family, checkpoint=checkpoint
    )
    assert made is not None
    return made


def test_the_list_of_prompts_holds_at_least_fifty_different_ones() -> None:
    prompts = parse_prompts((Path(__file__).parents[3] / "misc" / "test_prompts.txt").read_text(encoding="utf-8"))
    assert len(set(prompts)) == len(prompts) >= 50


def test_a_gpus_name_is_reported_without_torchs_words_around_it() -> None:
    assert GPU.product == "NVIDIA H200" and CPU.product == "cpu"
    assert DeviceFact(name="NVIDIA A10", kind="cuda").product == "NVIDIA A10"


def test_without_a_checkpoint_the_full_network_is_made_on_the_device() -> None:
    prompt = chosen(GPU).prompt("a fox", random.Random(0))
    assert prompt["4"] == {"class_type": "DarkroomRandomCheckpoint", "inputs": {"family": "plain", "scale": "full"}}
    assert prompt["5"]["inputs"] == {"width": 512, "height": 512, "batch_size": 1}
    assert (prompt["3"]["inputs"]["steps"], prompt["6"]["inputs"]["text"]) == (20, "a fox")


def test_a_checkpoint_is_used_only_at_full_size_and_of_the_measured_family() -> None:
    narrow = CheckpointFact(name="tiny", family="plain", scale="small")
    other, unknown = CheckpointFact(name="xl", family="large", scale="full"), CheckpointFact(name="vae", family="")
    assert chosen(GPU, narrow, other, unknown).model == "random:full"
    assert chosen(GPU, narrow, other, unknown, FULL).model == "real.safetensors"
    assert chosen(GPU, narrow, other, unknown, FULL, family=LARGE).model == "xl"
    for name in ("tiny", "xl", "vae"):
        assert chosen(GPU, narrow, other, unknown, FULL, checkpoint=name).model == "random:full"


def test_another_family_is_measured_with_its_own_image() -> None:
    ran = chosen(GPU, family=LARGE)
    assert (ran.model, ran.size, ran.is_standard) == ("random:large:full", "1024x768x25", False)
    prompt = ran.prompt("a fox", random.Random(0))
    assert prompt["4"]["inputs"] == {"family": "large", "scale": "full"}
    sampling = prompt["3"]["inputs"]
    assert (sampling["cfg"], sampling["sampler_name"], sampling["scheduler"]) == (1.0, "dpmpp_2m", "karras")
    assert ran.workload == pytest.approx(100 * 3.0 * (1024 * 768) / 512**2 * (25 / 20) / 2)
    assert chosen(GPU, family=LARGE, wanted=Wanted(width_px=512, num_steps=4)).size == "512x768x4"


def test_a_named_checkpoint_on_a_foreign_disk_is_taken_at_the_users_word() -> None:
    unseen = CheckpointFact(name="there.safetensors")
    assert chosen(GPU, unseen).model == "random:full"
    assert chosen(GPU, unseen, checkpoint="there.safetensors").model == "there.safetensors"


def test_a_foreign_engine_without_our_node_and_without_a_checkpoint_has_none() -> None:
    assert choose_workload(Wanted(), GPU, (), has_random_checkpoint=False) is None
    assert choose_workload(Wanted(), GPU, (FULL,), has_random_checkpoint=False, family=PLAIN) is not None


def test_a_cpu_measures_the_small_network() -> None:
    assert chosen(CPU, FULL).model == "random:small"


def test_a_simulated_device_has_a_cpus_arithmetic() -> None:
    assert chosen(DeviceFact(name="simulated device", kind="simulated")).model == "random:small"


def test_every_run_has_a_seed_of_its_own() -> None:
    rng, workload = random.Random(0), chosen(GPU)
    assert len({workload.prompt("x", rng)["3"]["inputs"]["seed"] for _ in range(5)}) == 5


@pytest.mark.parametrize("seconds", [0.005, 0.05, 0.5, 2.0, 30.0])
def test_on_a_cpu_all_runs_fit_the_budget_or_are_as_small_as_they_get(seconds: float) -> None:
    wanted = chosen(CPU)
    small = calibration(wanted)
    fitted = fit_to_cpu(wanted, small, seconds)
    per_pixel_step = seconds / (small.width_px * small.height_px * small.num_steps)
    predicted = per_pixel_step * fitted.width_px * fitted.height_px * fitted.num_steps * (MIN_RUNS + 1)
    assert predicted <= CPU_BUDGET_SECONDS or (fitted.width_px, fitted.num_steps) == (64, 1)


def test_a_faster_cpu_draws_larger_images() -> None:
    wanted = chosen(CPU)
    sides = [fit_to_cpu(wanted, calibration(wanted), seconds).width_px for seconds in (0.001, 0.05, 1.0)]
    assert sides == sorted(sides, reverse=True) and sides[0] == 512 and sides[-1] == 64


def test_settings_smaller_than_the_cpus_stay_as_they_are() -> None:
    wanted = chosen(CPU, wanted=Wanted(width_px=64, height_px=64, num_steps=2))
    assert fit_to_cpu(wanted, calibration(wanted), 0.01).size == "64x64x2"


def test_what_a_cpu_ran_instead_is_said() -> None:
    ran = chosen(CPU).model_copy(update={"width_px": 128, "height_px": 128, "num_steps": 4})
    said = why_shrunk(chosen(CPU), CPU, ran)
    assert said is not None and "128x128, 4 steps" in said and "512x512, 20 steps" in said
    assert why_shrunk(chosen(GPU), GPU, chosen(GPU)) is None


def test_one_image_of_512_at_20_steps_is_a_hundred() -> None:
    assert chosen(GPU).workload == 100
    assert chosen(GPU, wanted=Wanted(width_px=1024, num_steps=10)).workload == 100
    assert not chosen(GPU).is_estimate


def test_the_small_networks_work_is_counted_by_its_arithmetic() -> None:
    """By FlopCounterMode a guided step of it at 128 is 1.18e9, decoding 2.79e9, where the unit is 34.6e12."""
    ran = chosen(CPU).model_copy(update={"width_px": 128, "height_px": 128, "num_steps": 4})
    assert ran.workload == pytest.approx(100 * (4 * 1.18e9 + 2.79e9) / 34.6e12, rel=0.1)
    assert ran.is_estimate


def test_published_figures_are_about_the_full_network_at_512() -> None:
    assert chosen(GPU).is_standard and chosen(GPU, FULL).is_standard
    assert not chosen(CPU).is_standard and not chosen(GPU, wanted=Wanted(width_px=768)).is_standard


def test_a_workflow_of_ones_own_gets_new_seeds_and_keeps_the_rest() -> None:
    workflow = {
        "1": {"class_type": "KSampler", "inputs": {"seed": 5, "steps": 7, "model": ["2", 0]}},
        "2": {
            "class_type": "Odd",
            "inputs": {"noise_seed": "__RANDOM_INT__", "text": "n__RANDOM_INT__", "seed": ["1", 0]},
        },
        "3": {"class_type": "Bare"},
    }
    made = with_new_seeds(workflow, random.Random(1))
    assert made["1"]["inputs"]["seed"] != 5
    assert (made["1"]["inputs"]["steps"], made["1"]["inputs"]["model"]) == (7, ["2", 0])
    assert isinstance(made["2"]["inputs"]["noise_seed"], int) and made["2"]["inputs"]["seed"] == ["1", 0]
    assert made["2"]["inputs"]["text"][1:].isdigit() and made["3"]["inputs"] == {}
    assert workflow["1"]["inputs"]["seed"] == 5  # type: ignore[index]
    asked = {"1": {"class_type": "Text", "inputs": {"text": "__RANDOM_PROMPT__, sharp"}}}
    assert with_new_seeds(asked, random.Random(1), "a fox")["1"]["inputs"]["text"] == "a fox, sharp"
    own = OwnWorkload(name="a.json", digest="d", workflow=workflow)
    assert own.prompt("", random.Random(2)) != own.prompt("", random.Random(3))


def test_an_estimate_is_no_slower_than_half_of_what_the_processor_multiplies() -> None:
    """173 GFLOP/s are 10 s a step of 512x512, and half a unit's hundredth a second."""
    assert estimated_workload_per_second(0.005, 2 * 0.173) == pytest.approx(0.5, rel=0.01)
    assert estimated_workload_per_second(0.7, 0.346) == 0.7
    assert estimated_workload_per_second(0.005, None) == 0.005
