from __future__ import annotations

from itertools import count

from worker.jobs.random_values import resolve


def test_the_whole_word_is_a_number_and_a_part_of_a_text_is_text() -> None:
    numbers = count(7)
    prompt = {"1": {"inputs": {"seed": "__RANDOM_INT__", "text": "a __RANDOM_INT__ b", "link": ["2", 0]}}}
    drawn = resolve(prompt, lambda: next(numbers))
    assert drawn == {"1": {"inputs": {"seed": 7, "text": "a 8 b", "link": ["2", 0]}}}
    assert prompt["1"]["inputs"]["seed"] == "__RANDOM_INT__"
