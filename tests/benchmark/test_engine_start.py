"""Comparison of the start-up figures of two engines; nothing is started here."""

from __future__ import annotations

from benchmark.engine_start import report


def test_ratios_say_how_many_times_longer_the_other_takes() -> None:
    ours = {"first_answer_seconds": 0.5, "first_prompt_seconds": 2.0, "starts": 1}
    found = report(ours, {"first_answer_seconds": 5.0, "first_prompt_seconds": 6.0, "starts": 1})
    assert found["ratios"] == {"first_answer_seconds": 10.0, "first_prompt_seconds": 3.0}
    assert found["is_met"] and found["comfyui"]["is_from_this_run"]


def test_without_another_engine_the_time_known_stands_in() -> None:
    found = report({"first_answer_seconds": 3.3, "first_prompt_seconds": 4.0, "starts": 1}, None)
    assert found["ratios"] == {"first_answer_seconds": 2.0, "first_prompt_seconds": None}
    assert not found["is_met"] and not found["comfyui"]["is_from_this_run"]
