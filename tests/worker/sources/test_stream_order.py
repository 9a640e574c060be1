"""Order of the streams of jobs."""

from __future__ import annotations

import pytest

from darkroom.worker.sources.stream_order import PATIENCE_SECONDS, JobStream, in_order, priority_name

ANY, HIGH, LOW = JobStream("normal"), JobStream("high"), JobStream("low")
CAT, DOG = JobStream("normal", "cat.safetensors"), JobStream("normal", "dog.safetensors")


def test_higher_priorities_come_first_whatever_the_model() -> None:
    assert in_order([LOW, CAT, ANY, HIGH], ["cat.safetensors"], {}, {}) == [HIGH, CAT, ANY, LOW]


def test_the_model_used_last_comes_before_any_model_and_others_after() -> None:
    assert in_order([ANY, DOG, CAT], ["cat.safetensors"], {}, {}) == [CAT, ANY, DOG]


def test_a_job_that_has_waited_long_goes_first_within_its_priority() -> None:
    waited = {DOG: PATIENCE_SECONDS + 1, CAT: 1.0}
    assert in_order([HIGH, ANY, DOG, CAT], ["cat.safetensors"], waited, {}) == [HIGH, DOG, CAT, ANY]


def test_the_owner_whose_turn_is_longest_ago_goes_first_however_long_others_have_waited() -> None:
    shop, studio, new = (JobStream("normal", owner=name) for name in ("shop", "studio", "new"))
    waited = {shop: 10 * PATIENCE_SECONDS, studio: 1.0, new: 1.0}
    assert in_order([shop, studio, new, HIGH], [], waited, {"shop": 20.0, "studio": 10.0}) == [HIGH, new, studio, shop]


OWNED = JobStream("normal", "a:b.safetensors", "a shop: of models"), JobStream("high", owner="shop")


@pytest.mark.parametrize("stream", [ANY, HIGH, CAT, JobStream("low", "a:b.safetensors"), *OWNED])
def test_a_stream_is_found_by_its_name(stream: JobStream) -> None:
    assert JobStream.of(stream.suffix) == stream


@pytest.mark.parametrize(
    "name",
    [
        "",
        "jobs",
        "jobs:urgent",
        "jobs:high:model:",
        "jobs:high:pictures:x",
        "jobs:low:owner:",
        "jobs:low:owner:a:",
        "dead",
    ],
)
def test_other_names_are_no_streams(name: str) -> None:
    assert JobStream.of(name) is None


@pytest.mark.parametrize(("priority", "word"), [(3, "high"), (0, "normal"), (-1, "low")])
def test_priorities_have_streams(priority: int, word: str) -> None:
    assert priority_name(priority) == word
