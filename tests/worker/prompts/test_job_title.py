"""Titles of jobs: the prompt, never the negative one."""

from __future__ import annotations

from darkroom.worker.prompts.job_title import MAX_TITLE_LENGTH, title_of


def test_the_longest_positive_text_is_the_title() -> None:
    sampler = {"class_type": "Sampler", "inputs": {"positive": ["3", 0], "negative": ["4", 0], "seed": 1}}
    prompt = {
        "1": {"class_type": "Encode", "inputs": {"text": "a fox"}},
        "2": {"class_type": "Encode", "inputs": {"text": "a red fox in the snow "}},
        "3": {"class_type": "Combine", "inputs": {"a": ["1", 0], "b": ["2", 0]}},
        "4": {"class_type": "Encode", "inputs": {"text": "blurry, ugly, badly drawn, watermark"}},
        "5": sampler,
        "6": {"class_type": "Note", "inputs": {"text": "a note that is longer than any prompt in here"}},
    }
    assert title_of(prompt) == "a red fox in the snow"


def test_a_text_of_any_node_will_do_and_nothing_is_a_title_without_texts() -> None:
    assert title_of({"1": {"class_type": "Say", "inputs": {"prompt": "x" * 400, "size": 3}}}) == "x" * MAX_TITLE_LENGTH
    assert title_of({"1": {"class_type": "Blank", "inputs": {"size": 3}}, "2": "no node"}) == ""
