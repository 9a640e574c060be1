"""The nearest allowed name in a problem, and what is too long or too much to be compared."""

from __future__ import annotations

from worker.engine.choices import MAX_HINTS, MAX_NAME_LENGTH, nearest_choice, with_hints
from worker.errors import Problem


def test_the_nearest_name_is_told_and_of_very_many_problems_only_for_the_first() -> None:
    problems = [
        Problem(f"Unknown node class {number}", class_type=f"SaveImag{number}", type="unknown_class")
        for number in range(MAX_HINTS + 5)
    ]
    hinted = with_hints(problems, {"SaveImage": {}})
    assert [problem.message.endswith("did you mean 'SaveImage'?") for problem in hinted] == [True] * MAX_HINTS + [
        False
    ] * 5


def test_no_megabyte_is_compared_with_anything() -> None:
    assert nearest_choice("Model-A.ckpt", ["model_a.safetensors"]) == "model_a.safetensors"
    assert nearest_choice("a" * (MAX_NAME_LENGTH + 1), ["a" * MAX_NAME_LENGTH]) is None
