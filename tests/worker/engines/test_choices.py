"""The nearest allowed name in a problem; of very many only in the first."""

from __future__ import annotations

from darkroom.worker.engines.choices import MAX_HINTS, with_hints
from darkroom.worker.errors import Problem


def test_the_nearest_name_is_reported_and_of_very_many_problems_only_for_the_first() -> None:
    problems = [
        Problem(f"Unknown node class {number}", class_type=f"SaveImag{number}", type="unknown_class")
        for number in range(MAX_HINTS + 5)
    ]
    hinted = with_hints(problems, {"SaveImage": {}})
    assert [problem.message.endswith("did you mean 'SaveImage'?") for problem in hinted] == [True] * MAX_HINTS + [
        False
    ] * 5
