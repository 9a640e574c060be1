"""The choice of the engine that is replaced for the memory it holds."""

from __future__ import annotations

from dataclasses import replace

from darkroom.worker.engines.recycling import MemoryUse, engine_to_recycle, min_interval_seconds, soft_limit_bytes

SMALL = MemoryUse("small", 100, num_prompts=3, age_seconds=10, num_recycled=0)
LARGE = MemoryUse("large", 500, num_prompts=3, age_seconds=10, num_recycled=0)


def test_the_limit_is_what_is_asked_for_or_a_share_of_what_there_is() -> None:
    assert soft_limit_bytes(7, 100) == 7
    assert soft_limit_bytes(None, 100) == 85
    assert soft_limit_bytes(0, 100) is None and soft_limit_bytes(None, None) is None


def test_front_and_engines_together_count_and_the_largest_engine_goes() -> None:
    assert engine_to_recycle([SMALL, LARGE], 50, 650, is_below_floor=False) is None
    assert engine_to_recycle([SMALL, LARGE], 51, 650, is_below_floor=False) == "large"
    assert engine_to_recycle([SMALL, LARGE], 0, None, is_below_floor=True) == "large"


def test_one_that_has_run_nothing_would_come_back_as_it_is() -> None:
    assert engine_to_recycle([replace(LARGE, num_prompts=0)], 0, 1, is_below_floor=False) is None


def test_an_engine_that_needs_that_much_is_replaced_ever_less_often() -> None:
    again = replace(LARGE, num_recycled=1, age_seconds=29)
    assert engine_to_recycle([again], 0, 1, is_below_floor=False) is None
    assert engine_to_recycle([replace(again, age_seconds=31)], 0, 1, is_below_floor=False) == "large"
    assert [min_interval_seconds(replace(LARGE, num_recycled=number)) for number in (0, 1, 2, 99)] == [0, 30, 60, 3600]
