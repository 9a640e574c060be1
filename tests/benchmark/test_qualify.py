"""What the start-up benchmark decides, from facts alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmark.qualify import (
    BenchmarkPlan,
    CheckpointFact,
    DeviceFact,
    RunTiming,
    failed,
    parse_prompts,
    plan,
    report,
    skipped,
)

GPU = DeviceFact(name="NVIDIA H200", kind="cuda")
CPU = DeviceFact(name="cpu", kind="cpu")


@dataclass(frozen=True)
class Wanted:
    width_px: int = 512
    height_px: int = 512
    num_steps: int = 20
    checkpoint: str = ""


def planned(device: DeviceFact, *facts: CheckpointFact, wanted: Wanted | None = None) -> BenchmarkPlan:
    made = plan(wanted or Wanted(), device, facts, ("one", "two"), random.Random(0))
    assert made is not None
    return made


def test_the_list_of_prompts_holds_at_least_fifty_different_ones() -> None:
    prompts = parse_prompts((Path(__file__).parents[2] / "misc" / "test_prompts.txt").read_text(encoding="utf-8"))
    assert len(set(prompts)) == len(prompts) >= 50


def test_without_a_checkpoint_the_full_network_is_made_on_the_device() -> None:
    made = planned(GPU)
    assert made.timed[0]["4"] == {
        "class_type": "DarkroomRandomCheckpoint",
        "inputs": {"family": "sd15", "scale": "full"},
    }
    assert made.timed[0]["5"]["inputs"] == {"width": 512, "height": 512, "batch_size": 1}
    assert (made.timed[0]["3"]["inputs"]["steps"], made.shrunk) == (20, None)


def test_a_checkpoint_is_used_only_at_full_width() -> None:
    narrow, unknown = CheckpointFact(name="tiny", base_channels=32), CheckpointFact(name="odd")
    full = CheckpointFact(name="real.safetensors", base_channels=320)
    assert planned(GPU, narrow, unknown).settings.checkpoint == "random"
    made = planned(GPU, narrow, full)
    assert made.timed[0]["4"]["inputs"] == {"ckpt_name": "real.safetensors"} and made.settings.scale is None
    assert planned(GPU, full, wanted=Wanted(checkpoint="tiny")).settings.checkpoint == "random"


def test_a_cpu_gets_less_work_and_is_told_so() -> None:
    made = planned(CPU, CheckpointFact(name="real.safetensors", base_channels=320))
    assert made.settings.scale == "small" and made.settings.width_px <= 128 and made.settings.num_steps <= 4
    assert made.shrunk is not None and "512x512, 20 steps" in made.shrunk


def test_settings_smaller_than_the_cpus_stay_as_they_are() -> None:
    made = planned(CPU, wanted=Wanted(width_px=64, height_px=64, num_steps=2))
    assert (made.settings.width_px, made.settings.num_steps) == (64, 2)


def test_no_run_can_be_answered_from_the_engines_cache() -> None:
    made = planned(GPU)
    seeds = [prompt["3"]["inputs"]["seed"] for prompt in (made.warm_up, *made.timed)]
    assert len(set(seeds)) == len(seeds) == 4


def test_the_seed_and_the_prompt_differ_between_runs() -> None:
    drawn = {
        (made.seed, made.prompt_text)
        for made in (plan(Wanted(), GPU, (), ("a", "b", "c"), random.Random(n)) for n in range(5))
        if made
    }
    assert len(drawn) == 5


def test_a_foreign_engine_without_our_node_has_no_plan() -> None:
    assert plan(Wanted(), GPU, (), ("x",), random.Random(0), has_random_checkpoint=False) is None
    assert skipped("nothing to run").verdict == "skipped"


def test_reports_the_median_and_the_best_rate() -> None:
    timings = [RunTiming(total_seconds=2.0, sampling_seconds=seconds) for seconds in (1.0, 0.5, 2.0)]
    said = report(planned(GPU), timings)
    assert (said.its_per_second, said.best_its_per_second, said.seconds_per_picture) == (20.0, 40.0, 2.0)
    assert (said.steps, said.num_runs, said.verdict) == (20, 3, "pass")


def test_a_sampling_time_not_seen_falls_back_to_the_whole_run() -> None:
    assert report(planned(GPU), [RunTiming(total_seconds=4.0)]).its_per_second == 5.0


def test_no_success_is_a_failure_and_never_a_pass_at_speed_zero() -> None:
    assert report(planned(GPU), []).verdict == "failed"
    assert failed("engine lost").its_per_second is None
    with pytest.raises(ValueError):
        RunTiming(total_seconds=0)


def test_a_result_stands_only_for_the_same_device_network_and_size() -> None:
    keys = {
        planned(GPU).cache_key,
        planned(CPU).cache_key,
        planned(GPU, wanted=Wanted(num_steps=10)).cache_key,
        planned(GPU, CheckpointFact(name="real", base_channels=320)).cache_key,
    }
    assert len(keys) == 4
