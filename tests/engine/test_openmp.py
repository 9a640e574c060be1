"""Variables of OpenMP that an engine sets for itself, and those that it leaves as they are."""

from __future__ import annotations

import pytest

from engine.openmp import openmp_defaults


@pytest.mark.parametrize(
    ("quota", "threads"), [(None, None), (8.0, None), (4.0, "4"), (3.9, "3"), (1.5, "1"), (0.2, "1")]
)
def test_no_more_threads_than_the_quota_gives(quota: float | None, threads: str | None) -> None:
    assert openmp_defaults({}, 8, quota).get("OMP_NUM_THREADS") == threads


def test_threads_spin_shortly_unless_the_operator_says_how_they_wait() -> None:
    assert int(openmp_defaults({}, 2, None)["GOMP_SPINCOUNT"]) < 300_000
    assert "GOMP_SPINCOUNT" not in openmp_defaults({"OMP_WAIT_POLICY": "ACTIVE"}, 2, None)
    assert "GOMP_SPINCOUNT" not in openmp_defaults({"GOMP_SPINCOUNT": "7"}, 2, None)


def test_the_operators_number_of_threads_stays() -> None:
    assert "OMP_NUM_THREADS" not in openmp_defaults({"OMP_NUM_THREADS": "16"}, 32, 4.0)
