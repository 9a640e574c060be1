"""`__RANDOM_INT__` in a workflow becomes a number, in a text of any length."""

from __future__ import annotations

from itertools import count

from darkroom.worker.prompts.random_values import resolve


def test_the_whole_word_is_a_number_and_a_part_of_a_text_is_text() -> None:
    numbers = count(7)
    prompt = {"1": {"inputs": {"seed": "__RANDOM_INT__", "text": "a __RANDOM_INT__ b", "link": ["2", 0]}}}
    drawn = resolve(prompt, lambda: next(numbers))
    assert drawn == {"1": {"inputs": {"seed": 7, "text": "a 8 b", "link": ["2", 0]}}}
    assert prompt["1"]["inputs"]["seed"] == "__RANDOM_INT__"


def test_a_text_that_is_full_of_them_takes_no_longer_for_each() -> None:
    numbers = count()
    drawn = resolve("__RANDOM_INT__," * 50_000, lambda: next(numbers))
    assert drawn.startswith("0,1,2,") and drawn.endswith(",49999,")
