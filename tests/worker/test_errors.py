"""Every error class has a status and a code, and says no more of a request than it should."""

from __future__ import annotations

import importlib
import json
import pkgutil
from typing import Any

from darkroom import worker
from darkroom.worker.errors import (
    MAX_SHOWN_LENGTH,
    Problem,
    RequestRejected,
    TryLater,
    WorkerError,
    http_status,
    http_status_for_vast,
)


def all_subclasses(cls: type[WorkerError]) -> set[type[WorkerError]]:
    return {cls, *(found for child in cls.__subclasses__() for found in all_subclasses(child))}


def test_every_error_that_can_be_raised_has_a_status_and_a_code_of_its_own() -> None:
    for module in pkgutil.walk_packages(worker.__path__, "darkroom.worker."):
        if not any(part in module.name for part in ("migrations", "__main__", "integrations.ray")):  # Ray is an extra
            importlib.import_module(module.name)
    classes = [cls for cls in all_subclasses(WorkerError) if not cls.__subclasses__()]
    statuses = {cls: http_status(cls) for cls in classes}
    assert all(400 <= status < 600 for status in statuses.values())
    codes = [cls.code for cls in classes]
    assert len(codes) == len(set(codes))


def test_only_what_can_pass_asks_to_come_back() -> None:
    for cls in all_subclasses(TryLater) - {TryLater}:
        assert http_status(cls) in (429, 503)


def test_vasts_client_is_never_asked_to_repeat_a_job_that_failed_for_good() -> None:
    assert [http_status_for_vast(status) for status in (500, 504, 502, 503, 422)] == [422, 422, 502, 503, 422]


def test_a_problem_repeats_no_more_than_the_beginning_of_a_long_value() -> None:
    long = "x" * (MAX_SHOWN_LENGTH + 1)
    problem = Problem(f"Value {long}", field="input.modifications.a", extra={"received": [{"b": long}] * 100})
    shown = json.dumps(problem.as_json()) + problem.sentence
    assert len(shown) < 60 * (MAX_SHOWN_LENGTH + 100) and f"({len(long)} characters)" in shown


def test_a_refusal_lists_a_hundred_problems_and_counts_the_others() -> None:
    error = RequestRejected([Problem(f"wrong {index}") for index in range(150)], num_unlisted=10)
    shown: dict[str, Any] = error.as_json()
    assert len(shown["problems"]) == len(error.problems) == 100 and shown["unlisted_problems"] == 60
    assert error.message == "wrong 0 (and 159 more)"
    assert "unlisted_problems" not in RequestRejected([Problem("wrong")]).as_json()


def test_a_refusal_repeats_long_lists_of_choices_only_so_often() -> None:
    problems = [Problem("wrong", allowed=[f"{index}.safetensors" for index in range(5000)]) for _ in range(100)]
    shown: Any = RequestRejected(problems).as_json()["problems"]
    assert [len(problem["allowed"]) for problem in shown] == [5000] * 4 + [50] * 96
